"""The always-on counter: which collective each rank is in, readable by the kernel even after the rank has died.

A rank notes every collective on its page of a board in shared memory: a number, a name, since when. That costs some
microseconds, so it is on in every plain `run`. It wraps torch's functions and ours from outside, and nobody knows.
"""

import functools
import sys
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import torch.distributed as dist

from zerolab.runtime.board import DONE, FAILED, INSIDE, Board, Position

COLLECTIVES = (
    "all_gather", "all_gather_into_tensor", "all_gather_object", "all_gather_single", "all_reduce", "all_to_all",
    "all_to_all_single", "barrier", "broadcast", "broadcast_object_list", "gather", "gather_object",
    "init_process_group", "monitored_barrier", "new_group", "reduce", "reduce_scatter", "reduce_scatter_single",
    "reduce_scatter_tensor", "scatter", "scatter_object_list",
)  # fmt: skip
POINT_TO_POINT = ("batch_isend_irecv", "irecv", "isend", "recv", "send")


class _Counter:
    """This process's own count; idle until `attach` gives it a page."""

    def __init__(self) -> None:
        self._write: Callable[[Position], None] | None = None
        self._next = 0
        self._thread = threading.local()
        self._pending: weakref.WeakKeyDictionary[Any, Position] = weakref.WeakKeyDictionary()

    def attach(self, board: Board, rank: int) -> None:
        self._write = functools.partial(board.write, rank)

    def reset(self) -> None:
        self._next = 0
        self._pending.clear()
        if self._write is not None:
            self._write(Position())

    def call(self, function: Callable[..., Any], name: str, numbered: bool, /, *args: Any, **kwargs: Any) -> Any:
        """Call a function of torch.distributed or ours, noted unless it is part of one that is noted already."""
        outer: Position | None = getattr(self._thread, "position", None)
        if outer is not None or self._write is None:
            result = function(*args, **kwargs)
            return self._remember(result, outer)
        position = Position(INSIDE, name, self._next if numbered else None)
        self._next += numbered
        return self._remember(self._inside(position, function, *args, **kwargs), position)

    def wait(self, function: Callable[..., Any], work: Any, *args: Any, **kwargs: Any) -> Any:
        """Wait for something that a noted call returned: the rank is inside that collective again."""
        position = self._pending.pop(work, None)
        if position is None or getattr(self._thread, "position", None) is not None:
            return function(work, *args, **kwargs)
        return self._inside(position, function, work, *args, **kwargs)

    def _inside(self, position: Position, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        write = self._write or (lambda _: None)
        self._thread.position = position
        write(position._replace(since=time.monotonic_ns()))
        try:
            result = function(*args, **kwargs)
        except BaseException:
            write(position._replace(state=FAILED))
            raise
        finally:
            self._thread.position = None
        write(position._replace(state=DONE))
        return result

    def _remember(self, result: Any, position: Position | None) -> Any:
        if position is not None:
            for work in result if isinstance(result, list) else [result]:
                if hasattr(work, "wait"):
                    self._pending[work] = position
        return result


_counter = _Counter()
attach, reset = _counter.attach, _counter.reset


def install() -> None:
    """Wrap the collectives of torch.distributed and of zerolab in this process, once, wherever they are bound."""
    from torch.distributed import distributed_c10d

    from zerolab.engines import collectives

    for names, numbered in ((COLLECTIVES, True), (POINT_TO_POINT, False)):
        for name in names:
            _wrap(distributed_c10d, name, numbered, [dist, distributed_c10d])
    ours = [module for name, module in sys.modules.items() if name.startswith("zerolab.engines")]
    for name in ("all_gather", "all_reduce", "reduce_scatter"):
        _wrap(collectives, name, True, ours)
    for kind in (dist.Work, collectives.Exchange):
        kind.wait = _waiting(kind.wait)  # type: ignore[method-assign]  # seen from outside, as a recorder sees it


def _wrap(home: Any, name: str, numbered: bool, modules: list[Any]) -> None:
    original = getattr(home, name, None)
    if original is None:
        return  # a name of another torch version

    @functools.wraps(original)
    def noted(*args: Any, **kwargs: Any) -> Any:
        return _counter.call(original, name, numbered, *args, **kwargs)

    for module in modules:
        for attribute, value in list(vars(module).items()):
            if value is original:
                setattr(module, attribute, noted)


def _waiting(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def wait(work: Any, *args: Any, **kwargs: Any) -> Any:
        return _counter.wait(original, work, *args, **kwargs)

    return wait
