"""The first thing that two recordings did differently: a collective, or what a rank held."""

from collections.abc import Iterator
from itertools import zip_longest
from typing import TYPE_CHECKING

from zerolab.recording.events import Event, RankRecording

if TYPE_CHECKING:
    from zerolab.recording.recording import Recording

COMPARED = ("step", "op", "unit", "numel", "category", "spans")

Pair = tuple[Event | None, Event | None]


def _collectives(rank: RankRecording) -> list[Event]:
    """A rank's collectives by their number, without the sends and receives that they consist of."""
    found = [event for event in rank.events if event.kind == "collective" and event.parent is None]
    return sorted(found, key=lambda event: (event.number is None, event.number or 0, event.seq))


def _holds(rank: RankRecording) -> list[Event]:
    """A rank's changes of ownership in the order in which they were written."""
    return [event for event in rank.events if event.op == "hold"]


def _same(one: Event | None, other: Event | None) -> bool:
    """Whether two events did the same; times, sizes in memory and lines of source do not count."""
    if one is None or other is None:
        return one is other
    return all(getattr(one, name) == getattr(other, name) for name in COMPARED)


def _differences(first: RankRecording, second: RankRecording) -> Iterator[Pair]:
    """The first pair that differs among a rank's collectives, and the first among its holdings."""
    for events in (_collectives, _holds):
        pairs = zip_longest(events(first), events(second))
        different = next((pair for pair in pairs if not _same(*pair)), None)
        if different:
            yield different


def _place(recording: "Recording", event: Event | None) -> int | None:
    """An event's place in the player's order."""
    if event is None:
        return None
    every = ((e.t_end, e.rank, e.seq) for rank in recording.ranks for e in rank.events)
    key = (event.t_end, event.rank, event.seq)
    return sum(other < key for other in every)


def first_difference(first: "Recording", second: "Recording") -> dict[str, object] | None:
    """Where two recordings part: `{"rank", "events": [place in first, place in second]}`; None if they never do.

    A place is one in the player's order, and None where one recording had nothing more.

    Compared are, rank by rank, the collectives in their order (kind, unit, elements) and what was held in its order;
    of several differences the one that came earliest in a training step wins.
    """
    found = []
    others = {rank.rank: rank for rank in second.ranks}
    for rank in first.ranks:
        if rank.rank in others:
            found += [(pair, rank.rank) for pair in _differences(rank, others[rank.rank])]
    if not found:
        return None
    pair, number = min(found, key=lambda entry: min((e.step, e.t_end) for e in entry[0] if e is not None))
    return {"rank": number, "events": [_place(first, pair[0]), _place(second, pair[1])]}
