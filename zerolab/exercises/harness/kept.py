"""What an answer started is kept until it ends, so that a `wait()` that it forgot does not crash it."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from zerolab.engines.collectives import Exchange
from zerolab.engines.views import share_memory
from zerolab.exercises.harness.futures import futures_followed
from zerolab.runtime.observers import Call, Observer, watching


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
        return next((call.op for call in self._under_way if share_memory(call.flat, tensor)), "")

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
    """Keeps every message that is started until the end, and counts every way of waiting for one."""
    kept = Kept()
    with watching(kept), futures_followed():
        yield kept
