"""The stop button, held back while something is done that must be done whole."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


class _Hold:
    """What stands in for the handler of SIGINT meanwhile. Let in once, it is shut again before the handler acts."""

    def __init__(self, handler: Callable[[int, FrameType | None], Any]) -> None:
        self.handler, self.is_open, self.is_pressed = handler, False, False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self.is_open:
            self.is_open = False  # whoever cleans up after this Stop is not interrupted by the next
            self.handler(number, frame)
        else:
            self.is_pressed = True


@contextmanager
def held_back() -> Iterator[None]:
    """Whoever presses Stop meanwhile interrupts what comes after this block, or an `interruptible` part of it."""
    handler = signal.getsignal(signal.SIGINT)
    # Python interrupts no other thread than the main one, and has handlers replaced by no other.
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
    was_open, hold.is_open = hold.is_open, True
    try:
        if hold.is_pressed:
            hold.is_pressed = False
            signal.raise_signal(signal.SIGINT)
        yield
    finally:
        hold.is_open = was_open and hold.is_open  # shut for good once Stop was let in
