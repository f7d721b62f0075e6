"""A training script, run as Python itself would: what `-m zerolab.trace` and `-m zerolab.why` have in common.

Its end is not quite Python's own: see `gloo_at_rest`.
"""

import argparse
import builtins
import gc
import importlib.util
import runpy
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import torch.distributed as dist

from zerolab.recording.patches import replace

LONGEST = 20.0  # seconds that gloo's threads are waited for, on however busy a machine
LOCAL_RANK = "--local_rank", "--local-rank"
_TELLING = "State:", "voluntary_ctxt_switches:", "nonvoluntary_ctxt_switches:"
_RESTS = "State:\tS (sleeping)"


def parse(parser: argparse.ArgumentParser, arguments: Sequence[str] | None) -> argparse.Namespace:
    """What a parser makes of a command line whose end is a script, or with `-m` a module, and what that gets."""
    parser.add_argument("-m", dest="module", action="store_true", help="SCRIPT is the name of a module")
    # Launchers put it before everything else, DeepSpeed's as the first, and the script is to get it.
    for spelling in LOCAL_RANK:
        parser.add_argument(spelling, dest=spelling, help=argparse.SUPPRESS)
    # Script and arguments in one: between two, argparse would take a `--` for its own.
    parser.add_argument("command", nargs=argparse.PARSER, metavar="script", help="what is to be run, and what it gets")
    options = parser.parse_args(arguments)
    options.script, *options.arguments = options.command[options.command[0] == "--" :]
    told = {spelling: vars(options)[spelling] for spelling in LOCAL_RANK}
    options.arguments[:0] = [f"{spelling}={rank}" for spelling, rank in told.items() if rank is not None]
    if not options.module and not Path(options.script).is_file():
        parser.error(f"there is no file {options.script!r}; for a module write -m before its name")
    return options


def run(options: argparse.Namespace) -> None:
    """Runs the script or module with what follows it as its arguments.

    `__main__` is the script's from then on: what it leaves to threads and to the end of Python may ask for it.
    """
    gc.freeze()  # torch's half a million objects, which no collection needs to look through from here on
    sys.argv = [options.script, *options.arguments]
    main = ModuleType("__main__")
    vars(main)["__builtins__"] = builtins  # the module itself: Python gives others its dictionary
    with gloo_at_rest():
        if options.module:
            spec, code = _module(options.script)
            sys.argv[0] = spec.origin or options.script
            vars(main).update(__spec__=spec, __loader__=spec.loader, __package__=spec.parent)
            vars(main).update(__file__=spec.origin, __cached__=spec.cached)
        else:
            path = Path(options.script).absolute()  # as for a script that Python itself runs
            sys.path[0] = str(path.resolve().parent)
            source = path.read_bytes()
            if b"\0" in source:  # it is an archive, or compiled
                runpy.run_path(options.script, run_name="__main__")
                return
            code = compile(source, path, "exec", dont_inherit=True)
            vars(main).update(__loader__=SourceFileLoader("__main__", str(path)), __file__=str(path), __cached__=None)
        sys.modules["__main__"] = main
        exec(code, vars(main))  # noqa: S102  (it is what the person asked for)


def _module(name: str) -> tuple[ModuleSpec, CodeType]:
    """Where a module lies and its code; of a package those of its `__main__`. Without one, ends with a sentence."""
    try:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.submodule_search_locations is not None:
            spec = importlib.util.find_spec(f"{name}.__main__")
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):  # one that its package imports
            raise
        spec = None
    get_code = getattr(spec and spec.loader, "get_code", None)  # a zip's loader is no `InspectLoader`
    code = get_code(spec.name) if spec is not None and get_code is not None else None
    if spec is None or code is None:
        sys.exit(f"there is no module {name!r} that could be run: check the name, and the folder this is started in")
    return spec, code


@contextmanager
def gloo_at_rest() -> Iterator[None]:
    """Around a script: gloo's threads have nothing to do when it destroys its process group, nor when Python ends.

    Such a thread lets go of a collective's tensors and of torch's state only after the wait for it has returned, and
    needs the GIL for that. One that asks for the GIL while Python ends is ended within torch's code, which is not
    prepared for it: "terminate called without an active exception". And a DDP model that outlives its process group
    waits for the group's threads when it is freed, with the GIL held.
    """
    with replace([dist, dist.distributed_c10d], "destroy_process_group", _destroy):
        try:
            yield
        finally:
            let_gloo_rest()


def _destroy(original: Callable[..., None], *arguments: Any, **keywords: Any) -> None:
    let_gloo_rest()
    original(*arguments, **keywords)


def let_gloo_rest() -> None:
    """Waits until gloo's threads have nothing to do; outside of Linux it cannot tell, and does not wait."""
    before: dict[str, list[str]] = {}
    end = time.monotonic() + LONGEST
    while (now := _gloo_threads()) != before or any(state != _RESTS for state, *_ in now.values()):
        if time.monotonic() > end:
            return
        before = now
        time.sleep(0.001)  # without the GIL, which one of them may be waiting for


def _gloo_threads() -> dict[str, list[str]]:
    """Of each its state, and how often Linux has switched to it: as before if it has rested all the time."""
    found = {}
    for thread in Path("/proc/self/task").glob("*/status"):
        with suppress(OSError):  # it has ended
            name, *lines = thread.read_text().splitlines()
            if name == "Name:\tpt_gloo_runloop":
                found[thread.parent.name] = [line for line in lines if line.startswith(_TELLING)]
    return found
