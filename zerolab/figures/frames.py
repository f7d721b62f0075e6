"""Moments of one step side by side: who holds which part of a unit then, and what all ranks send to whom."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from zerolab.figures.chart import INK, NEUTRAL
from zerolab.figures.drawing import Picture, box, colour, digit, drawing, text
from zerolab.names import check_known
from zerolab.player.owners import held_by, owners
from zerolab.recording.events import STATE, Event, RankRecording, Spans
from zerolab.recording.recording import Recording

LEFT, FRAME, GAP = 152, 248, 28  # pixels left of the frames, of a frame, and between two
TOP, ROW, BAR, RANK = 34, 19, 15, 70  # above the ranks, of a row, of the bar in it, and of a rank
HEAD = 4  # half of an arrow's head
LOOKS = {
    "right": "solid: the same wherever it lies",
    "local": "hatched: from this rank's own rows only",
    "old": "pale: out of date",
    "coming": "dashed: on its way",
    "gone": "empty: not here",
}
"""How a part may look, and what the legend says of it."""


@dataclass(frozen=True)
class Moment:
    """A moment that every rank comes to."""

    title: str  # what happens
    before: Callable[[list[Event]], Event]  # of a rank's events about the unit and the update, the one just after it
    sends: str = ""  # the category whose parts are on their way
    to_owner: bool = False  # or else from their owner to everyone


def _exchange(op: str, which: int) -> Callable[[list[Event]], Event]:
    return lambda events: [event for event in events if event.kind == "collective" and event.op == op][which]


def _update(events: list[Event]) -> Event:
    return [event for event in events if event.kind == "optimizer"][-1]


def _after(found: Callable[[list[Event]], Event]) -> Callable[[list[Event]], Event]:
    return lambda events: events[events.index(found(events)) + 1]


def _whole(events: list[Event]) -> Event:
    return next(event for event in events if event.op == "hold" and event.category == "parameters")


MOMENTS = {
    "made": Moment("backward has made the gradient", _exchange("reduce_scatter", -1)),
    "reduced": Moment("each part goes to its owner", _exchange("reduce_scatter", -1), "gradients", to_owner=True),
    "kept": Moment("what is left of it", _update),
    "updated": Moment("each owner updates its part", _after(_update)),
    "published": Moment("each owner sends its part to all", _exchange("all_gather", -1), "parameters"),
    "released": Moment("between two uses", _exchange("all_gather", 0)),
    "gathered": Moment("each owner sends its part to all", _exchange("all_gather", 0), "parameters"),
    "used": Moment("whole, while it is used", _after(_whole)),
}
"""By name: of one batch a step, `released`, `gathered` and `used` under ZeRO-3 only."""


class Frames(Picture):
    """Shown in a notebook, it is the drawing; its text says what the ranks hold in each frame.

    They are of a unit in the last step of a recording of `zero1`, `zero2` or `zero3`; `moments` are names of `MOMENTS`,
    from left to right.

    Raises ValueError for an unknown unit or moment, for a unit that nobody owns in parts, and where the recording has
    no such moment.
    """

    def __init__(self, recording: Recording, unit: str, moments: Sequence[str]) -> None:
        units = {each.name: each for each in recording.units}
        check_known("unit", unit, units)
        for name in moments:
            check_known("moment", name, MOMENTS)
        held = held_by(event for rank in recording.ranks for event in rank.events)
        wholes = owners(recording, units[unit], held)
        if wholes is None or len(wholes[0]) != recording.world_size:
            raise ValueError(
                f"no rank owns one part of {unit} in {recording.title}: give a run of zero1, zero2 or zero3"
            )
        self.recording, self.unit, self.moments = recording, units[unit], tuple(moments)
        self.parts = [(start, stop) for start, stop, _ in sorted(wholes[0], key=lambda part: part[2])]
        self.frames = [[self._rank(rank, MOMENTS[name]) for rank in recording.ranks] for name in moments]

    # What a frame shows, read off the recording.

    def _rank(self, rank: RankRecording, moment: Moment) -> dict[str, list[str]]:
        """Of each category how each part looks on a rank."""
        step = self.recording.info.steps
        told = [e for e in rank.events if e.step == step and (e.unit == self.unit.name or e.kind == "optimizer")]
        try:
            seq = moment.before(told).seq
        except (IndexError, StopIteration):
            raise ValueError(f"{self.recording.title} has no moment when {moment.title}") from None
        spans: dict[str, Spans] = {
            e.category: e.spans or ()
            for e in rank.events
            if e.op == "hold" and e.unit == self.unit.name and e.category and e.seq < seq
        }
        over = {event.op for event in told if event.kind in ("wait", "optimizer") and event.seq < seq}
        return {
            category: [
                self._look(moment, category, part, spans.get(category, ()), over, own=part == rank.rank)
                for part in range(len(self.parts))
            ]
            for category in STATE
        }

    def _look(self, moment: Moment, category: str, part: int, spans: Spans, over: set[str], *, own: bool) -> str:
        """How a part looks on a rank that holds `spans`, when those exchanges and updates are `over`."""
        start, stop = self.parts[part]
        if not any(first <= start and min(stop, self.unit.numel) <= last for first, last in spans):
            return "coming" if category == moment.sends and not moment.to_owner else "gone"
        if category == "gradients" and "reduce_scatter" not in over:
            return "local"
        old = category == "gradients" or (category == "parameters" and "step" in over)
        return "right" if own or not old else "old"

    def __repr__(self) -> str:
        frames = [
            f"{MOMENTS[name].title}: rank 0 has {', '.join(self._counted(frame[0]))}"
            for name, frame in zip(self.moments, self.frames, strict=True)
        ]
        return f"{self.unit.name} of {self.recording.title}, in frames. {'; '.join(frames)}"

    def _counted(self, rank: dict[str, list[str]]) -> list[str]:
        """What a rank has, in words: parts that are not there are not counted."""
        said = []
        for category, looks in rank.items():
            here = [look for look in looks if look not in ("gone", "coming")]
            old = here.count("old")
            said.append(
                f"{len(here)} of {len(looks)} parts of {category.replace('_', ' ')}" + f" ({old} old)" * (old > 0)
            )
        return said

    # The drawing.

    def svg(self) -> str:
        """The drawing, on white."""
        drawn = [piece for rank in self.recording.ranks for piece in self._names(rank.rank)]
        for number, name in enumerate(self.moments):
            left = LEFT + number * (FRAME + GAP)
            drawn.append(text(left, 14, f"{number + 1}  {MOMENTS[name].title}", ' font-weight="600"'))
            for rank, looks in enumerate(self.frames[number]):
                for category, parts in looks.items():
                    drawn += [self._part(left, rank, category, part, look) for part, look in enumerate(parts)]
            if MOMENTS[name].sends:
                drawn += self._arrows(left, MOMENTS[name])
        bottom = TOP + RANK * len(self.recording.ranks)
        width = LEFT + len(self.moments) * (FRAME + GAP) - GAP
        return drawing(repr(self), drawn + self._legend(bottom), width, bottom + 40)

    def _names(self, rank: int) -> list[str]:
        end = f' text-anchor="end" fill="{NEUTRAL}"'
        rows = [text(LEFT - 8, _top(rank, each) + 12, each.replace("_", " "), end) for each in STATE]
        top = _top(rank, STATE[0])
        return [box(0, top, 12, 12, colour(rank)), text(16, top + 11, f"rank {rank}", ' font-weight="600"'), *rows]

    def _x(self, left: float, part: int) -> tuple[float, float]:
        """Where a part begins in its row, and how long it is."""
        scale = FRAME / self.parts[-1][1]
        start, stop = self.parts[part]
        return left + start * scale, (stop - start) * scale

    def _part(self, left: float, rank: int, category: str, part: int, look: str) -> str:
        x, width = self._x(left, part)
        top = _top(rank, category)
        shape = _shape(x + 1, top, width - 2, look, rank if look == "local" else part)
        return shape + (digit(x + width / 3, top + 12, part) if look == "right" else "")

    def _arrows(self, left: float, moment: Moment) -> list[str]:
        """One from each rank to the owner of each part, or back."""
        drawn = []
        for part in range(len(self.parts)):
            x, width = self._x(left, part)
            for rank in range(len(self.parts)):
                if rank != part:
                    start, end = (rank, part) if moment.to_owner else (part, rank)
                    tops = _top(start, moment.sends), _top(end, moment.sends)
                    drawn.append(_arrow(x + width * 0.7, tops, part))
        return drawn

    def _legend(self, top: float) -> list[str]:
        seen = {look for frame in self.frames for rank in frame for looks in rank.values() for look in looks}
        drawn, x = [], 0
        for look, words in LOOKS.items():
            if look in seen:
                drawn += [_shape(x, top + 8, 24, look, 0), text(x + 30, top + 20, words)]
                x += 50 + 7 * len(words)
        return drawn


def _top(rank: int, category: str) -> int:
    """Where the row of a category begins."""
    return TOP + RANK * rank + ROW * STATE.index(category)


def _shape(x: float, y: float, width: float, look: str, rank: int) -> str:
    """A part: filled, hatched, pale, dashed or empty."""
    if look == "right":
        return box(x, y, width, BAR, colour(rank))
    if look == "old":
        return box(x, y, width, BAR, f'fill="{colour(rank)}" fill-opacity="0.25"')
    if look == "local":
        lengths = [(at, min(BAR, width - at)) for at in range(0, round(width), 6)]
        lines = "".join(f"M{x + at:g} {y + BAR}l{length:g} {-length:g}" for at, length in lengths)
        frame = box(x, y, width, BAR, f'fill="none" stroke="{colour(rank)}"')
        return f'{frame}<path d="{lines}" stroke="{colour(rank)}" stroke-width="1.5"/>'
    dashes = ' stroke-dasharray="3 2"' if look == "coming" else ' stroke-opacity="0.35"'
    return box(x, y, width, BAR, f'fill="none" stroke="{INK if look == "coming" else NEUTRAL}"{dashes}')


def _arrow(x: float, tops: tuple[int, int], part: int) -> str:
    """From the middle of one row to the edge of another, bent the more the farther it goes, in the owner's colour."""
    top, end = tops
    down = 1 if end > top else -1
    start, stop = top + BAR / 2, end + (0 if down > 0 else BAR)
    bend = down * (4 + 8 * (abs(end - top) // RANK))
    line = f"M{x:g} {start:g}Q{x + bend:g} {(start + stop) / 2:g} {x + down * HEAD:g} {stop - down * HEAD:g}"
    head = f"M{x + down * HEAD:g} {stop:g}l{-HEAD} {-down * 2 * HEAD}h{2 * HEAD}z"
    return (
        f'<path d="{line}" fill="none" stroke="#fff" stroke-width="4"/>'
        f'<path d="{line}" fill="none" stroke="{colour(part)}" stroke-width="2"/>'
        f'<path d="{head}" fill="{colour(part)}" stroke="{INK}" stroke-width="0.5"/>'
        f'<circle cx="{x:g}" cy="{start:g}" r="3" fill="{colour(part)}" stroke="#fff"/>'
    )
