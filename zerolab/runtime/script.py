"""A training script, run as Python itself would: what `-m zerolab.trace` and `-m zerolab.why` have in common."""

import argparse
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path


def parse(parser: argparse.ArgumentParser, arguments: Sequence[str] | None) -> argparse.Namespace:
    """What a parser makes of a command line whose end is a script, or with `-m` a module, and what that gets."""
    parser.add_argument("-m", dest="module", action="store_true", help="SCRIPT is the name of a module")
    parser.add_argument("script", help="what is to be run")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="what it gets")
    options = parser.parse_args(arguments)
    if not options.module and not Path(options.script).is_file():
        parser.error(f"there is no file {options.script!r}; for a module write -m before its name")
    return options


def run(options: argparse.Namespace) -> None:
    """Runs the script or module with what follows it as its arguments."""
    sys.argv = [options.script, *options.arguments]
    if options.module:
        runpy.run_module(options.script, run_name="__main__", alter_sys=True)
    else:
        sys.path[0] = str(Path(options.script).resolve().parent)  # as for a script that Python itself runs
        runpy.run_path(options.script, run_name="__main__")
