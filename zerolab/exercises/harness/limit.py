"""An answer that never ends is ended, on the rank that runs it, and one that takes too much memory gets no more."""

import faulthandler
import math
import mmap
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from zerolab.runtime.handover import CRASH

MOST_BYTES = 2_000_000_000  # of memory that an answer may take on a rank; a right one takes less than a hundredth
LEAST_STACK = 8 << 20  # bytes that are allowed for each thread
GRACE_SECONDS = 1.0  # from the request to stop to the end of the rank, for an answer that catches the request


class OutOfTime(BaseException):
    """The answer took too long. Not an Exception, so that an `except Exception` in a learner's loop lets it through."""


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Raises OutOfTime inside of it after so many seconds, never if they are infinite. For a rank's main thread.

    An answer that goes on all the same, because a bare `except:` has caught that, ends with its process: a second
    alarm kills it, and the signal tells the driver what it was. So does one that is in a call into C, in which
    Python hands over no alarm. What it asks for beyond MOST_BYTES is refused, as by a machine that has no more.
    """
    if math.isinf(seconds):
        yield
        return

    def ring(*_: Any) -> None:
        if _waits():
            signal.setitimer(signal.ITIMER_REAL, GRACE_SECONDS)
            return
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, GRACE_SECONDS)
        raise OutOfTime(f"{seconds:g} seconds")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    _end_after(seconds + 2 * GRACE_SECONDS)
    # Python hands over no alarm amid a wait in C either, but lets other threads run.
    others_first = threading.Timer(seconds + GRACE_SECONDS, _let_others_end)
    others_first.daemon = True
    others_first.start()
    try:
        with _little_memory():
            yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        others_first.cancel()
        others_first.join()
        faulthandler.cancel_dump_traceback_later()
        signal.signal(signal.SIGALRM, before)


@contextmanager
def _little_memory() -> Iterator[None]:
    """Within it, this process gets MOST_BYTES more than it has. Only on Linux: no other system counts as it should."""
    if sys.platform != "linux":
        yield
        return
    import resource  # not at the top: a browser's Python has none

    # The system counts whole stacks, and torch starts its threads at the first large operation.
    stack = max(0, resource.getrlimit(resource.RLIMIT_STACK)[0])  # of "unlimited" a thread gets some megabytes
    stacks = 2 * (os.cpu_count() or 1) * max(stack, LEAST_STACK)
    most = int(Path("/proc/self/statm").read_text().split()[5]) * mmap.PAGESIZE + stacks + MOST_BYTES
    before, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (most if before == resource.RLIM_INFINITY else min(most, before), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (before, hard))


def _waits() -> bool:
    """Whether this rank waits for others: then one of those takes too long, and is the one to be told of."""
    from zerolab.runtime import board, counter  # not at the top: the counter needs torch

    return counter._counter._last.state == board.INSIDE  # noqa: SLF001


def _let_others_end() -> None:
    if _waits():
        _end_after(3 * GRACE_SECONDS)


def _end_after(seconds: float) -> None:
    """Ends this process after so many seconds, by a thread of C that waits for nothing; the stack tells where."""
    faulthandler.dump_traceback_later(seconds, exit=True, file=CRASH[-1] if CRASH else sys.__stderr__ or 2)
