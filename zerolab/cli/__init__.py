"""The command line, `zerolab COMMAND`: around the lessons, trainings, and what runs have left.

Wrong use gets one sentence on stderr and exit status 2; a file is written whole or not at all. A command takes what its
function takes in Python, by the same names. Everywhere, `--json` prints the result as JSON, or writes it into a file,
and `--out` names the file for what the command makes: a recording, or a page. Heavy modules are imported by the command
that needs them, so `zerolab --help` does not wait for torch.
"""

import argparse
import atexit
import gc
import io
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path

from zerolab import __version__, files
from zerolab.cli import left, lessons, training
from zerolab.cli.shared import STDOUT, Arguments, Command, check_apart
from zerolab.names import unknown


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns the exit status: 0, 2 after wrong use or a failed rank, 130 after Ctrl-C.

    It is 141 if what reads the output has gone. `doctor` returns 1 if something is missing that every lesson needs, and
    `diff` if two runs part.
    """
    for name in ("stdout", "stderr"):  # a service may have closed them, and the ranks' pipes would take their places
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115  (until the end)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # as stderr: lines of a script may hold any letters
    parsed = _parse(sys.argv[1:] if arguments is None else arguments)
    atexit.register(gc.freeze)  # else Python's end looks through torch's half a million objects, several times
    command: Command = parsed.command
    try:
        _check_places(parsed)  # before minutes of work, not after
        parsed.stdout = sys.stdout
        # stdout is for the JSON, which another program reads; what ranks print meanwhile goes to stderr.
        with redirect_stdout(sys.stderr if getattr(parsed, "json", None) == STDOUT else sys.stdout):
            status = command(parsed) or 0
            parsed.stdout.flush()  # at its end, Python would complain of a reader that has gone
            return status
    except BrokenPipeError:  # as of `zerolab progress | head -1`
        os.dup2(os.open(os.devnull, os.O_WRONLY), parsed.stdout.fileno())
        return 128 + signal.SIGPIPE  # as a shell reports a program that this has ended
    # The package's messages on wrong use contain the remedy; a traceback would only hide it.
    except (ValueError, TypeError, RuntimeError, OSError, ImportError) as error:
        print(f"zerolab: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("zerolab: stopped", file=sys.stderr)
        return 130  # as a shell reports a program that Ctrl-C has stopped


def _check_places(parsed: Arguments) -> None:
    """Refuses files that cannot be written, and one for two things: the second would replace the first."""
    given = {name: getattr(parsed, name, None) for name in ("json", "out")}
    if given["out"] == STDOUT:
        raise ValueError("--out is '-', which only --json takes: name a file")
    places = {name: path for name, path in given.items() if path not in (None, STDOUT)}
    for path in places.values():
        files.check_place(path)
    json = places.get("json")
    if json is None:
        return
    if json.exists() and json.suffix != ".json":
        # Most likely a file to read: `why --json dump-0 dump-1` takes the first for the place of the result.
        raise ValueError(f"--json would overwrite {str(json)!r}: give --json last, or a name that ends in .json")
    out = [path for name, path in places.items() if name == "out"]
    stages = (getattr(parsed, "stages", None) or "").split(",")
    if len(stages) > 1:  # as `save` names them
        out += [path.with_stem(f"{path.stem}-{stage.strip()}") for path in out for stage in stages]
    check_apart(json, out, "--json would overwrite {}, which --out names too: choose another file")


def _parse(arguments: Sequence[str]) -> Arguments:
    parser = _parser()
    (commands,) = (action.choices for action in parser._actions if isinstance(action.choices, dict))  # noqa: SLF001
    # argparse lists what there is, but does not guess what was meant.
    if arguments and not arguments[0].startswith("-") and arguments[0] not in commands:
        parser.exit(2, f"zerolab: {unknown('command', arguments[0], commands)}\n")
    parsed, rest = parser.parse_known_args(arguments)
    if rest:  # argparse itself would print what `zerolab` takes, not the command
        commands.get(arguments[0], parser).error(f"unrecognized arguments: {' '.join(rest)}")
    return parsed


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="zerolab", description="Real ranks run ZeRO; what they did is replayed.")
    parser.add_argument("--version", action="version", version=f"zerolab {__version__}")
    commands = parser.add_subparsers(required=True, metavar="command")
    for room in (lessons, training, left):
        room.add(commands)
    return parser
