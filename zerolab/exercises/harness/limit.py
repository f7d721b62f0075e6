"""An answer that never ends is ended, on the rank that runs it; and what it forgets to wait for does not crash it."""

import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

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


@contextmanager
def nothing_lost() -> Iterator[None]:
    """Keeps every message that is started until the end, and what it reads or writes.

    gloo holds raw pointers: dropped before its wait, a message is lost, or written into memory that is somebody
    else's by then. So an answer without a `wait()` would fail in another way each time; here it ends, and the
    recording shows what is missing.
    """
    kept: list[Any] = []
    inside: list[str] = []  # a collective's own messages: their buffers go with the exchange, after its wait

    def start(original: Callable[..., Any], *args: Any) -> Any:
        inside.append("a collective")
        try:
            return original(*args)
        finally:
            inside.pop()

    def keep_exchange(
        original: Callable[..., None], exchange: collectives.Exchange, *args: Any, **keywords: Any
    ) -> None:
        kept.append(exchange)
        original(exchange, *args, **keywords)

    def keep_message(original: Callable[..., Any], tensor: Any, *args: Any, **keywords: Any) -> Any:
        work = original(tensor, *args, **keywords)
        if not inside:
            kept.extend((work, tensor))
        return work

    with ExitStack() as stack:
        stack.enter_context(replace(collectives.Exchange, "__init__", keep_exchange))
        stack.enter_context(intercept(collectives, "_start", start))
        for name in ("isend", "irecv"):
            stack.enter_context(intercept(dist.distributed_c10d, name, keep_message))
        yield
