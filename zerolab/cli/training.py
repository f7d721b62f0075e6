"""The commands that train, or simulate it: compare, simulate, fit, record."""

import argparse
import ast
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from zerolab import catalog, theory
from zerolab.cli.shared import Arguments, add_command, add_json, check_there, is_now, say
from zerolab.names import check_count

OTHERS = (
    "or another system's: torch-ddp, torch-zero1, fsdp1, fsdp2, hsdp, deepspeed-0 to deepspeed-3; with gathers in 8 "
    "bits: zero3-8bit; or with Muon: muon-replicated, muon-owners, muon-rows"
)


def add(commands: Any) -> None:
    """Adds the commands of this room."""
    compare = add_command(
        commands, "compare", _compare, "train under several stages; measured bytes beside the formula"
    )
    _add_stages(compare, f", {OTHERS}")
    _add_training(compare, model="gpt-10m", steps=5)
    simulate = add_command(commands, "simulate", _simulate, "run the engines on a fake rank of N, at any size")
    _add_stages(simulate, "; with Muon: muon-replicated, muon-owners, muon-rows")
    _add_size(simulate)
    simulate.add_argument(
        "--model", default="7b", help=f"one of {', '.join(catalog.ARCHITECTURES)} (default: %(default)s)"
    )
    simulate.add_argument("--rows", type=int, help="sequences per rank (default: 1)")
    simulate.add_argument("--length", type=int, help="tokens per sequence (default: the model's context)")
    simulate.add_argument("--checkpointing", default="none", help="of activations: none, selective or block")
    simulate.add_argument("--gpu", default="h100", help=f"one of {', '.join(catalog.GPUS)} (default: %(default)s)")
    simulate.add_argument(
        "--network",
        default="infiniband-ndr",
        help=f"between nodes: one of {', '.join(catalog.LINKS)} (default: %(default)s)",
    )
    sent = "bytes a second that one GPU sends to other nodes, such as 50e9 (default: the network's)"
    simulate.add_argument("--bandwidth", type=float, metavar="B/S", help=sent)
    simulate.add_argument("--gpus-per-node", type=int, default=8, metavar="G", help="(default: 8)")
    reached = "part of the dense rate that matrix products reach (default: fitted)"
    simulate.add_argument("--utilisation", type=float, help=reached)
    _add_fit(commands)
    record = add_command(commands, "record", _record, "record a training under one stage")
    record.add_argument("--stage", required=True, help=f"one of {', '.join(theory.STAGES)}, {OTHERS}")
    _add_training(record, model="gpt-tiny", steps=3)
    record.add_argument("--out", type=Path, required=True, metavar="FILE", help="where the recording goes (JSON)")
    record.add_argument("--times-only", action="store_true", help="no bytes of memory, and hardly slower")
    help_ = "of tensors and batches, too: for `zerolab diff`"
    record.add_argument("--fingerprints", action="store_const", const=True, help=help_)


def _add_fit(commands: Any) -> None:
    fit = add_command(commands, "fit", _fit, "say what your own model needs of each GPU, before you run it")
    what = (
        "train.py:make_model (a function that makes the model, or the model), or a Hugging Face config.json or folder"
    )
    fit.add_argument("model", help=what)
    fit.add_argument("--world-size", type=int, default=8, metavar="N", help="number of GPUs (default: 8)")
    fit.add_argument("--gpu", default="h100", help=f"one of {', '.join(catalog.GPUS)} (default: %(default)s)")
    fit.add_argument("--gpus-per-node", type=int, default=8, metavar="G", help="hsdp shards among them (default: 8)")
    fit.add_argument("--memory", type=float, metavar="B", help="bytes of a GPU, such as 80e9 (default: the GPU's)")
    fit.add_argument("--stages", help=f"of {', '.join(theory.STAGES)}, fsdp2, hsdp, joined by commas (default: all)")
    fit.add_argument("--precision", default="bf16", help="fp32, bf16 or fp16, or several (default: bf16)")
    again = "none, selective, block, joined by commas (default: all)"
    fit.add_argument("--checkpointing", default="none,selective,block", help=again)
    batch = "one rank's batch: a shape such as 8x3x224x224 or 4x512:int64, or a function of the file that makes it"
    fit.add_argument("--inputs", help=f"{batch} (default: tokens, rows x length)")
    fit.add_argument("--rows", type=int, help="sequences per rank (default: those of the inputs, or 1)")
    fit.add_argument("--length", type=int, help="tokens per sequence (default: those of the inputs, or 2048 at most)")
    fit.add_argument("--units", help="the class of the blocks, such as LlamaDecoderLayer (default: what is repeated)")
    fit.add_argument("--most", action="store_true", help="also search the most rows that fit, and the fewest GPUs")
    fit.add_argument("--settings", action="store_true", help="also print the settings of the first row that fits")
    add_json(fit)


def _add_stages(parser: argparse.ArgumentParser, others: str) -> None:
    stages = ",".join(theory.STAGES)
    parser.add_argument("--stages", default=stages, help=f"joined by commas (default: %(default)s){others}")
    add_json(parser)
    where = "the recording; those of several stages are written beside it, run.json as run-zero3.json"
    parser.add_argument("--out", type=Path, metavar="FILE", help=where)


def _add_size(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--world-size", type=int, default=4, metavar="N", help="number of ranks (default: 4)")
    parser.add_argument("--precision", default="fp32", help="fp32, bf16 or fp16 (default: fp32)")
    parser.add_argument("--moments", default="fp32", help="Adam's two: fp32, or 8-bit (default: fp32)")


def _add_training(parser: argparse.ArgumentParser, model: str, steps: int) -> None:
    _add_size(parser)
    parser.add_argument("--model", default=model, help="mlp-odd, mlp-bench, gpt-tiny or gpt-10m (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=steps, help="training steps, at least 2 (default: %(default)s)")
    # No choices=: the package's own message also says what to do.
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda (default: auto)")
    text = "of the engine, such as overlap=False prefetch=2"
    parser.add_argument("--options", nargs="+", metavar="NAME=VALUE", help=text)


def _keep(recordings: Any, arguments: Arguments) -> None:
    """Saves the recordings if `--out` names a file."""
    if arguments.out:
        paths = recordings.save(arguments.out)
        # To stderr: the rows on stdout may go to another program.
        print(f"recorded in {', '.join(map(str, paths))}; zerolab play shows one", file=sys.stderr)
        if arguments.json and arguments.json.resolve() in [path.resolve() for path in paths]:
            raise ValueError(f"--json would overwrite the recording {str(arguments.json)!r}: choose another file")


def _training(arguments: Arguments) -> dict[str, Any]:
    """What `compare` and `record` take alike."""
    same = {
        name: getattr(arguments, name) for name in ("world_size", "model", "steps", "precision", "moments", "device")
    }
    return {**same, "options": _options(arguments.options or ())}


def _options(given: Sequence[str]) -> dict[str, Any]:
    """`overlap=False` as a keyword; a value that is not Python is taken as text. Raises ValueError without a `=`."""
    options: dict[str, Any] = {}
    for each in given:
        name, equals, value = each.partition("=")
        if not (name and equals):
            raise ValueError(f"--options has {each!r}: write name=value, such as overlap=False")
        try:
            options[name] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            options[name] = value
    return options


def _compare(arguments: Arguments) -> None:
    from zerolab.comparison import compare

    comparison = compare(arguments.stages, **_training(arguments))
    _keep(comparison, arguments)
    say(arguments, comparison.rows, comparison.table(times=True))


def _simulate(arguments: Arguments) -> None:
    check_count("world size", arguments.world_size)
    from zerolab.simulation.run import simulate

    options = (
        "precision",
        "moments",
        "rows",
        "length",
        "checkpointing",
        "gpu",
        "network",
        "gpus_per_node",
        "utilisation",
    )
    chosen = {name: getattr(arguments, name) for name in options}
    chosen["bandwidth"] = arguments.bandwidth
    if arguments.bandwidth and 0 < arguments.bandwidth < 1e6:
        is_now("--bandwidth in GB a second", f"--bandwidth {arguments.bandwidth:g}e9, in bytes as in Python")
        chosen["bandwidth"] *= 1e9
    simulation = simulate(arguments.stages, arguments.world_size, arguments.model, **chosen)
    _keep(simulation, arguments)
    seconds = f"GB is 1e9 bytes. Seconds are modelled: {simulation.hardware.describe()}"
    say(arguments, simulation.rows, f"{simulation.table(times=True)}\n{seconds}")


def _fit(arguments: Arguments) -> None:
    path, colon, _ = arguments.model.partition(":")
    if colon or path.endswith(".py"):
        check_there([Path(path)], "write the file and the function, such as train.py:make_model")
    from zerolab.recording.events import count
    from zerolab.simulation import own
    from zerolab.simulation.fit import fit
    from zerolab.simulation.needs import in_words

    names = ("world_size", "gpu", "gpus_per_node", "memory", "stages", "precision", "rows", "length", "units")
    chosen = {name: getattr(arguments, name) for name in names}
    chosen["checkpointing"] = [each.strip() for each in arguments.checkpointing.split(",")]
    chosen["inputs"] = own.inputs_of(arguments.inputs, arguments.model)
    found = fit(arguments.model, **chosen)
    said: dict[str, Any] = {"answer": found.answer, "notes": found.notes, "rows": found.rows}
    lines = [str(found), found.answer]
    if arguments.most:
        cell, rows, least = found.cell(), found.most(), found.least_gpus()
        which = {"stage": cell.stage, "precision": cell.precision, "checkpointing": cell.checkpointing}
        said["most"] = {**which, "rows": rows, "least_gpus": least}
        lines += [f"{in_words(cell)}: at most {count(rows, 'row')} per rank"]
        on = f"at least {count(least, 'GPU')}" if least else "no number of GPUs"
        lines += [f"and with as many rows as above on {on}"]
    if arguments.settings:
        said["settings"] = found.settings()
        lines += [f"\n{system}:\n{_text_of(text)}" for system, text in said["settings"].items() if text]
    say(arguments, said, "\n".join(lines))


def _text_of(settings: Any) -> str:
    return settings if isinstance(settings, str) else json.dumps(settings, indent=2)


def _record(arguments: Arguments) -> None:
    from zerolab.comparison import record

    chosen = {"times_only": arguments.times_only, "fingerprints": arguments.out if arguments.fingerprints else None}
    recording = record(arguments.stage, **_training(arguments), **chosen)
    recording.save(arguments.out)
    print(f"{len(recording.events):,} events of {recording.world_size} ranks in {arguments.out}")
