"""Memory that an answer takes outside of torch, where the recorder does not look: numpy arrays, lists, dicts, text."""

import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from types import CodeType, FrameType
from typing import Any

import numpy as np

from zerolab.recording.sources import is_own

NOT_AN_ANSWER = "<frozen", "<string", "<__array"
# There is a look before a line that is new, and before each other but where that would take long.
MANY_REFERENCES, MANY_LOOKS = 1000, 100
REFERENCES_A_LINE = 10


class Outside:
    """The most bytes outside of torch that an answer's variables led to, looked at before each of its lines."""

    def __init__(self, answer: Callable[..., Any]) -> None:
        self.highest = 0
        self._answer = answer
        self._looks, self._pause = 0, 0  # so far, and lines until the next one
        self._known: set[tuple[CodeType, int]] = set()  # lines that were looked at
        self._before, _ = self._held([])

    def on_call(self, frame: FrameType, _event: str, _argument: Any) -> Any:
        """For `sys.settrace`: only the answer's own lines are followed."""
        if frame.f_back is not None and not _is_library(frame.f_back.f_code.co_filename):
            frame.f_back.f_locals  # noqa: B018  as below: `del gradient; optimizer.step()` is one line
        return None if _is_library(frame.f_code.co_filename) else self._on_line

    def _on_line(self, frame: FrameType, _event: str, _argument: Any) -> Any:
        # Up to Python 3.12 a frame keeps the dict that it has once shown, and all in it, until it is asked again: what
        # the answer has deleted would stay.
        frame.f_locals  # noqa: B018
        place = frame.f_code, frame.f_lineno
        self._pause -= 1
        if self._pause > 0 and place in self._known:
            return self._on_line
        self._known.add(place)
        frames, outer = [], frame
        while outer.f_back is not None:
            if not _is_library(outer.f_code.co_filename):
                frames.append(outer)
            outer = outer.f_back
        held, references = self._held(frames)
        self.highest = max(self.highest, held - self._before)
        # A loop over a long list would have it looked through again for each item.
        self._looks += 1
        self._pause = max((references - MANY_REFERENCES) // REFERENCES_A_LINE, self._looks // MANY_LOOKS)
        return self._on_line

    def _held(self, frames: list[FrameType]) -> tuple[int, int]:
        """The bytes that locals, the answer's attributes and its globals lead to; how many references were followed."""
        roots: list[Any] = [value for frame in frames for value in frame.f_locals.values()]
        for function in vars(self._answer).values() if isinstance(self._answer, type) else [self._answer]:
            # Python's own names are the same at each look, and most of what there is.
            names = getattr(function, "__globals__", {}).copy()  # the answer may have threads
            names.pop("__builtins__", None)
            roots += names.values()
            roots += getattr(function, "__dict__", {}).values()
        return _size(roots)


@contextmanager
def memory_outside_of_torch(answer: Callable[..., Any], looks: bool = True) -> Iterator[Outside]:
    """Within it, what the answer holds is watched, if `looks`.

    By tracing, because no allocator knows whose a list or an array is; that takes time for each call in torch, too.
    """
    outside, before = Outside(answer), sys.gettrace()
    if looks:
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
        while isinstance(thing, np.ndarray) and isinstance(thing.base, (np.ndarray, memoryview)):
            thing = getattr(thing.base, "obj", thing.base)  # a view holds all of it, be it an array or bytes
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
    if _is_answers(thing.__class__):
        return sys.getsizeof(thing), getattr(thing, "__dict__", {}).values()
    # Of a library's object no more than it says itself: following it would lead everywhere.
    return 0 if type(thing).__module__.startswith("torch") else sys.getsizeof(thing), ()


@cache
def _is_answers(kind: type) -> bool:
    """Whether the answer has defined a class."""
    file = getattr(sys.modules.get(kind.__module__), "__file__", None)
    return kind.__module__ == "__main__" or bool(file and not _is_library(file))


@cache
def _is_library(filename: str) -> bool:
    return filename.startswith(NOT_AN_ANSWER) or not is_own(filename)
