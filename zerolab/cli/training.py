"""The commands that train, or simulate it: compare, simulate, fit, record."""

import argparse
import ast
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from zerolab import catalog, theory
from zerolab.cli.shared import OWN, Arguments, add_command, add_json, check_there, is_now, say
from zerolab.names import check_count

OTHERS = (
    "or another system's: torch-ddp, torch-zero1, fsdp1, fsdp2, hsdp, deepspeed-0 to deepspeed-3; with gathers in 8 "
    "bits: zero3-8bit; or with Muon: muon-replicated, muon-owners, muon-rows"
)
GPUS = f"one of {', '.join(catalog.GPUS)}"


def add(commands: Any) -> None:
    """Adds the commands of this room."""
    parser = add_command(commands, "compare", _compare, "train under several stages; measured bytes beside the formula")
    _add_stages(parser, f", {OTHERS}")
    _add_training(parser, model="gpt-10m", steps=5)
    parser = add_command(commands, "simulate", _simulate, "run the engines on a fake rank of N, at any size")
    _add_stages(parser, "; with Muon: muon-replicated, muon-owners, muon-rows")
    _add_size(parser)
    _option(parser, "--model", "7b", f"one of {', '.join(catalog.ARCHITECTURES)}")
    parser.add_argument("--rows", type=int, help="sequences per rank (default: 1)")
    parser.add_argument("--length", type=int, help="tokens per sequence (default: the model's context)")
    parser.add_argument("--checkpointing", default="none", help="of activations: none, selective or block")
    _option(parser, "--gpu", "h100", GPUS)
    _option(parser, "--network", "infiniband-ndr", f"between nodes: one of {', '.join(catalog.LINKS)}")
    sent = "bytes a second that one GPU sends to other nodes, such as 50e9 (default: the network's)"
    parser.add_argument("--bandwidth", type=float, metavar="B/S", help=sent)
    _option(parser, "--gpus-per-node", 8, metavar="G")
    reached = "part of the dense rate that matrix products reach (default: fitted)"
    parser.add_argument("--utilisation", type=float, help=reached)
    _add_fit(add_command(commands, "fit", _fit, "say what your own model needs of each GPU, before you run it"))
    parser = add_command(commands, "record", _record, "record a training under one stage")
    parser.add_argument("--stage", required=True, help=f"one of {', '.join(theory.STAGES)}, {OTHERS}")
    _add_training(parser, model="gpt-tiny", steps=3)
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="where the recording goes (JSON)")
    parser.add_argument("--times-only", action="store_true", help="no bytes of memory, and hardly slower")
    compared = "of tensors and batches, too: for `zerolab diff`"
    parser.add_argument("--fingerprints", action="store_const", const=True, help=compared)


def _add_fit(fit: argparse.ArgumentParser) -> None:
    own = "train.py:make_model (a function that makes the model, or the model), or a Hugging Face config.json or folder"
    fit.add_argument("model", help=own)
    _option(fit, "--world-size", 8, "number of GPUs", metavar="N")
    _option(fit, "--gpu", "h100", GPUS)
    _option(fit, "--gpus-per-node", 8, "hsdp shards among them", metavar="G")
    fit.add_argument("--memory", type=float, metavar="B", help="bytes of a GPU, such as 80e9 (default: the GPU's)")
    fit.add_argument("--stages", help=f"of {', '.join(theory.STAGES)}, fsdp2, hsdp, joined by commas (default: all)")
    _option(fit, "--precision", "bf16", "fp32, bf16 or fp16, or several")
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


def _option(parser: argparse.ArgumentParser, flag: str, default: Any, text: str = "", **more: Any) -> None:
    """Adds an option that takes what its default is, and says so at the end of its help."""
    parser.add_argument(flag, type=type(default), default=default, help=f"{text} (default: %(default)s)", **more)


def _add_stages(parser: argparse.ArgumentParser, others: str) -> None:
    stages = ",".join(theory.STAGES)
    parser.add_argument("--stages", default=stages, help=f"joined by commas (default: %(default)s){others}")
    add_json(parser)
    where = "the recording; those of several stages are written beside it, run.json as run-zero3.json"
    parser.add_argument("--out", type=Path, metavar="FILE", help=where)


def _add_size(parser: argparse.ArgumentParser) -> None:
    _option(parser, "--world-size", 4, "number of ranks", metavar="N")
    _option(parser, "--precision", "fp32", "fp32, bf16 or fp16")
    _option(parser, "--moments", "fp32", "Adam's two: fp32, or 8-bit")


def _add_training(parser: argparse.ArgumentParser, model: str, steps: int) -> None:
    _add_size(parser)
    _option(parser, "--model", model, "mlp-odd, mlp-bench, gpt-tiny or gpt-10m")
    _option(parser, "--steps", steps, "training steps, at least 2")
    _option(parser, "--device", "auto", "auto, cpu or cuda")  # no choices=: the package's own message says what to do
    text = "of the engine, such as overlap=False prefetch=2"
    parser.add_argument("--options", nargs="+", metavar="NAME=VALUE", help=text)


def _keep(recordings: Any, arguments: Arguments) -> None:
    """Saves the recordings if `--out` names a file."""
    if arguments.out:
        paths = recordings.save(arguments.out)
        # To stderr: the rows on stdout may go to another program.
        print(f"recorded in {', '.join(map(str, paths))}; zerolab play shows one", file=sys.stderr)


def _given(arguments: Arguments, *besides: str) -> dict[str, Any]:
    """What a command's function takes in Python by the same names; `besides` are the command's own, as are files."""
    given = {name: value for name, value in vars(arguments).items() if name not in (*OWN, *besides)}
    return given | {"options": _options(given["options"] or ())} if "options" in given else given


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

    comparison = compare(**_given(arguments))
    _keep(comparison, arguments)
    say(arguments, comparison.rows, comparison.table(times=True))


def _simulate(arguments: Arguments) -> None:
    check_count("world size", arguments.world_size)
    from zerolab.simulation.run import simulate

    given = _given(arguments)
    if given["bandwidth"] and 0 < given["bandwidth"] < 1e6:
        is_now("--bandwidth in GB a second", f"--bandwidth {given['bandwidth']:g}e9, in bytes as in Python")
        given["bandwidth"] *= 1e9
    simulation = simulate(**given)
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
    from zerolab.simulation.found import MOST
    from zerolab.simulation.needs import in_words

    given = _given(arguments, "most", "settings")
    given["checkpointing"] = [each.strip() for each in arguments.checkpointing.split(",") if each.strip()]
    given["inputs"] = own.inputs_of(arguments.inputs, arguments.model)
    found = fit(**given)
    said: dict[str, Any] = {"answer": found.answer, "notes": found.notes, "rows": found.rows}
    lines = [str(found), found.answer]
    if arguments.most:
        cell, rows, least = found.cell(), found.most(), found.least_gpus()
        which = {"stage": cell.stage, "precision": cell.precision, "checkpointing": cell.checkpointing}
        said["most"] = {**which, "rows": rows, "least_gpus": least}
        most = "at least" if rows == MOST else "at most"  # more are not tried
        lines += [f"{in_words(cell)}: {most} {count(rows, 'row')} per rank"]
        on = f"at least {count(least, 'GPU')}" if least else "no number of GPUs"
        lines += [f"and with the rows of the table on {on}"]
    if arguments.settings:
        said["settings"] = found.settings()
        for system, text in said["settings"].items():
            lines += [f"\n{system}:\n{text if isinstance(text, str) else json.dumps(text, indent=2)}"] * bool(text)
    say(arguments, said, "\n".join(lines))


def _record(arguments: Arguments) -> None:
    from zerolab.comparison import record

    given = _given(arguments)
    recording = record(**given | {"fingerprints": arguments.out if given["fingerprints"] else None})
    recording.save(arguments.out)
    print(f"{len(recording.events):,} events of {recording.world_size} ranks in {arguments.out}")
