"""A rank that is ended while it is recorded leaves what it has: torchrun ends all ranks when one of them fails.

Python calls a handler of a signal only when the main thread is in Python, and a rank that hangs is not. So the signal
is written into a pipe, which the interpreter does at once, and a thread at its other end acts.
"""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def leaving(write: Callable[[], None]) -> Iterator[None]:
    """Within it, SIGTERM has `write` called, in another thread, before the process ends.

    Does nothing outside of the main thread, and where somebody else handles the signal or reads such a pipe.
    """
    main = threading.current_thread() is threading.main_thread()
    if not main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    if before != -1:
        signal.set_wakeup_fd(before)
        yield
        return
    signal.signal(signal.SIGTERM, _nothing)
    threading.Thread(target=_listen, args=(reader, write), daemon=True).start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(-1)
        if signal.getsignal(signal.SIGTERM) is _nothing:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.close(writer)


def _nothing(*_: Any) -> None:
    """Stands for the default, which would write nothing into the pipe."""


def _listen(reader: int, write: Callable[[], None]) -> None:
    while received := os.read(reader, 1):
        if received[0] == signal.SIGTERM:
            try:
                write()
            finally:
                # The handler of the script, if it has set one since, decides; else it ends, as it would have.
                if signal.getsignal(signal.SIGTERM) is _nothing:
                    os._exit(128 + signal.SIGTERM)
    os.close(reader)
