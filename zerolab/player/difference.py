"""The first thing that two recordings did differently: a collective, or what a rank held."""

from collections.abc import Iterator
from itertools import zip_longest
from typing import TYPE_CHECKING

from zerolab.recording.events import Event, RankRecording

if TYPE_CHECKING:
    from zerolab.recording.recording import Recording

# Times, bytes in use and lines of source differ between any two runs; these differ only if something else was done.
COMPARED = ("step", "op", "numel", "category")

Pair = tuple[Event | None, Event | None]


def _collectives(rank: RankRecording) -> list[Event]:
    """A rank's collectives by their number, without what they consist of, and without checks outside of the steps."""
    # Sends and receives are left out: how a system takes a collective apart is its own business.
    found = [event for event in rank.events if event.kind == "collective" and event.parent is None]
    compared = [event for event in found if event.step or event.unit]
    # By number, not by time: two collectives under way at once may end in either order, on each run another.
    return sorted(compared, key=lambda event: (event.number is None, event.number or 0, event.seq))


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
    found: list[tuple[Pair, int]] = []
    others = {rank.rank: rank for rank in second.ranks}
    # Amounts first: FSDP2 cuts differently everywhere, and that would hide that it holds the root for longer.
    for exactly in (False, True):
        for rank in first.ranks:
            if rank.rank in others:
                found += [(pair, rank.rank) for pair in _differences(rank, others[rank.rank], exactly=exactly)]
        if found:
            break
    if not found:
        return None
    pair, number = min(found, key=lambda entry: _when(entry[0]))
    return {"rank": number, "events": [_place(first, pair[0]), _place(second, pair[1])]}
