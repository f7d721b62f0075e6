"""The stop button, deferred while something runs that must not be interrupted; and SIGPIPE, which may end a process."""

import functools
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any


class _Hold:
    """The handler of SIGINT in the meantime: passes one on, now or later.

    Who presses Stop again asks for the same, and must not interrupt what answers it: that would lose what it says.
    """

    def __init__(self, handler: Callable[[int, FrameType | None], Any]) -> None:
        self.handler, self.is_open, self.is_pressed, self.has_passed_one = handler, False, False, False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self.is_open:
            self.is_open, self.has_passed_one = False, True
            self.handler(number, frame)
            if _only_cancels(self.handler):
                raise KeyboardInterrupt
            self.is_open, self.has_passed_one = True, False  # it interrupts nothing, so nothing answers it
        elif not self.has_passed_one:
            self.is_pressed = True


def _only_cancels(handler: object) -> bool:
    """Whether a handler cancels the task that runs, in a cell with `await` or under `asyncio.run`, and returns.

    That takes effect at the next `await`, which comes only after what is being waited for. A handler of the notebook's
    own may have reasons to interrupt nothing.
    """
    while isinstance(handler, functools.partial):
        handler = handler.func
    return str(getattr(handler, "__module__", "")).startswith(("ipykernel.", "asyncio.runners"))


@contextmanager
def held_back() -> Iterator[None]:
    """Defers Stop to the end of this block, or to an `interruptible` part of it."""
    handler = signal.getsignal(signal.SIGINT)
    # Only the main thread is interrupted, and only it may replace handlers.
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield
        return
    hold = _Hold(handler)
    signal.signal(signal.SIGINT, hold)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if hold.is_pressed:
            signal.raise_signal(signal.SIGINT)


@contextmanager
def interruptible() -> Iterator[None]:
    """A part of a `held_back` block in which Stop acts at once, such as a wait; elsewhere it changes nothing."""
    hold = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not isinstance(hold, _Hold):
        yield
        return
    was_open, hold.is_open = hold.is_open, not hold.has_passed_one
    try:
        if hold.is_pressed:
            hold.is_pressed = False
            signal.raise_signal(signal.SIGINT)
        yield
    finally:
        hold.is_open = was_open and hold.is_open  # stays closed after a Stop


@contextmanager
def writing_to_a_rank() -> Iterator[None]:
    """Within this block, writing to a rank that has gone does nothing, even in a script that SIGPIPE ends.

    Many set it so, for the sake of `script | head`; the first rank that dies would end them without a word.
    """
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGPIPE})  # of this thread, which is the one to get it
    try:
        with suppress(OSError):
            yield
    finally:
        if signal.SIGPIPE not in blocked:
            if signal.SIGPIPE in signal.sigpending():
                signal.sigwait({signal.SIGPIPE})
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGPIPE})
