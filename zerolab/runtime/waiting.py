"""One line that says what is being waited for, if it takes longer than three seconds; it disappears at the end.

In a notebook it is an output that is empty in the end, at a terminal the last line of stderr. It is not written to
files, in tests, or in notebooks whose outputs are stored (`ZEROLAB_STATIC=1`).
"""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain, repeat

from zerolab.runtime import variables

SILENCE = 3.0  # seconds before the line appears
EVERY = 1.0  # seconds between updates of the line


class _Here(threading.local):
    line: "Line | None" = None  # the one that this thread shows; nested calls change its text


_here = _Here()


class Line:
    """What is being waited for, a text that may change, and the seconds that it has taken."""

    def __init__(self, text: str, show: Callable[[str], None]) -> None:
        self.text = text
        self._show, self._shown = show, False
        self._started, self._over = time.monotonic(), threading.Event()
        self._thread = threading.Thread(target=self._tell, daemon=True)
        self._thread.start()

    def _tell(self) -> None:
        wait = SILENCE
        while not self._over.wait(wait):
            self._shown, wait = True, EVERY
            self._show(f"{self.text} ... {time.monotonic() - self._started:.0f} s")

    def end(self) -> None:
        """Removes the line."""
        self._over.set()
        self._thread.join()
        if self._shown:
            self._show("")


@contextmanager
def waiting(text: str) -> Iterator[None]:
    """Shows `text` and the seconds so far if the block takes longer than `SILENCE`; inner texts replace outer ones."""
    if (line := _here.line) is not None:
        before, line.text = line.text, text
        try:
            yield
        finally:
            line.text = before
    elif (show := _screen()) is None:
        yield
    else:
        _here.line = line = Line(text, show)
        try:
            yield
        finally:
            line.end()
            _here.line = None


def says(text: str) -> None:
    """Changes the text of the line of this thread's block, if there is one: what is waited for has come further."""
    if _here.line is not None:
        _here.line.text = text


def _screen() -> Callable[[str], None] | None:
    """A function that shows the line where a person can see it; None if there is no such place."""
    if variables.static():
        return None
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    if shell is not None and hasattr(shell, "kernel"):
        return _in_a_cell()
    return _at_a_terminal if sys.stderr is not None and sys.stderr.isatty() else None


def _in_a_cell() -> Callable[[str], None]:
    from IPython.display import DisplayHandle

    handle = DisplayHandle()
    ways: Iterator[Callable[..., None]] = chain([handle.display], repeat(handle.update))
    return lambda text: next(ways)({"text/plain": text}, raw=True)


def _at_a_terminal(text: str) -> None:
    sys.stderr.write(f"\r\x1b[K{text}")
    sys.stderr.flush()
