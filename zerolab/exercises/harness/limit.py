"""An answer that never ends is ended, on the rank that runs it."""

import math
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

GRACE_SECONDS = 1.0  # from the request to stop to the end of the rank, for an answer that catches the request


class OutOfTime(BaseException):
    """The answer took too long. Not an Exception, so that an `except Exception` in a learner's loop lets it through."""


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Raises OutOfTime inside of it after so many seconds, never if they are infinite. For a rank's main thread.

    An answer that goes on all the same, because a bare `except:` has caught that, ends with its process: a second
    alarm kills it, and the signal tells the driver what it was.
    """
    if math.isinf(seconds):
        yield
        return

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
