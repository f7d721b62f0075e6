r"""What a terminal would show of a rank: finished lines, and the few rows that progress bars still change.

A bar goes back to the start of its row (`\r`); bars below each other also move down and up again (`\n`, `ESC [ A`).
Only the first of these works in every notebook's cell, so the rows that may still change are drawn side by side.
"""

import re
import time
from dataclasses import dataclass

LONGEST_LINE = 1 << 16  # bytes; what goes on longer is shown in pieces
RETURN = 0.2  # seconds within which a program that moved below its bar moves up again, if at all
_PIECE = re.compile(rb"\n|\r|\x1b\[\d*A|\x1b\[[02]?K|[^\n\r\x1b]+|\x1b")
_UNFINISHED = re.compile(rb"\x1b(\[\d*)?$")  # a chunk may end in the middle of a sequence

# Colours first, in a group of their own: they stay. Then what sets a title, queries the terminal, moves or erases.
_CONTROL = re.compile(
    r"(\x1b\[[\d;:]*m)"
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f]).*?(?:\x07|\x1b\\|\x9c|$)"
    r"|(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]?"
    r"|\x1b[ -/]*[0-~]?"
    r"|[\x00-\x08\x0b-\x1f\x7f-\x9f]"
)
_END_OF_COLOUR = "\x1b[0m"


def printable(text: str) -> str:
    """Text of a rank without control sequences other than colours, which are reset at its end."""
    colour = ""

    def keep(found: re.Match[str]) -> str:
        nonlocal colour
        colour = found[1] or colour
        return found[1] or ""

    kept = _CONTROL.sub(keep, text)
    return kept if colour in ("", "\x1b[m", _END_OF_COLOUR) else kept + _END_OF_COLOUR


@dataclass
class _Row:
    """One row: what stands in it, and whether that is about to be written over."""

    text: bytes = b""
    is_bar: bool = False  # it was written over at least once
    at_start: bool = False  # the cursor has gone back to its start

    def write(self, text: bytes) -> None:
        self.text = text if self.at_start else self.text + text
        self.is_bar, self.at_start = self.is_bar or self.at_start, False

    @property
    def is_wiped(self) -> bool:
        """Whether it is a bar that was erased."""
        return self.is_bar and not self.text.strip()


class Screen:
    """The rows of one rank from the first that may still change; those above were returned as finished."""

    def __init__(self) -> None:
        self._rows = [_Row()]
        self._at = 0  # the row of the cursor
        self._has_written = False  # into that row, since the cursor came down to it
        self._came_down = 0.0  # when that was
        self._pending = b""  # the beginning of a sequence

    def feed(self, data: bytes) -> list[bytes]:
        """Take what the rank wrote; the lines that this finishes."""
        data, self._pending = self._pending + data, b""
        if b"\r" not in data and b"\x1b" not in data and not self.has_bar:
            return self._plain(data)
        cut = _UNFINISHED.search(data)
        if cut is not None:
            data, self._pending = data[: cut.start()], cut[0]
        return [line for piece in _PIECE.findall(data) for line in self._take(piece)]

    def settle(self) -> list[bytes]:
        """The rows above the cursor, if it has been below them for so long that they are finished."""
        is_finished = self._at and time.monotonic() - self._came_down > RETURN
        return self._finish(self._at) if is_finished else []

    def rest(self) -> list[bytes]:
        """All that is left at the end, an unfinished line included."""
        rows, pending = self._rows, self._pending
        self.__init__()  # type: ignore[misc]  # an empty screen
        rows[-1].text += pending
        return [row.text for row in rows if row.text and not row.is_wiped]

    @property
    def has_bar(self) -> bool:
        """Whether one of the rows is a progress bar."""
        return any(row.is_bar or row.at_start for row in self._rows)

    @property
    def bars(self) -> list[bytes]:
        """The rows that may still change; empty if none of them is a progress bar."""
        return [row.text for row in self._rows if row.text.strip()] if self.has_bar else []

    def _plain(self, data: bytes) -> list[bytes]:
        """The usual case, in one step, for there may be 100 MB of it."""
        *lines, tail = (self._rows[0].text + data).split(b"\n")
        if len(tail) > LONGEST_LINE:
            lines, tail = [*lines, tail], b""
        self._rows[0].text = tail
        return lines

    def _take(self, piece: bytes) -> list[bytes]:
        row = self._rows[self._at]
        if piece == b"\n":
            return self._down()
        if piece == b"\r":
            done = self._finish(self._at) if self._stays_below else []
            row.at_start = True
            return done
        if piece.startswith(b"\x1b[") and piece.endswith(b"A"):
            self._at = max(0, self._at - int(piece[2:-1] or 1))
            self._has_written = False
        elif piece.startswith(b"\x1b[") and piece.endswith(b"K"):
            row.text = b"" if row.at_start or piece == b"\x1b[2K" else row.text
        else:
            row.write(piece)
            self._has_written = True
            if len(row.text) > LONGEST_LINE:
                return self._down()
        return []

    @property
    def _stays_below(self) -> bool:
        """Whether the cursor has moved down to stay: a bar below another writes once and moves straight up again."""
        return self._at > 0 and self._has_written

    def _down(self) -> list[bytes]:
        """To the next row. The row of a bar may still change."""
        done = self._finish(self._at) if self._stays_below else []
        if not any(row.is_bar for row in self._rows[: self._at + 1]):
            return done + self._finish(self._at + 1)
        self._at, self._has_written, self._came_down = self._at + 1, False, time.monotonic()
        if self._at == len(self._rows):
            self._rows.append(_Row())
        return done

    def _finish(self, count: int) -> list[bytes]:
        """The first rows, which no longer change."""
        done, self._rows = self._rows[:count], self._rows[count:] or [_Row()]
        self._at = max(0, self._at - count)
        return [row.text for row in done if not row.is_wiped]
