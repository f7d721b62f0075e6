"""A learner's function's surroundings on a rank: streams that work, no keyboard, a group that it must not end.

Code from a script or a notebook expects to own its process. Here it shares the process with later runs: nothing it does
to its surroundings may break them, and anything that cannot work on a rank says so in one sentence.
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
from collections.abc import Callable
from types import ModuleType
from typing import Any, NoReturn

import torch.distributed as dist

from zerolab.runtime import stack

NO_KEYBOARD = (
    "a rank has no keyboard: ask in the notebook and pass the answer as an argument; "
    "a debugger that asks (breakpoint, pdb) cannot run on a rank either"
)

STREAMS = {1: "stdout", 2: "stderr"}
DEEPEST_RECURSION = 50_000  # frames; native calls would overflow an 8 MB stack earlier, and kill the rank


def set_up(output: int) -> None:
    """Once in each rank: streams, no keyboard, no exec, errors of its threads, progress bars, the recursion limit."""
    for fd, name in STREAMS.items():
        os.dup2(output, fd)
        _open(fd, name)
    # The descriptor stays /dev/null: programs that the learner starts read an end of file.
    sys.stdin = _NoKeyboard()
    threading.excepthook = _print_thread_error
    sys.meta_path.insert(0, _PlainBars())
    sys.setrecursionlimit = _set_recursion_limit
    changed = {name: _only_in_a_fork(os.__dict__[name]) for name in ("execv", "execve")}  # what all of os.exec* call
    for module in (os, sys.modules[os.execv.__module__]):
        module.__dict__.update(changed)


def restore_streams(output: int) -> None:
    """Before each run: open again what the last one closed, or this one's first print would fail."""
    for fd, name in STREAMS.items():
        try:
            os.fstat(fd)
        except OSError:
            with contextlib.suppress(OSError):
                os.dup2(output, fd)
        stream = sys.__dict__[name]
        if stream is None or getattr(stream, "closed", False):
            _open(fd, name)


def flush() -> None:
    """Write out what Python and native code have buffered."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # closed, or the learner's own and broken
            stream.flush()
    ctypes.CDLL(None).fflush(None)


def protect_process_group() -> None:
    """Refuse the two calls with which a script for torchrun begins and ends: the group is there, and stays."""
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


def end_forked_process(error: BaseException | None) -> NoReturn:
    """End a fork of the rank that returned from the function: it would answer the kernel in place of the rank."""
    said = f"{stack.format_error(error)}\n" if error is not None else ""
    print(
        f"{said}a process that this rank had forked reached the end of the function, and is ended there; "
        "fork with multiprocessing, or end it with os._exit(0)",
        file=sys.stderr,
    )
    flush()
    os._exit(error is not None)


def _open(fd: int, name: str) -> None:
    # In UTF-8, which the kernel expects, whatever the user's locale has.
    stream = open(fd, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
    sys.__dict__[name] = stream


def _only_in_a_fork(execute: Callable[..., NoReturn]) -> Callable[..., NoReturn]:
    """As `os.execv` in what a rank forks; itself it would never answer the kernel again."""
    rank = os.getpid()

    @functools.wraps(execute)
    def become(*args: Any, **kwargs: Any) -> NoReturn:
        if os.getpid() == rank:
            raise RuntimeError("a rank cannot become another program (exec); start that one with subprocess.run")
        execute(*args, **kwargs)

    return become


def _set_recursion_limit(limit: int, /, *, python: Any = sys.setrecursionlimit) -> None:
    """As Python's own, up to `DEEPEST_RECURSION`.

    Calls from Python to Python use no C stack since 3.11: infinite recursion without a limit would fill the machine's
    memory for minutes, before the system kills some process.
    """
    python(min(limit, DEEPEST_RECURSION))


def _print_thread_error(last: threading.ExceptHookArgs) -> None:
    if last.exc_value is not None and not isinstance(last.exc_value, SystemExit):
        name = last.thread.name if last.thread is not None else "without a name"
        print(f"Exception in thread {name}:\n{stack.format_error(last.exc_value)}", file=sys.stderr)


class _NoKeyboard(io.TextIOBase):
    """Standard input of a rank: reading it is an error, but not an EOFError, which pdb would swallow."""

    def read(self, size: int | None = -1, /) -> str:
        raise RuntimeError(NO_KEYBOARD)

    readline = read  # type: ignore[assignment]  # never returns, whatever it is given


class _PlainBars(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """`tqdm.notebook` on a rank, with the plain bars: those of a notebook are widgets, which need the kernel."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> importlib.machinery.ModuleSpec | None:
        return importlib.machinery.ModuleSpec(name, self) if name == "tqdm.notebook" else None

    def exec_module(self, module: ModuleType) -> None:
        std = importlib.import_module("tqdm.std")
        bar, count = std.tqdm, std.trange
        module.__dict__.update(tqdm=bar, tqdm_notebook=bar, trange=count, tnrange=count)
