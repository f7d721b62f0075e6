"""How two recordings differ: in what a rank keeps and sends, and in the first thing that they did differently."""

from collections.abc import Iterator
from itertools import zip_longest
from typing import TYPE_CHECKING

from zerolab.recording.events import Event, RankRecording
from zerolab.tables import show_bytes

if TYPE_CHECKING:
    from zerolab.recording.recording import Recording

# Times, bytes in use and lines of source differ between any two runs; these differ only if something else was done.
COMPARED = ("step", "op", "numel", "category")

Pair = tuple[Event | None, Event | None]


def _collectives(rank: RankRecording) -> list[Event]:
    """A rank's collectives as started, without what they consist of, and without checks outside of steps it has."""
    # Sends and receives are left out: how a system takes a collective apart is its own business.
    whole = (event for event in rank.events if event.kind == "collective" and event.parent is None)
    # As started, not by their end: of two that are under way at once either may be first, on each run another.
    trains = any(event.step for event in rank.events)
    return sorted((e for e in whole if e.step or e.unit or not trains), key=lambda e: (e.number is None, e.seq))


def _holds(rank: RankRecording) -> list[Event]:
    """A rank's changes of ownership as they were written; a part that goes away bit by bit counts as one change.

    FSDP2 lets go of a unit parameter by parameter, which is no other ownership than letting go of it at once.
    """
    kept: list[Event] = []
    for event in rank.events:
        if event.op != "hold":
            continue
        before = kept[-1] if kept else None
        same = before is not None and (before.unit, before.category) == (event.unit, event.category)
        if before is not None and same and len(kept) > 1 and event.held < before.held and _shrinks(kept):
            kept[-1] = event
        else:
            kept.append(event)
    return kept


def _shrinks(kept: list[Event]) -> bool:
    """Whether the last change of ownership already made its unit smaller than the change before it of that unit."""
    # The first release counts by itself, or a release after a gather would be taken for the same release continued.
    last = kept[-1]
    earlier = [e for e in kept[-3:-1] if (e.unit, e.category) == (last.unit, last.category)]
    return bool(earlier) and last.held < earlier[-1].held


def _same(one: Event | None, other: Event | None, *, exactly: bool) -> bool:
    """Whether two events did the same; times, sizes in memory and lines of source do not count.

    `exactly`: also the same elements, not only as many. Collectives of systems that name no unit match any unit.
    """
    if one is None or other is None:
        return one is other
    units_agree = one.unit == other.unit or (one.kind == "collective" and None in {one.unit, other.unit})
    held = one.spans == other.spans if exactly else one.held == other.held
    return units_agree and held and all(getattr(one, name) == getattr(other, name) for name in COMPARED)


def _differences(first: RankRecording, second: RankRecording, *, exactly: bool) -> Iterator[Pair]:
    """The first pair that differs among a rank's collectives, and the first among its holdings."""
    for events in (_collectives, _holds):
        # zip_longest, because having stopped earlier is a difference, too.
        pairs = zip_longest(events(first), events(second))
        different = next((pair for pair in pairs if not _same(*pair, exactly=exactly)), None)
        if different:
            yield different


def _place(recording: "Recording", event: Event | None) -> int | None:
    """An event's place in the player's order."""
    if event is None:
        return None
    # Counted, not looked up in a sorted list: it is asked for twice in a whole comparison.
    every = ((e.t_end, e.rank, e.seq) for rank in recording.ranks for e in rank.events)
    key = (event.t_end, event.rank, event.seq)
    return sum(other < key for other in every)


def _when(pair: Pair) -> tuple[int, bool, int]:
    """When a difference came: on the first recording's clock, for the two have no common one; else on the second's."""
    event = pair[0] or pair[1]
    return (event.step, pair[0] is None, event.t_end) if event is not None else (0, True, 0)


def first_difference(first: "Recording", second: "Recording") -> dict[str, object] | None:
    """Where two recordings part: `{"rank", "events": [place in first, place in second]}`; None if they never do.

    A place is one in the player's order, and None where one recording had nothing more.

    Rank by rank, the collectives are compared in order (kind, unit, elements), and so is what was held; of
    several differences the one that came earliest in a training step wins. Two that differ nowhere in how much they
    held or sent may still have held other elements: FSDP2 cuts every parameter, ZeRO a unit's flat.
    """
    others = {rank.rank: rank for rank in second.ranks}
    both = [(rank, others[rank.rank]) for rank in first.ranks if rank.rank in others]
    # Amounts first: FSDP2 cuts differently everywhere, and that would hide that it holds the root for longer.
    for exactly in (False, True):
        found = [(pair, one.rank) for one, other in both for pair in _differences(one, other, exactly=exactly)]
        if found:
            pair, number = min(found, key=lambda entry: _when(entry[0]))
            return {"rank": number, "events": [_place(first, pair[0]), _place(second, pair[1])]}
    return None


def in_one_line(first: "Recording", second: "Recording") -> str | None:
    """What a rank keeps and sends under the second, beside the first; None where one has no update to speak of.

    All of it is the first rank's: its state at the last update, and the peak and the traffic of the last step.
    """
    if not (first.ranks and second.ranks):
        return None
    one, other = first.ranks[0].info, second.ranks[0].info
    if not (one.state and other.state and one.logical_bytes and other.logical_bytes):
        return None
    name, base = (info.stage or "your loop" for info in (other, one))
    name, base = (name, base) if name != base else ("the second", "the first")
    begins = name if name == other.stage else name.capitalize()  # a stage keeps its name
    change = {each: other.state[each] - one.state[each] for each in one.state}
    parts = ", ".join(f"{each.replace('_', ' ')} {_signed(by)}" for each, by in change.items() if by)
    kept = f"{begins} keeps {_by(sum(change.values()), 'less', 'more', 'as much as')} {base} at the update"
    peak = _by((other.peak_total or 0) - (one.peak_total or 0), "lower", "higher", "as high")
    sent = _by(other.logical_bytes[-1] - one.logical_bytes[-1], "less", "more", "as much")
    return f"{kept}{f' ({parts})' if parts else ''}, its peak is {peak}, and it sends {sent}."


def _signed(by: int) -> str:
    return f"{'+' if by > 0 else chr(0x2212)}{show_bytes(abs(by))}"


def _by(by: int, below: str, above: str, same: str) -> str:
    """By how many bytes something differs, in words."""
    than = " than" if same.endswith(" as") else ""
    return f"{show_bytes(abs(by))} {below if by < 0 else above}{than}" if by else same
