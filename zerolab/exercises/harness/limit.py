"""An answer that never ends is ended, on the rank that runs it; and what it forgets to wait for does not crash it."""

import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
import torch.distributed as dist

from zerolab.engines import collectives
from zerolab.recording.patches import intercept, replace

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


class Kept:
    """What an answer started, and what it reads or writes: kept until the end.

    gloo holds raw pointers: dropped before its wait, a message is lost, or written into memory that is somebody
    else's by then. So an answer without a `wait()` would fail in another way each time; here it ends, and the
    recording shows what is missing.
    """

    def __init__(self) -> None:
        self._messages: list[Any] = []
        self._exchanges: list[tuple[collectives.Exchange, str, frozenset[int]]] = []  # its name, and its memory
        self._inside = 0  # a collective's own messages: their buffers go with the exchange, after its wait
        self._latest: tuple[list[dist.Work], str, frozenset[int]] | None = None

    def under_way(self, tensor: torch.Tensor) -> str:
        """The name of an exchange of the tensor's memory that was not waited for; empty if there is none."""
        memory = _memory(tensor)
        names = (name for exchange, name, of in self._exchanges if memory in of and exchange._works)  # noqa: SLF001
        return next(names, "")

    def start(
        self,
        original: Callable[..., list[dist.Work]],
        send: list[torch.Tensor],
        receive: dict[int, torch.Tensor],
        group: dist.ProcessGroup | None,
        what: str,
    ) -> list[dist.Work]:
        """Around the messages of one collective."""
        self._inside += 1
        try:
            works = original(send, receive, group, what)
        finally:
            self._inside -= 1
        self._latest = works, what.split(maxsplit=1)[0], frozenset(map(_memory, (*send, *receive.values())))
        return works

    def exchange(
        self, original: Callable[..., None], exchange: collectives.Exchange, works: Any, *args: Any, **keywords: Any
    ) -> None:
        """Around the making of an exchange."""
        original(exchange, works, *args, **keywords)
        started, name, memory = self._latest or (None, "", frozenset())
        # Only the name and the memory's number stay here: the works would keep the buffers in memory after the wait.
        self._exchanges.append((exchange, name, memory) if started is works else (exchange, "", frozenset()))
        self._latest = None

    def message(self, original: Callable[..., Any], tensor: Any, *args: Any, **keywords: Any) -> Any:
        """Around one message."""
        work = original(tensor, *args, **keywords)
        if not self._inside:
            self._messages.extend((work, tensor))
        return work


@contextmanager
def nothing_lost() -> Iterator[Kept]:
    """Keeps every message that is started until the end."""
    kept = Kept()
    with ExitStack() as stack:
        stack.enter_context(replace(collectives.Exchange, "__init__", kept.exchange))
        stack.enter_context(intercept(collectives, "_start", kept.start))
        for name in ("isend", "irecv"):
            stack.enter_context(intercept(dist.distributed_c10d, name, kept.message))
        yield kept


def _memory(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)  # noqa: SLF001  (as flat.py)
