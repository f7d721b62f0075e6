"""What commands have in common: how one is added, and where its result goes."""

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from zerolab import files

Arguments = argparse.Namespace
Command = Callable[[Arguments], int | None]
"""Returns its exit status, or None for 0."""

STDOUT = Path("-")
OWN = ("command", "stdout", "json", "out")  # of the command line: its functions in Python do not take them


def add_command(commands: Any, name: str, function: Command, text: str) -> argparse.ArgumentParser:
    """The parser of a new command, which calls `function`."""
    parser: argparse.ArgumentParser = commands.add_parser(name, help=text, description=text)
    parser.set_defaults(command=function)
    return parser


def add_json(parser: argparse.ArgumentParser) -> None:
    """Adds `--json`, whose value `say` heeds."""
    text = "write the result to FILE as JSON; without FILE, print it as JSON"
    parser.add_argument("--json", type=Path, nargs="?", const=STDOUT, metavar="FILE", help=text)


def say(arguments: Arguments, value: Any, text: object) -> None:
    """Prints the text, or the value as JSON where `--json` asks for it."""
    value = files.finite(value)
    if arguments.json == STDOUT:
        print(json.dumps(value, indent=1), file=arguments.stdout)
        return
    if arguments.json:
        files.write_json(arguments.json, value)
    print(text)  # after the file is written, which a closed pipe must not prevent


def check_there(paths: Sequence[Path], remedy: str = "check the name") -> None:
    """Refuses files that do not exist, before the seconds that it takes to import what reads them."""
    for path in paths:
        if not path.exists():
            raise FileNotFoundError(f"{str(path)!r} does not exist: {remedy}")


def check_apart(place: Path, others: Iterable[Path], refusal: str) -> None:
    """Refuses to write over one of the others, in a sentence that has `{}` where the place is named."""
    if place.resolve() in [other.resolve() for other in others]:
        raise ValueError(refusal.format(repr(str(place))))


def is_now(old: str, new: str) -> None:
    """Says that an old form still works."""
    print(f"zerolab: {old} is now {new}; the old form will be removed in the next edition", file=sys.stderr)
