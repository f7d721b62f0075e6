"""What a learner's function finds around it on a rank: streams that work, no keyboard, a group that it must not end.

Code that is brought along from a script or a notebook expects to be alone in its process. Here it is a guest: whatever
it does to its surroundings must not keep the next run from working, and what cannot work says so in one sentence.
"""

import contextlib
import ctypes
import functools
import importlib.abc
import importlib.machinery
import io
import os
import sys
import threading
from types import ModuleType
from typing import Any, NoReturn

import torch.distributed as dist

from zerolab.runtime import stack

_exit = os._exit  # as it was before a rank replaced it
NO_KEYBOARD = (
    "a rank has no keyboard: ask in the notebook and send the answer along as an argument; "
    "a debugger that asks (breakpoint, pdb) cannot run on a rank either"
)

DEEPEST_RECURSION = 50_000  # frames; native calls fill a stack of 8 MB before, and kill the rank


def furnish(output: int) -> None:
    """Once in each rank: its streams, its keyboard, its threads' last words, its progress bars, how deep it may go."""
    for fd in (1, 2):
        os.dup2(output, fd)
    for fd, name in ((1, "stdout"), (2, "stderr")):
        _open(fd, name)
    # The descriptor stays /dev/null: programs that the learner starts find an end of input, as they expect.
    sys.stdin = _NoKeyboard()
    threading.excepthook = _last_words_of_a_thread
    sys.meta_path.insert(0, _PlainBars())
    sys.setrecursionlimit = _set_recursion_limit


def tidy(output: int) -> None:
    """Before each run: what the one before it closed is open again, or this one's first print would fail."""
    for fd, name in ((1, "stdout"), (2, "stderr")):
        try:
            os.fstat(fd)
        except OSError:
            with contextlib.suppress(OSError):
                os.dup2(output, fd)
        stream = sys.__dict__[name]
        if stream is None or getattr(stream, "closed", False):
            _open(fd, name)


def flush() -> None:
    """Write out what Python and native code have kept back, as far as their streams are still there."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # closed, or the learner's own and broken: no reason to end a rank
            stream.flush()
    ctypes.CDLL(None).fflush(None)


def keep_the_group() -> None:
    """Have the two calls refused with which a script for torchrun begins and ends: the group is there, and stays."""
    # What the counter has wrapped: the end of a group of some ranks is noted as before.
    end = dist.destroy_process_group

    @functools.wraps(dist.init_process_group)
    def init_process_group(*_: Any, **__: Any) -> NoReturn:
        raise RuntimeError("the ranks have joined their process group already; leave init_process_group out")

    @functools.wraps(end)
    def destroy_process_group(group: Any = None) -> None:
        if group is None or group is dist.group.WORLD:
            raise RuntimeError(
                "the ranks need their process group for the next run; leave destroy_process_group out, "
                "cluster.close() ends it"
            )
        end(group)

    # In both modules: a function that a cell has imported by name arrives as a reference to the inner one.
    for module in (dist, dist.distributed_c10d):
        module.__dict__.update(init_process_group=init_process_group, destroy_process_group=destroy_process_group)


def end_a_fork(error: BaseException | None) -> NoReturn:
    """End a copy of the rank that came back from the function: it would answer the kernel in the rank's name."""
    said = f"{stack.format_error(error)}\n" if error is not None else ""
    print(
        f"{said}a process that this rank had forked came to the end of the function, and is ended there; "
        "fork with multiprocessing, or end it with os._exit(0)",
        file=sys.stderr,
    )
    flush()
    _exit(error is not None)


def _open(fd: int, name: str) -> None:
    sys.__dict__[name] = open(fd, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115


def _set_recursion_limit(limit: int, /, *, python: Any = sys.setrecursionlimit) -> None:
    """As Python's own, up to `DEEPEST_RECURSION`.

    Calls from Python to Python take no stack since 3.11: a recursion without end, and without a limit, would eat the
    memory of everybody on the machine, for minutes, before somebody is killed for it.
    """
    python(min(limit, DEEPEST_RECURSION))


def _last_words_of_a_thread(last: threading.ExceptHookArgs) -> None:
    if last.exc_value is not None and not isinstance(last.exc_value, SystemExit):
        name = last.thread.name if last.thread is not None else "without a name"
        print(f"Exception in thread {name}:\n{stack.format_error(last.exc_value)}", file=sys.stderr)


class _NoKeyboard(io.TextIOBase):
    """Standard input of a rank: nobody is there, and asking says so. Not by an EOFError, which pdb keeps to itself."""

    def readline(self, size: int = -1, /) -> str:  # type: ignore[override]  # never returns, whatever it is given
        """See `io.TextIOBase.readline`."""
        raise RuntimeError(NO_KEYBOARD)

    def read(self, size: int | None = -1, /) -> str:
        """See `io.TextIOBase.read`."""
        raise RuntimeError(NO_KEYBOARD)


class _PlainBars(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """`tqdm.notebook` on a rank: its bars are widgets, which live in the kernel only; the plain ones reach the cell."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> importlib.machinery.ModuleSpec | None:
        """See `importlib.abc.MetaPathFinder.find_spec`."""
        return importlib.machinery.ModuleSpec(name, self) if name == "tqdm.notebook" else None

    def exec_module(self, module: ModuleType) -> None:
        """See `importlib.abc.Loader.exec_module`."""
        std = importlib.import_module("tqdm.std")
        bar, count = std.tqdm, std.trange
        module.__dict__.update(tqdm=bar, tqdm_notebook=bar, trange=count, tnrange=count)
