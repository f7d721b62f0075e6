"""An answer that never ends is ended, on the rank that runs it; and what it forgets to wait for does not crash it."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from zerolab.engines.collectives import Exchange
from zerolab.runtime.observers import Call, Observer, watching

GRACE_SECONDS = 1.0  # from the request to stop to the end of the rank, for an answer that catches the request


class OutOfTime(BaseException):
    """The answer took too long. Not an Exception, so that an `except Exception` in a learner's loop lets it through."""


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Raises OutOfTime inside of it after so many seconds. For the main thread of a rank.

    An answer that goes on all the same, because a bare `except:` has caught that, ends with its process: a second
    alarm kills it, and the signal tells the driver what it was.
    """

    def ring(*_: Any) -> None:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, GRACE_SECONDS)
        raise OutOfTime(f"{seconds:g} seconds")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


class Kept(Observer):
    """What an answer started, and what it reads or writes: kept until the end.

    gloo holds raw pointers: dropped before its wait, a message is lost, or written into memory that is somebody
    else's by then. So an answer without a `wait()` would fail in another way each time; here it ends, and the
    recording shows what is missing.
    """

    def __init__(self) -> None:
        self._messages: list[Any] = []
        self._under_way: dict[Call, Exchange] = {}

    def under_way(self, tensor: torch.Tensor) -> str:
        """The name of an exchange of the tensor's memory that was not waited for; empty if there is none."""
        memory = _memory(tensor)
        return next((call.op for call in self._under_way if _memory(call.flat) == memory), "")

    def started(self, call: Call, exchange: Exchange) -> None:
        """Keeps a collective of ours."""
        self._under_way[call] = exchange

    @contextmanager
    def waiting(self, call: Call) -> Iterator[None]:
        """Lets go of it: its buffers go with the exchange."""
        yield
        self._under_way.pop(call, None)

    def messaged(self, message: tuple[Any, ...]) -> None:
        """Keeps a message."""
        self._messages.append(message)


@contextmanager
def nothing_lost() -> Iterator[Kept]:
    """Keeps every message that is started until the end."""
    kept = Kept()
    with watching(kept):
        yield kept


def _memory(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)  # noqa: SLF001  (as flat.py)
