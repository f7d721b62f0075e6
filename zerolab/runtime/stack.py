"""Where a thread stands, in a learner's words: the line of the cell or engine, the phase, and tracebacks to match."""

import functools
import linecache
import os
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import FrameType, TracebackType

from zerolab.recording import sources

DEEPEST = 1_000  # frames that are looked at, or told; whoever looks holds the interpreter of the rank meanwhile
_RUNTIME = str(Path(__file__).parent) + os.sep
_COLLECTIVES = str(Path(__file__).parent.parent / "engines" / "collectives.py")
# By names that torch and our engines use; the innermost that is known wins.
_PHASES = {"backward": "backward", "forward": "forward", "_call_impl": "forward", "step": "step"}


Line = tuple[str, int, str]
"""File name, line and function of a frame."""


def lines(innermost: FrameType | None) -> list[Line]:
    """Where each frame of a running stack stands, the innermost first; plain values, so that no frame need be kept."""
    # A frame that is kept keeps its function's variables: a rank's tensors would live for as long as the answer.
    return [(frame.f_code.co_filename, _line_of(frame), frame.f_code.co_name) for frame in _frames(innermost)]


def describe(lines: list[Line]) -> tuple[str, str]:
    """Phase and source line of a stack, for example `("backward", "cell [3], line 5: loss.backward()")`."""
    phase = next((_PHASES[function] for _, _, function in lines if function in _PHASES), "")
    return phase, next((place(filename, line) for filename, line, _ in lines if is_a_lesson(filename)), "")


def locate(innermost: FrameType | None) -> tuple[str, str, int]:
    """Phase, file and line of the innermost line of a lesson, in some microseconds: it is asked at each collective."""
    phase, filename, line = "", "", 0
    while innermost is not None and not (filename and phase):
        code = innermost.f_code
        if not filename and is_a_lesson(code.co_filename):
            filename, line = code.co_filename, _line_of(innermost)
        if not phase:
            phase = _PHASES.get(code.co_name, "")
        innermost = innermost.f_back
    return phase, filename, line


def describe_error(trace: TracebackType | None) -> tuple[str, str]:
    """Phase and the innermost line of a lesson that an exception passed through."""
    passed = [(f.f_code.co_filename, line, f.f_code.co_name) for f, line in traceback.walk_tb(trace)]
    return describe(passed[::-1])


def format_error(error: BaseException) -> str:
    """The traceback of an error as Python prints it, with labels for files and without the runtime's own frames."""
    report = traceback.TracebackException.from_exception(error)
    # Causes and contexts too: an error that was raised while another was handled shows both.
    parts: list[traceback.TracebackException | None] = [report]
    while parts:
        part = parts.pop()
        if part is not None:
            part.stack[:] = _readable(part.stack)
            for frame in part.stack:
                frame.filename = label(frame.filename)
            parts += [part.__cause__, part.__context__, *(part.exceptions or ())]
    return "".join(report.format()).rstrip()


def _readable(frames: list[traceback.FrameSummary]) -> list[traceback.FrameSummary]:
    """The frames that are not the runtime's own, without the middle of a stack that nobody will read to its end."""
    kept = [frame for frame in frames if not is_runtime(frame.filename)]
    left_out = len(kept) - DEEPEST
    if left_out > 0:  # to put a hundred thousand frames into words takes seconds, while the others wait for an answer
        gap = traceback.FrameSummary(f"... {left_out:,} frames are left out ...", 0, "...", lookup_line=False, line="")
        kept[DEEPEST // 2 : -(DEEPEST // 2)] = [gap]
    return kept


def label(filename: str) -> str:
    """`cell [3]` for a cell, else the path from the folder that Python imports it from: never this machine's paths."""
    # Cells first: their file names lie in /tmp and say nothing to anybody.
    return sources.LABELS.get(filename) or _short(filename)


def is_runtime(filename: str) -> bool:
    """Whether a frame is the runtime's own, of no interest to a learner."""
    return filename.startswith((_RUNTIME, "<string>"))


@functools.lru_cache(maxsize=4096)  # the file system is asked, and a file stays what it is
def is_a_lesson(filename: str) -> bool:
    """Whether a line in this file says what the rank is doing: a learner's file, or an engine's."""
    return filename != _COLLECTIVES and sources.label(filename) is not None


def place(filename: str, line: int) -> str:
    """A line of source in words: `cell [3], line 5: loss.backward()`."""
    text = linecache.getline(filename, line).strip()
    return f"{label(filename)}, line {line}" + (f": {text}" if text else "")


@functools.lru_cache(maxsize=1024)
def _short(filename: str) -> str:
    homes = [home.rstrip("/") + "/" for home in sys.path if home]
    return filename.removeprefix(max((home for home in homes if filename.startswith(home)), key=len, default=""))


def _line_of(frame: FrameType) -> int:
    # None while Python executes what no line asked for, the end of a loop or of a generator: one look in a thousand.
    return frame.f_lineno or frame.f_code.co_firstlineno


def _frames(innermost: FrameType | None) -> Iterator[FrameType]:
    """From the innermost frame outwards, so far as it matters: a recursion without end has millions of them."""
    for _ in range(DEEPEST):
        if innermost is None:
            return
        yield innermost
        innermost = innermost.f_back
