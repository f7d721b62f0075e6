"""What the ranks print, shown by the kernel: whole lines, in order, each with its rank in front."""

import os
import sys

LONGEST_LINE = 1 << 16  # bytes; what goes on longer is shown in pieces


class Output:
    """Shows lines as they come, or, with `ZEROLAB_STATIC=1`, all at once at the end and grouped by rank.

    A stored notebook must come out the same each time it runs; which rank prints first does not.
    """

    def __init__(self) -> None:
        self._tails: dict[int, bytes] = {}
        self._held: dict[int, list[str]] | None = {} if os.environ.get("ZEROLAB_STATIC") == "1" else None

    def feed(self, rank: int, data: bytes) -> None:
        """Take what a rank wrote, and show the lines that are complete."""
        *lines, tail = (self._tails.get(rank, b"") + data).split(b"\n")
        if len(tail) > LONGEST_LINE:
            lines, tail = [*lines, tail], b""
        self._tails[rank] = tail
        self._show(rank, lines)

    def finish(self) -> None:
        """Show what is left: unfinished lines, and everything that was held back."""
        for rank in sorted(self._tails):
            tail = self._tails.pop(rank)
            self._show(rank, [tail] if tail else [])
        if self._held:
            sys.stdout.write("".join(line for rank in sorted(self._held) for line in self._held[rank]))
            self._held = {}
        sys.stdout.flush()

    def _show(self, rank: int, lines: list[bytes]) -> None:
        if not lines:
            return
        shown = [f"[rank {rank}] {_as_on_screen(line)}\n" for line in lines]
        if self._held is None:
            sys.stdout.write("".join(shown))
        else:
            self._held.setdefault(rank, []).extend(shown)


def _as_on_screen(line: bytes) -> str:
    """A progress bar returns to the start of its line; what it wrote last is what one sees."""
    return line.rstrip(b"\r").rsplit(b"\r", 1)[-1].decode(errors="replace")
