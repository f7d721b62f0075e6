"""An answer that never ends is ended, on the rank that runs it."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class OutOfTime(BaseException):
    """The answer took too long. Not an Exception, so that an `except Exception` in a learner's loop lets it through."""


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Raises OutOfTime inside of it after so many seconds. For the main thread of a rank."""

    def ring(*_: Any) -> None:
        raise OutOfTime(f"{seconds:g} seconds")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
