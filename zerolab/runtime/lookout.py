"""Where another thread of this process is, read in one go while that thread cannot move.

A frame of a running thread is safe to read only while the interpreter lock is held: on CPython 3.11 `f_back` creates an
object, that may run the garbage collector, and a finalizer may let the watched thread go on and return from that very
frame. faulthandler, which creates no objects, walks the states of all threads, also of one that native code is adding
at that moment, and crashes. So the walk is one call into C, of one thread, with the collector disabled.
"""

import gc
import sys
from collections.abc import Callable, Iterator
from functools import partial
from itertools import accumulate, chain, repeat, takewhile
from operator import attrgetter, call, is_not, methodcaller
from types import FrameType
from typing import Any

from zerolab.runtime.stack import DEEPEST, Line

_SEEN = attrgetter("f_code.co_filename", "f_lineno", "f_code.co_firstlineno", "f_code.co_name", "f_lasti")
_back: Callable[[FrameType | None, FrameType | None], FrameType | None] = vars(FrameType)["f_back"].__get__


def look(thread: int) -> tuple[int, list[Line]]:
    """A number that changes whenever a thread moves, even by one instruction; and its stack, the innermost frame first.

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
    return partial(list, map(_SEEN, takewhile(partial(is_not, None), frames)))
