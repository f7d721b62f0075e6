"""The stop button, held back while something is done that must be done whole."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def held_back() -> Iterator[None]:
    """Whoever presses Stop meanwhile interrupts what comes after this block, and not the block itself."""
    handler = signal.getsignal(signal.SIGINT)
    # Python interrupts no other thread than the main one, and has handlers replaced by no other.
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield
        return
    pressed: list[int] = []
    signal.signal(signal.SIGINT, lambda number, _: pressed.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if pressed:
            signal.raise_signal(signal.SIGINT)
