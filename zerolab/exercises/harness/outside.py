"""Memory that an answer takes outside of torch, where the recorder does not look: numpy arrays, lists, dicts, text."""

import sys
import sysconfig
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

NOT_AN_ANSWER = (
    "<frozen",
    "<string",
    "<__array",
    str(Path(__file__).parents[2]),  # this package
    *(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")),
)
MANY = 1000  # references; with fewer all are followed before each line
LOOKS_A_LINE = 10  # how many are followed on average, with more
OPAQUE = ("torch", "zerolab", "builtins")  # whose objects the recorder knows, or which lead everywhere


class Outside:
    """The most bytes outside of torch that an answer's variables led to, looked at before each of its lines."""

    def __init__(self, answer: Callable[..., Any]) -> None:
        self.highest = 0
        self._answer = answer
        self._pause = 0  # lines until the next look
        self._before, _ = self._held([])

    def on_call(self, frame: FrameType, _event: str, _argument: Any) -> Any:
        """For `sys.settrace`: only the answer's own lines are followed."""
        return None if _is_library(frame.f_code.co_filename) else self._on_line

    def _on_line(self, frame: FrameType, _event: str, _argument: Any) -> Any:
        # Up to Python 3.12 a frame keeps the dict that it has once shown, and all in it, until it is asked again: what
        # the answer has deleted would stay.
        frame.f_locals  # noqa: B018
        self._pause -= 1
        if self._pause > 0:
            return self._on_line
        frames, outer = [], frame
        while outer.f_back is not None:
            if not _is_library(outer.f_code.co_filename):
                frames.append(outer)
            outer = outer.f_back
        held, references = self._held(frames)
        self.highest = max(self.highest, held - self._before)
        # A loop over a long list would have it looked through again for each item.
        self._pause = (references - MANY) // LOOKS_A_LINE
        return self._on_line

    def _held(self, frames: list[FrameType]) -> tuple[int, int]:
        """The bytes that locals, the answer's attributes and its globals lead to; how many references were followed."""
        roots: list[Any] = [value for frame in frames for value in frame.f_locals.values()]
        inside = vars(self._answer).values() if isinstance(self._answer, type) else [self._answer]
        for function in inside:
            roots += getattr(function, "__globals__", {}).values()
            roots += getattr(function, "__dict__", {}).values()
        return _size(roots)


@contextmanager
def memory_outside_of_torch(answer: Callable[..., Any]) -> Iterator[Outside]:
    """Within it, what the answer holds is watched. Tracing, because no allocator knows whose a list or an array is."""
    outside, before = Outside(answer), sys.gettrace()
    sys.settrace(outside.on_call)
    try:
        yield outside
    finally:
        sys.settrace(before)


def _size(roots: list[Any]) -> tuple[int, int]:
    """The bytes of what is reached from some objects, tensors and libraries left out; how many references that took."""
    total, references, seen = 0, 0, set()
    while roots:
        thing = roots.pop()
        references += 1
        while isinstance(thing, np.ndarray) and isinstance(thing.base, np.ndarray):
            thing = thing.base  # a view holds all of it
        if id(thing) not in seen:
            seen.add(id(thing))
            size, inside = _look_into(thing)
            total += size
            roots.extend(inside)
    return total, references


def _look_into(thing: Any) -> tuple[int, Iterable[Any]]:
    """An object's own bytes, and what it refers to."""
    if isinstance(thing, (float, int, complex, str, bytes, bytearray)):
        return sys.getsizeof(thing), ()
    if isinstance(thing, np.ndarray):  # one that does not own its memory shows a tensor's
        return thing.nbytes if thing.flags.owndata else 0, thing.tolist() if thing.dtype == object else ()
    if isinstance(thing, dict):
        return sys.getsizeof(thing), [*thing.keys(), *thing.values()]
    if isinstance(thing, (list, tuple, set, frozenset, deque)):
        return sys.getsizeof(thing), thing
    kind = type(thing)
    if kind.__module__.partition(".")[0] in OPAQUE and not hasattr(thing, "training_step"):  # an engine's attributes
        return 0, ()
    return sys.getsizeof(thing), getattr(thing, "__dict__", {}).values()


@cache
def _is_library(filename: str) -> bool:
    return filename.startswith(NOT_AN_ANSWER)
