"""What the ranks print, shown by the kernel while they run: whole lines, in order, each with its rank in front."""

import contextlib
import sys
import time
from collections import Counter, defaultdict, deque
from collections.abc import Collection
from typing import NamedTuple

from zerolab.runtime import variables
from zerolab.runtime.screen import Screen, printable

SHOWN = 1_000_000  # bytes of all ranks together that one run shows; a browser has to draw them
LAST = 2_000  # bytes of each rank that are shown of what came after
HOLD = 0.1  # seconds that a line waits for the other ranks to say the same
HELD = 200  # lines of a rank that wait so
REDRAW = 0.1  # seconds between two states of a progress bar
BESIDE = "  "  # between bars that a terminal would show on separate rows; a cell has one line for them

_failures: set[str] = set()  # reasons for which this process could not show something


class _Line(NamedTuple):
    text: str
    time: float


class Output:
    """Shows lines as they come; a line that all ranks print is shown once.

    With `ZEROLAB_STATIC=1` everything is shown at the end, grouped by rank: the output of a stored notebook must not
    depend on which rank prints first. Anything beyond `SHOWN` is counted, not kept. Every label says `remark` besides
    the rank, such as `late from cell [3]`.
    """

    def __init__(self, ranks: Collection[int] = (), remark: str = "") -> None:
        self._ranks, self._remark = sorted(ranks), f", {remark}" if remark else ""
        self._share = SHOWN // max(1, len(self._ranks))
        self._screens: defaultdict[int, Screen] = defaultdict(Screen)
        self._taken: Counter[int] = Counter()
        self._overflow: dict[int, tuple[int, bytes]] = {}  # by rank, beyond its share: how many bytes, and the last
        self._waiting: dict[int, deque[_Line]] = {rank: deque() for rank in self._ranks}
        self._texts: dict[int, Counter[str]] = {rank: Counter() for rank in self._ranks}  # of the lines that wait
        self._held: dict[int, list[str]] | None = {} if variables.static() else None
        self._bar = ""  # the progress bar that is on the screen, below all lines
        self._drawn = 0.0

    def feed(self, rank: int, data: bytes) -> None:
        """Take what a rank wrote, and show what is complete."""
        if self._taken[rank] >= self._share:
            nbytes, end = self._overflow.get(rank, (0, b""))
            self._overflow[rank] = nbytes + len(data), (end + data)[-LAST:]
            return
        lines = self._screens[rank].feed(data)
        # Only lines count: a bar is drawn over itself, perhaps for hours.
        self._taken[rank] += sum(map(len, lines)) + len(lines)
        self._take(rank, lines)
        self._draw_bar()

    def tick(self) -> None:
        """Show lines that have waited long enough for the other ranks. Called now and then."""
        for rank, screen in self._screens.items():
            self._take(rank, screen.settle())
        self._show_waiting(everything=False)
        self._draw_bar()

    def finish(self) -> None:
        """Show what is left: unfinished lines, everything that was held back, and what was left out."""
        for rank in sorted(self._screens):
            self._take(rank, self._screens.pop(rank).rest())
        self._show_waiting(everything=True)
        for rank in sorted(self._overflow):
            self._write([rank], self._summary(*self._overflow.pop(rank)))
        self._draw_bar()
        if self._held:
            same = len(self._held) == len(self._ranks) > 1 and len({tuple(held) for held in self._held.values()}) == 1
            groups = [self._ranks] if same else [[rank] for rank in sorted(self._held)]
            for ranks in groups:
                show("".join(f"{self._label(ranks)} {line}\n" for line in self._held[ranks[0]]), flush=False)
            self._held = {}
        show("")

    def _summary(self, nbytes: int, end: bytes) -> list[str]:
        """How much of a rank's output is missing, and its last lines."""
        end = end if nbytes <= LAST else end.partition(b"\n")[2] or end
        rule = f"a run shows {self._share:,} bytes of each rank, and its last ones"
        missing = f"... {nbytes - len(end):,} bytes are left out here: {rule}"
        return [missing] * (nbytes > len(end)) + [_on_screen(line) for line in end.rstrip(b"\n").split(b"\n")]

    def _take(self, rank: int, lines: list[bytes]) -> None:
        texts = [_on_screen(line) for line in lines]
        if self._held is None and len(self._ranks) > 1 and rank in self._waiting:
            now = time.monotonic()
            self._waiting[rank].extend(_Line(text, now) for text in texts)
            self._texts[rank].update(texts)
            self._show_waiting(everything=False)
        elif texts:
            self._write([rank], texts)

    def _show_waiting(self, *, everything: bool) -> None:
        """Show what all ranks have printed, and what is not going to be printed by all."""
        while any(self._waiting.values()):
            heads = {rank: lines[0] for rank, lines in self._waiting.items() if lines}
            if len(heads) == len(self._ranks) and len({head.text for head in heads.values()}) == 1:
                self._write(self._ranks, [self._next(rank) for rank in self._ranks][:1])
                continue
            single = [rank for rank in heads if everything or self._is_single(rank, heads[rank])]
            if not single:
                return
            first = min(single, key=lambda rank: heads[rank].time)
            self._write([first], [self._next(first)])

    def _next(self, rank: int) -> str:
        text = self._waiting[rank].popleft().text
        texts = self._texts[rank]
        texts[text] -= 1
        if not texts[text]:
            del texts[text]
        return text

    def _is_single(self, rank: int, head: _Line) -> bool:
        """Whether a line need not wait any longer: another rank prints something else, or nothing for too long."""
        if len(self._waiting[rank]) > HELD or time.monotonic() - head.time > HOLD:
            return True
        return any(lines and head.text not in self._texts[other] for other, lines in self._waiting.items())

    def _write(self, ranks: list[int], texts: list[str]) -> None:
        if self._held is not None:
            self._held.setdefault(ranks[0], []).extend(texts)
        else:
            lines = "".join(f"{self._label(ranks)} {text}\n" for text in texts)
            show(self._without_bar() + lines, flush=False)

    def _draw_bar(self) -> None:
        """Draw the progress bars of the lowest rank that has any, in one line below all others."""
        if self._held is not None:
            return
        rank, bars = next(
            ((rank, bars) for rank, screen in sorted(self._screens.items()) if (bars := screen.bars)), (0, [])
        )
        text = f"{self._label([rank])} {BESIDE.join(map(_on_screen, bars))}" if bars else ""
        if text == self._bar or (self._bar and text and time.monotonic() - self._drawn < REDRAW):
            return
        show(self._without_bar() + text)
        self._bar, self._drawn = text, time.monotonic()

    def _label(self, ranks: list[int]) -> str:
        return f"[{_names(ranks)}{self._remark}]"

    def _without_bar(self) -> str:
        """What takes the bar off the screen: its line is written over with spaces."""
        blank, self._bar = " " * len(self._bar), ""
        return f"\r{blank}\r" if blank else ""


def show(text: str, *, flush: bool = True) -> None:
    """Write to the notebook. If its stdout is missing or fails, the text is lost; stderr says why, once a reason."""
    try:
        if sys.stdout is not None:
            try:
                sys.stdout.write(text)
            except UnicodeEncodeError:  # letters that the user's encoding does not have
                encoding = sys.stdout.encoding
                sys.stdout.write(text.encode(encoding, "backslashreplace").decode(encoding))
            if flush:
                sys.stdout.flush()
    except Exception as error:  # noqa: BLE001  # a full disk, a closed file, or anything that a cell has put there
        reason = f"{type(error).__name__}: {error}"
        if reason not in _failures and sys.stderr is not None:
            _failures.add(reason)
            with contextlib.suppress(Exception):
                print(f"what the ranks print cannot be shown: {reason}", file=sys.stderr)


def _names(ranks: list[int]) -> str:
    """`rank 2`, `ranks 0-3` or `ranks 0, 2`."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    in_a_row = ranks == list(range(ranks[0], ranks[-1] + 1))
    return f"ranks {ranks[0]}-{ranks[-1]}" if in_a_row else f"ranks {', '.join(map(str, ranks))}"


def _on_screen(line: bytes) -> str:
    """A line as text, after what a carriage return in it overwrites."""
    return printable(line.rstrip(b"\r").rsplit(b"\r", 1)[-1].decode(errors="replace"))
