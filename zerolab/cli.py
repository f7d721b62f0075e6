"""The command line: `zerolab lab`, `doctor`, `compare`, `simulate`, `fit`, `record`, `play`, `open`, `why`, `diff` and more.

Wrong use gets one sentence on stderr and exit status 2; a file is written whole or not at all. A command takes what its
function takes in Python, by the same names. Everywhere, `--json` prints the result as JSON, or writes it into a file,
and `--out` names the file for what the command makes: a recording, or a page. Heavy modules are imported by the command
that needs them, so `zerolab --help` does not wait for torch.
"""

import argparse
import ast
import json
import os
import sys
import webbrowser
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from zerolab import __version__, catalog, files, theory
from zerolab.names import unknown
from zerolab.runtime.waiting import waiting

Arguments = argparse.Namespace
Command = Callable[[Arguments], int | None]
"""Returns its exit status, or None for 0."""

STDOUT = Path("-")
OTHERS = "or another system's: torch-ddp, torch-zero1, fsdp1, fsdp2, hsdp, deepspeed-0 to deepspeed-3"


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns the exit status: 0, 2 after wrong use or a failed rank, 130 after Ctrl-C.

    `doctor` returns 1 if something is missing that every lesson needs, and `diff` if two runs part.
    """
    parsed = _parse(sys.argv[1:] if arguments is None else arguments)
    command: Command = parsed.command
    try:
        for path in (getattr(parsed, "json", None), getattr(parsed, "out", None)):
            if path not in (None, STDOUT):
                files.check_place(path)  # before minutes of work, not after
        parsed.stdout = sys.stdout
        # stdout is for the JSON, which another program reads; what ranks print meanwhile goes to stderr.
        with redirect_stdout(sys.stderr if getattr(parsed, "json", None) == STDOUT else sys.stdout):
            return command(parsed) or 0
    # The package's messages on wrong use contain the remedy; a traceback would only hide it.
    except (ValueError, TypeError, RuntimeError, OSError, ImportError) as error:
        print(f"zerolab: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("zerolab: stopped", file=sys.stderr)
        return 130  # as a shell reports a program that Ctrl-C has stopped


def _parse(arguments: Sequence[str]) -> Arguments:
    parser = _parser()
    (commands,) = (action.choices for action in parser._actions if isinstance(action.choices, dict))  # noqa: SLF001
    # argparse lists what there is, but does not guess what was meant.
    if arguments and not arguments[0].startswith("-") and arguments[0] not in commands:
        parser.exit(2, f"zerolab: {unknown('command', arguments[0], commands)}\n")
    parsed, rest = parser.parse_known_args(arguments)
    if rest:  # argparse itself would print what `zerolab` takes, not the command
        commands[arguments[0]].error(f"unrecognized arguments: {' '.join(rest)}")
    return parsed


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="zerolab", description="Real ranks run ZeRO; what they did is replayed.")
    parser.add_argument("--version", action="version", version=f"zerolab {__version__}")
    commands = parser.add_subparsers(required=True, metavar="command")
    lab = _command(commands, "lab", _lab, "open JupyterLab at the first lesson, in work/")
    lab.add_argument("--port", type=int, default=8888, help="the first port to try (default: 8888)")
    lab.add_argument("--no-browser", action="store_true", help="only print the address")
    doctor = _command(commands, "doctor", _doctor, "say what this box has, and what is missing")
    _add_json(doctor)
    doctor.add_argument("--lessons", action="store_true", help="run every lesson from top to bottom; takes minutes")
    _add_runs(commands)
    play = _command(commands, "play", _play, "write a recording's page and open it")
    play.add_argument("recording", type=Path, help="a file that `zerolab record` or Recording.save wrote")
    play.add_argument("--out", type=Path, metavar="FILE", help="the page (default: beside the recording, as .html)")
    play.add_argument("--no-open", action="store_true", help="only write the page")
    opened = _command(commands, "open", _open, "show what torch's own tools have written: traces, dumps, snapshots")
    kinds = "traces of torch.profiler, dumps of the flight recorder, memory snapshots: one of each rank"
    opened.add_argument("files", nargs="+", type=Path, metavar="FILE", help=kinds)
    opened.add_argument("--out", type=Path, metavar="FILE", help="where to keep it as a recording (JSON)")
    opened.add_argument("--html", type=Path, metavar="FILE", help="the page (default: beside the first file, as .html)")
    opened.add_argument("--no-open", action="store_true", help="write no page but the one that --html names")
    why = _command(commands, "why", _why, "say which rank and line a hang comes from, by files that were left of it")
    what = "the folder that `torchrun ... -m zerolab.why train.py` wrote; or dumps of the flight recorder, all ranks'"
    why.add_argument("files", nargs="+", type=Path, metavar="FILE", help=what)
    _add_json(why)
    diff = _command(commands, "diff", _diff, "say where two runs of the same training part, and why")
    fingerprints = "a recording made with --fingerprints, or the folder beside it: "
    diff.add_argument("good", type=Path, metavar="GOOD", help=f"{fingerprints}the run that is right")
    diff.add_argument(
        "bad", type=Path, metavar="BAD", help="the same of the other; stage and number of ranks may differ"
    )
    reset = _command(commands, "reset", _reset, "restore a lesson, yours kept as .bak; or forget your progress")
    reset.add_argument("which", help="the beginning of a lesson's name, such as 04; or all; or progress")
    progress = _command(commands, "progress", _progress, "list the exercises and which of them are solved")
    _add_json(progress)
    progress.add_argument("--reset", action="store_true", help=argparse.SUPPRESS)
    progress.add_argument("files", nargs="*", type=Path, help="progress files of a class: how many passed what")
    return parser


def _add_runs(commands: Any) -> None:
    """The commands that train, or simulate it."""
    compare = _command(commands, "compare", _compare, "train under several stages; measured bytes beside the formula")
    _add_stages(compare, f", {OTHERS}")
    _add_training(compare, model="gpt-10m", steps=5)
    simulate = _command(commands, "simulate", _simulate, "run the engines on a fake rank of N, at any size")
    _add_stages(simulate, "")
    _add_size(simulate)
    simulate.add_argument(
        "--model", default="7b", help=f"one of {', '.join(catalog.ARCHITECTURES)} (default: %(default)s)"
    )
    simulate.add_argument("--rows", type=int, default=1, help="sequences a rank (default: 1)")
    simulate.add_argument("--length", type=int, help="tokens a sequence (default: the model's context)")
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
    record = _command(commands, "record", _record, "record a training under one stage")
    record.add_argument("--stage", required=True, help=f"one of {', '.join(theory.STAGES)}, {OTHERS}")
    _add_training(record, model="gpt-tiny", steps=3)
    record.add_argument("--out", type=Path, required=True, metavar="FILE", help="where the recording goes (JSON)")
    record.add_argument("--times-only", action="store_true", help="no bytes of memory, and hardly slower")


def _add_fit(commands: Any) -> None:
    fit = _command(commands, "fit", _fit, "say what your own model needs of each GPU, before you run it")
    what = (
        "train.py:make_model (a function that makes the model, or the model), or a Hugging Face config.json or folder"
    )
    fit.add_argument("model", help=what)
    fit.add_argument("--world-size", type=int, default=8, metavar="N", help="number of GPUs (default: 8)")
    fit.add_argument("--gpu", default="h100", help=f"one of {', '.join(catalog.GPUS)} (default: %(default)s)")
    fit.add_argument("--memory", type=float, metavar="B", help="bytes of a GPU, such as 80e9 (default: the GPU's)")
    fit.add_argument("--stages", help=f"of {', '.join(theory.STAGES)}, fsdp2, hsdp, joined by commas (default: all)")
    fit.add_argument("--precision", default="bf16", help="fp32, bf16 or fp16, or several (default: bf16)")
    again = "none, selective, block, joined by commas (default: all)"
    fit.add_argument("--checkpointing", default="none,selective,block", help=again)
    batch = "one rank's batch: a shape such as 8x3x224x224 or 4x512:int64, or a function of the file that makes it"
    fit.add_argument("--inputs", help=f"{batch} (default: tokens, rows x length)")
    fit.add_argument("--rows", type=int, help="sequences a rank (default: those of the inputs, or 1)")
    fit.add_argument("--length", type=int, help="tokens a sequence (default: those of the inputs, or 2048 at most)")
    fit.add_argument("--units", help="the class of the blocks, such as LlamaDecoderLayer (default: what is repeated)")
    fit.add_argument("--most", action="store_true", help="also search the most rows that fit, and the fewest GPUs")
    fit.add_argument("--settings", action="store_true", help="also print the settings of the first row that fits")
    _add_json(fit)


def _command(commands: Any, name: str, function: Command, text: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(name, help=text, description=text)
    parser.set_defaults(command=function)
    return parser


def _add_json(parser: argparse.ArgumentParser) -> None:
    text = "write the result to FILE as JSON; without FILE, print it as JSON"
    parser.add_argument("--json", type=Path, nargs="?", const=STDOUT, metavar="FILE", help=text)


def _say(arguments: Arguments, value: Any, text: object) -> None:
    """Prints the text, or the value as JSON where `--json` asks for it."""
    if arguments.json == STDOUT:
        print(json.dumps(value, indent=1), file=arguments.stdout)
        return
    if arguments.json:
        files.write_json(arguments.json, value)
    print(text)  # after the file is written, which a closed pipe must not prevent


def _keep(recordings: Any, arguments: Arguments) -> None:
    """Saves the recordings if `--out` names a file."""
    if arguments.out:
        paths = recordings.save(arguments.out)
        # To stderr: the rows on stdout may go to another program.
        print(f"recorded in {', '.join(map(str, paths))}; zerolab play shows one", file=sys.stderr)


def _add_stages(parser: argparse.ArgumentParser, others: str) -> None:
    stages = ",".join(theory.STAGES)
    parser.add_argument("--stages", default=stages, help=f"joined by commas (default: %(default)s){others}")
    _add_json(parser)
    where = "the recording; those of several stages are written beside it, run.json as run-zero3.json"
    parser.add_argument("--out", type=Path, metavar="FILE", help=where)


def _add_size(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--world-size", type=int, default=4, metavar="N", help="number of ranks (default: 4)")
    parser.add_argument("--precision", default="fp32", help="fp32, bf16 or fp16 (default: fp32)")


def _add_training(parser: argparse.ArgumentParser, model: str, steps: int) -> None:
    _add_size(parser)
    parser.add_argument("--model", default=model, help="mlp-odd, mlp-bench, gpt-tiny or gpt-10m (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=steps, help="training steps, at least 2 (default: %(default)s)")
    # No choices=: the package's own message also says what to do.
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda (default: auto)")
    text = "of the engine, such as overlap=False prefetch=2"
    parser.add_argument("--options", nargs="+", metavar="NAME=VALUE", help=text)


def _training(arguments: Arguments) -> dict[str, Any]:
    """What `compare` and `record` take alike."""
    same = {name: getattr(arguments, name) for name in ("world_size", "model", "steps", "precision", "device")}
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
    _say(arguments, comparison.rows, comparison.table(times=True))


def _simulate(arguments: Arguments) -> None:
    from zerolab.simulation.run import simulate

    options = ("precision", "rows", "length", "checkpointing", "gpu", "network", "gpus_per_node", "utilisation")
    chosen = {name: getattr(arguments, name) for name in options}
    chosen["bandwidth"] = arguments.bandwidth
    if arguments.bandwidth and 0 < arguments.bandwidth < 1e6:
        _is_now("--bandwidth in GB a second", f"--bandwidth {arguments.bandwidth:g}e9, in bytes as in Python,")
        chosen["bandwidth"] *= 1e9
    simulation = simulate(arguments.stages, arguments.world_size, arguments.model, **chosen)
    _keep(simulation, arguments)
    seconds = f"GB is 1e9 bytes. Seconds are modelled: {simulation.hardware.describe()}"
    _say(arguments, simulation.rows, f"{simulation.table(times=True)}\n{seconds}")


def _fit(arguments: Arguments) -> None:
    from zerolab.simulation import own
    from zerolab.simulation.fit import fit

    names = ("world_size", "gpu", "memory", "stages", "precision", "rows", "length", "units")
    chosen = {name: getattr(arguments, name) for name in names}
    chosen["checkpointing"] = [each.strip() for each in arguments.checkpointing.split(",")]
    chosen["inputs"] = own.inputs_of(arguments.inputs, arguments.model)
    found = fit(arguments.model, **chosen)
    lines = [str(found), found.answer]
    if arguments.most:
        cell = found.cell()
        lines += [f"{cell.stage}, checkpointing {cell.checkpointing}: at most {found.most()} rows a rank"]
        lines += [f"and with as many rows as above at least {found.least_gpus()} GPUs"]
    if arguments.settings:
        lines += [f"\n{system}:\n{_text_of(text)}" for system, text in found.settings().items() if text]
    _say(arguments, found.rows, "\n".join(lines))


def _text_of(settings: Any) -> str:
    return settings if isinstance(settings, str) else json.dumps(settings, indent=2)


def _record(arguments: Arguments) -> None:
    from zerolab.comparison import record

    recording = record(arguments.stage, **_training(arguments), times_only=arguments.times_only)
    recording.save(arguments.out)
    print(f"{len(recording.events):,} events of {recording.world_size} ranks in {arguments.out}")


def _play(arguments: Arguments) -> None:
    from zerolab.recording.recording import Recording

    recording = Recording.load(arguments.recording)
    page: Path = arguments.out or arguments.recording.with_suffix(".html")
    if page.resolve() == arguments.recording.resolve():
        raise ValueError(f"the page would take the place of the recording {str(page)!r}: name another by --out")
    _show(recording, page, opens=not arguments.no_open)


def _show(recording: Any, page: Path, *, opens: bool) -> None:
    """Writes a recording's page, and opens it where there is a display."""
    from zerolab.lessons.workspace import has_display

    recording.to_html(page)
    # Over ssh, a browser would open where nobody sees it, or be a text browser in the terminal.
    seen = opens and has_display(os.environ)
    print(f"the page is {page}" + ("" if seen or not opens else "; there is no display to open it on"))
    if seen:
        webbrowser.open(page.resolve().as_uri())


def _open(arguments: Arguments) -> None:
    from zerolab.foreign import describe, open_files

    first: Path = arguments.files[0]
    page: Path = arguments.html or first.with_name(f"{first.name.partition('.')[0]}.html")
    if arguments.html or not arguments.no_open:
        files.check_place(page)
    recording = open_files(arguments.files)
    print(describe(recording))
    if arguments.out:
        recording.save(arguments.out)
        print(f"kept in {arguments.out}; zerolab play shows it")
    if arguments.html or not arguments.no_open:
        _show(recording, page, opens=not arguments.no_open)


def _why(arguments: Arguments) -> None:
    from zerolab.runtime.screen import printable
    from zerolab.why.dumps import explain

    found = explain(arguments.files)
    _say(arguments, found.as_json, printable(found.text))  # names of files in a dump may hold anything


def _diff(arguments: Arguments) -> int:
    from zerolab.difference.compare import compare

    result = compare(arguments.good, arguments.bad)
    print(result)
    return 1 if result.parting else 0


def _lab(arguments: Arguments) -> None:
    from zerolab.lessons.workspace import lab

    # None: if there is a display.
    lab(port=arguments.port, browser=False if arguments.no_browser else None)


def _reset(arguments: Arguments) -> None:
    from zerolab.lessons import progress, workspace

    if arguments.which == "progress":
        print("progress forgotten" if progress.reset() else "there was no progress to forget")
        return
    for restored, kept in workspace.reset(arguments.which):
        print(f"{restored} is as it was published" + (f"; yours is kept as {kept}" if kept else ""))
    print("If JupyterLab has it open, choose Revert when it asks.")


def _doctor(arguments: Arguments) -> int:
    from zerolab import doctor
    from zerolab.lessons.preflight import run_lessons

    if arguments.lessons:
        return 0 if run_lessons() else 1
    with waiting("looking at this box, and starting four ranks on it"):
        report = doctor.examine()
    _say(arguments, report, doctor.describe(report))
    # A workshop host's script can stop here, before thirty people arrive.
    return 0 if report["ok"] else 1


def _progress(arguments: Arguments) -> None:
    from zerolab.exercises.harness import solved
    from zerolab.lessons import progress

    if arguments.reset:
        _is_now("progress --reset", "reset progress")
        _reset(argparse.Namespace(which="progress"))
    elif arguments.files and arguments.json:
        # `--json` would take the first of the class's files as the one to write.
        raise ValueError("--json is for your own progress, and files are a class's: ask for one of them")
    elif arguments.files:
        print(solved.of_class(arguments.files))
    else:
        _say(arguments, progress.read(), solved.summary())


def _is_now(old: str, new: str) -> None:
    print(f"zerolab: {old} is {new} now, and goes with the next edition", file=sys.stderr)
