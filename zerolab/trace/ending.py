"""A rank that is ended while it is recorded leaves what it has: torchrun ends all ranks when one of them fails.

Python calls a handler of a signal only when the main thread is in Python, and a rank that hangs is not. So the signal
is written into a pipe, which the interpreter does at once, and a thread at its other end acts. (Once a script has used
asyncio's handlers of signals, which need a pipe of their own, only the handler writes into ours.) Only this process's:
one that it forks, such as a pool's worker, is ended as if nothing were recorded.
"""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any

_writing: list[int] = []
"""The end of the pipe that signals are written into, while a block is open; empty in processes forked meanwhile."""
_passed = threading.Event()
"""Whether this process has got the signal, and nobody but `_pass_on` heard it."""
_masks = threading.local()


@contextmanager
def leaving(write: Callable[[], None]) -> Iterator[None]:
    """Within it, SIGTERM has `write` called, in another thread, before the process ends.

    Does nothing outside of the main thread, and where somebody else handles the signal or reads such a pipe.
    """
    main = threading.current_thread() is threading.main_thread()
    if not main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL or _is_heard_elsewhere():
        yield
        return
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    _look_at_forks()
    _passed.clear()
    signal.signal(signal.SIGTERM, _pass_on)
    _writing.append(writer)
    listening = threading.Thread(target=_listen, args=(reader, write), name="zerolab-ending", daemon=True)
    listening.start()
    try:
        yield
    finally:
        # A script that comes to its end meanwhile is one that the signal has ended: the thread ends the process.
        if _passed.is_set() and signal.getsignal(signal.SIGTERM) is _pass_on:
            listening.join()
        _let_go()


def _is_heard_elsewhere() -> bool:
    descriptor = signal.set_wakeup_fd(-1)
    signal.set_wakeup_fd(descriptor)
    return descriptor != -1


def _let_go() -> None:
    """Leaves signals to themselves again, unless that was done already, as in a forked process."""
    while _writing:
        descriptor = signal.set_wakeup_fd(-1)
        if descriptor != _writing[-1]:
            signal.set_wakeup_fd(descriptor)  # somebody else's, by now
        if signal.getsignal(signal.SIGTERM) is _pass_on:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        with suppress(OSError):  # the script may have closed all descriptors
            os.close(_writing.pop())


@cache
def _look_at_forks() -> None:
    os.register_at_fork(before=_hold, after_in_parent=_resume, after_in_child=_begin_child)


def _hold() -> None:
    # A child may be ended before `_let_go`, and would write into the pipe of its parent, which it has still.
    if _writing:
        _masks.mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})


def _resume() -> None:
    mask = _masks.__dict__.pop("mask", None)
    if mask is not None:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _begin_child() -> None:
    _let_go()
    _resume()


def _pass_on(signum: int, _: Any) -> None:
    """Stands for the default; the second of two bytes for one signal is never read."""
    if signal.getsignal(signum) is _pass_on:  # and not a handler of the script's, which calls this one
        _passed.set()
    for writer in _writing:
        try:
            os.write(writer, bytes([signum]))
        except BlockingIOError:
            pass
        except OSError:  # the script has closed it, and nobody listens any more
            os._exit(128 + signum)


def _listen(reader: int, write: Callable[[], None]) -> None:
    with suppress(OSError):  # the script may have closed all descriptors
        while received := os.read(reader, 1):
            if received[0] == signal.SIGTERM:
                try:
                    write()
                finally:
                    # The handler of the script, if it has set one since, decides; else it ends, as it would have.
                    if signal.getsignal(signal.SIGTERM) is _pass_on:
                        os._exit(128 + signal.SIGTERM)
        os.close(reader)
