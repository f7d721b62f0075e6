"""Where a thread is, in a learner's terms: the line of the cell or engine, the phase, and tracebacks to match."""

import contextlib
import functools
import gc
import linecache
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from itertools import accumulate, chain, repeat, takewhile
from operator import attrgetter, call, is_not, methodcaller
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

from zerolab.recording import sources

DEEPEST = 1_000  # frames that are inspected, or shown; inspecting holds the rank's interpreter lock
_RUNTIME = str(Path(__file__).parent) + os.sep
_MACHINERY = (
    str(Path(__file__).parent.parent / "recording") + os.sep,
    str(Path(__file__).parent.parent / "exercises" / "harness") + os.sep,
    contextlib.__file__,
)
_ENGINES = str(Path(__file__).parent.parent / "engines") + os.sep
_COLLECTIVES = f"{_ENGINES}collectives.py"
_DTENSOR = f"torch{os.sep}distributed{os.sep}tensor{os.sep}"  # whose exchanges are autograd functions
_SCHEDULES = f"torch{os.sep}distributed{os.sep}pipelining{os.sep}"  # whose steps are forwards and backwards
# By names that torch, packages on top of it and our engines use; the innermost known one wins.
_PHASES = {"backward": "backward", "forward": "forward", "_call_impl": "forward", "step": "step"}
_SEEN = attrgetter("f_code.co_filename", "f_lineno", "f_code.co_firstlineno", "f_code.co_name", "f_lasti")
_back: Callable[[FrameType | None, FrameType | None], FrameType | None] = vars(FrameType)["f_back"].__get__

Line = tuple[str, int, str]
"""File name, line and function of a frame."""


def look(thread: int) -> tuple[int, list[Line]]:
    """A number that changes whenever a thread moves, even by one instruction; and its stack, the innermost frame first.

    A frame of a running thread is safe to read only while the interpreter lock is held: on CPython 3.11 `f_back`
    creates an object, that may run the garbage collector, and a finalizer may let the watched thread go on and return
    from that very frame. faulthandler, which creates no objects, walks the states of all threads, also of one that
    native code is adding at that moment, and crashes. So the walk is one call into C, of one thread, with the collector
    disabled.

    Raises LookupError if there is no such thread.
    """
    walk = _walk(thread)
    if sys.version_info < (3, 12) and gc.isenabled():
        try:
            _, frames = map(call, (gc.disable, walk))  # in one instruction, so that it cannot be enabled in between
        finally:
            gc.enable()
    else:  # since 3.12 the collector does not run within C
        frames = walk()
    if not frames:
        raise LookupError(f"no thread {thread} of this process runs Python")
    # Python has no line for what it does by itself, such as ending a loop: one look in a thousand.
    return hash(tuple(frames)), [(file, line or first, name) for file, line, first, name, _ in frames]


def _walk(thread: int) -> Callable[[], list[tuple[Any, ...]]]:
    """A callable that returns a thread's frames as plain values; it keeps no frame, nor anything in one."""
    innermost = map(methodcaller("get", thread), map(call, [sys._current_frames]))
    # Each element is `f_back` of the one before; the `None`s are only there to be counted.
    first: Iterator[FrameType | None] = chain(innermost, repeat(None, DEEPEST - 1))
    frames = accumulate(first, _back)
    return functools.partial(list, map(_SEEN, takewhile(functools.partial(is_not, None), frames)))


def describe(lines: list[Line]) -> tuple[str, str]:
    """Phase and source line of a stack, for example `("backward", "cell [3], line 5: loss.backward()")`."""
    phase = next((found for filename, _, function in lines if (found := _phase(filename, function))), "")
    return phase, next((place(filename, line) for filename, line, _ in lines if is_a_lesson(filename)), "")


def locate(innermost: FrameType | None) -> tuple[str, str, int]:
    """Phase, file and line of the innermost line of a lesson, in some microseconds: each collective asks for it."""
    phase, filename, line = "", "", 0
    while innermost is not None and not (filename and phase):
        code = innermost.f_code
        if not filename and is_a_lesson(code.co_filename):
            # No line while Python executes what no line asked for, the end of a loop or of a generator.
            filename, line = code.co_filename, innermost.f_lineno or code.co_firstlineno
        if not phase:
            phase = _phase(code.co_filename, code.co_name)
        innermost = innermost.f_back
    return phase, filename, line


def _phase(filename: str, function: str) -> str:
    """The phase that a function carries out; a learner's own may have any name, and says nothing."""
    if function not in _PHASES or sources.is_own(filename) or _DTENSOR in filename or _SCHEDULES in filename:
        return ""
    return _PHASES[function]


def describe_error(trace: TracebackType | None) -> tuple[str, str]:
    """Phase and the innermost line of a lesson that an exception passed through.

    Where an engine raises it, or cannot be made, that is the learner's line that asked for it, if there is one: it says
    more than the one that raises.
    """
    passed = [(f.f_code.co_filename, line, f.f_code.co_name) for f, line in traceback.walk_tb(trace)][::-1]
    phase, where = describe(passed)
    ours = [name for file, _, name in passed if file.startswith(_ENGINES)]
    refused = "__init__" in ours or (ours and passed[0][0].startswith(_ENGINES))
    own = (place(file, line) for file, line, _ in passed if refused and is_a_lesson(file) and sources.is_own(file))
    return phase, next(own, where)


def format_error(error: BaseException) -> str:
    """The traceback of an error as Python prints it, with labels for files and without the runtime's own frames."""
    report = traceback.TracebackException.from_exception(error)
    # Causes and contexts, too.
    parts: list[traceback.TracebackException | None] = [report]
    while parts:
        part = parts.pop()
        if part is not None:
            part.stack[:] = _readable(part.stack)
            parts += [part.__cause__, part.__context__, *(part.exceptions or ())]
    return "".join(report.format()).rstrip()


def format_frames(trace: TracebackType | None) -> str:
    """The frames that an exception passed through, without those that call, record and check a learner's code."""
    passed = traceback.StackSummary.extract(traceback.walk_tb(trace))
    passed[:] = _readable([frame for frame in passed if not frame.filename.startswith(_MACHINERY)])
    return "".join(passed.format()).rstrip()


def _readable(frames: list[traceback.FrameSummary]) -> list[traceback.FrameSummary]:
    """The frames that are not the runtime's own, with labels for files, and without the middle of a very deep stack."""
    kept = [frame for frame in frames if not is_runtime(frame.filename)]
    left_out = len(kept) - DEEPEST
    if left_out > 0:  # formatting a hundred thousand frames takes seconds
        gap = traceback.FrameSummary(f"... {left_out:,} frames are left out ...", 0, "...", lookup_line=False, line="")
        kept[DEEPEST // 2 : -(DEEPEST // 2)] = [gap]
    for frame in kept:
        frame.filename = label(frame.filename)
    return kept


def label(filename: str) -> str:
    """`cell [3]` for a cell, else the path below the folder that Python imports it from: never an absolute path."""
    return sources.LABELS.get(filename) or _short(filename)


def is_runtime(filename: str) -> bool:
    """Whether a frame is the runtime's own."""
    return filename.startswith((_RUNTIME, "<string>"))


@functools.lru_cache(maxsize=4096)  # it asks the file system
def is_a_lesson(filename: str) -> bool:
    """Whether a line in this file says what the rank is doing: a learner's file, or an engine's."""
    return filename != _COLLECTIVES and sources.label(filename) is not None


def place(filename: str, line: int) -> str:
    """A line of source in words: `cell [3], line 5: loss.backward()`."""
    text = linecache.getline(filename, line).strip()
    return f"{label(filename)}, line {line}" + (f": {text}" if text else "")


@functools.lru_cache(maxsize=1024)
def _short(filename: str) -> str:
    homes = [home.rstrip("/") + "/" for home in sys.path if home and isinstance(home, str)]
    short = filename.removeprefix(max((home for home in homes if filename.startswith(home)), key=len, default=""))
    return short.encode(errors="backslashreplace").decode()  # a name that is no UTF-8 could not be shown
