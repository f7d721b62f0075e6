"""Where a thread of this process stands, seen from another one that never touches its frames.

A frame object of a running thread is not safe in another thread's hands: on CPython 3.11 to ask one for its `f_back`
may run the garbage collector, which lets the watched thread go on and return from that very frame. faulthandler walks
the frames in C, under the interpreter's lock, and makes no object: nothing moves while it looks.
"""

import faulthandler
import os
import re
from typing import IO

from zerolab.runtime.stack import Line

_FRAME = re.compile(r'  File "(.+)", line (\d+) in (.+)')
_ESCAPED = re.compile(r"\\x([0-9a-f]{2})|\\u([0-9a-f]{4})|\\U([0-9a-f]{8})")


class Lookout:
    """Looks at one thread, as often as it is asked.

    It sees the innermost 100 frames, and only the 100 newest threads of a process that has more.

    Args:
        thread: what `threading.get_ident` says in that thread.
        file: where faulthandler writes; no pipe, for one that is full would hold the interpreter's lock for ever.
    """

    def __init__(self, thread: int, file: IO[bytes]) -> None:
        self._file = file
        self._heading = f"hread 0x{thread:016x} "  # of `Thread` or `Current thread`

    def look(self) -> tuple[int, list[Line]]:
        """A number that changes when the thread comes to another line, and its stack, the innermost frame first.

        Raises LookupError if the thread cannot be seen, and OSError if somebody has closed the file.
        """
        text = self._dump()
        _, found, rest = text.partition(self._heading)
        stack = rest.partition("\n\n")[0]  # an empty line is between threads
        # A line that Python has no number for, "???", is left out: the one that called it is true as well.
        lines = [(_plain(file), int(line), _plain(name)) for file, line, name in _FRAME.findall(stack)]
        if not found or not lines:
            raise LookupError(f"faulthandler shows no stack of thread {self._heading.split()[1]}")
        return hash(stack), lines

    def _dump(self) -> str:
        file = self._file.fileno()
        os.lseek(file, 0, os.SEEK_SET)
        faulthandler.dump_traceback(file, all_threads=True)
        return os.pread(file, os.lseek(file, 0, os.SEEK_CUR), 0).decode("ascii", errors="replace")


def _plain(name: str) -> str:
    """A name as it was before faulthandler wrote it in ASCII."""
    return _ESCAPED.sub(lambda found: chr(int(found[1] or found[2] or found[3], 16)), name) if "\\" in name else name
