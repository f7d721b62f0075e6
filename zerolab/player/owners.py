"""Who keeps which part of a unit, read off a recording: the part that a rank never lets go of is the one it owns."""

from collections.abc import Collection, Iterable
from itertools import chain, pairwise
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

from zerolab.recording.events import Event, Spans, UnitInfo
from zerolab.theory import SHARDED

if TYPE_CHECKING:
    from zerolab.recording.recording import Recording

_SIZE = attrgetter("held")
Whole = list[list[int]]
"""Parts of a unit's flat that are a whole together: `[start, stop, rank]`."""


class Range(NamedTuple):
    """The least and the most of a unit that a rank was ever recorded to hold."""

    least: Event
    most: Event


Held = dict[tuple[str, str], dict[int, Range]]
"""By unit and category, then by rank."""


def held_by(events: Iterable[Event]) -> Held:
    """For every unit and category the range of what each rank held. What is gathered comes and goes."""
    held: Held = {}
    for event in events:
        if event.op == "hold" and event.unit and event.category and event.spans:
            of_ranks = held.setdefault((event.unit, event.category), {})
            least, most = of_ranks.get(event.rank, (event, event))
            of_ranks[event.rank] = Range(min(least, event, key=_SIZE), max(most, event, key=_SIZE))
    return held


def owners(recording: "Recording", unit: UnitInfo, held: Held) -> list[Whole] | None:
    """Who keeps which part of a unit's flat, one whole after another; None if all keep all.

    Where every rank always held everything (ZeRO-1 under an optimizer without state), the stage's own rule is used: N
    equal parts in rank order. Under hybrid sharding each replica has a whole of its own. So have ranks that share the
    computing of a unit, as under tensor parallelism: of what they gather, some have this and others that, and none has
    all.
    """
    found = _kept(unit, held, range(recording.world_size))
    is_cut = bool(SHARDED.get(str(recording.info.stage))) and not (unit.frozen or unit.replicated)
    if found is None and (recording.world_size == 1 or is_cut):
        share = unit.padded // recording.world_size
        return [[[rank * share, (rank + 1) * share, rank] for rank in range(recording.world_size)]]
    groups = _sharers(unit, held)
    if len(groups) > 1 and (found is None or _is_gathered(held.get((unit.name, "parameters"), {}))):
        wholes = [_kept(unit, held, ranks, alone=True) or [] for ranks in groups]
        return [*chain.from_iterable(wholes)] if all(wholes) else found
    return found


def _is_gathered(ranges: dict[int, Range]) -> bool:
    return any(least.held < most.held for least, most in ranges.values())


def _sharers(unit: UnitInfo, held: Held) -> list[list[int]]:
    """The ranks in groups that gather the same of a unit, if none ever has all of it.

    Of one that was never gathered, such as one that no forward came to, they are those of a unit that was.
    """
    own = held.get((unit.name, "parameters"), {})
    if any(most.held >= 0.99 * unit.numel for _, most in own.values()):
        return []
    others = (ranges for (_, category), ranges in held.items() if category == "parameters")
    found = [_alike(ranges) for ranges in (own, *others) if _is_gathered(ranges)]
    return next((groups for groups in found if len(groups) > 1), _alike(own))


def _alike(ranges: dict[int, Range]) -> list[list[int]]:
    alike: dict[Spans, list[int]] = {}
    for rank, (_, most) in sorted(ranges.items()):
        alike.setdefault(most.spans or (), []).append(rank)
    return [*alike.values()]


def _kept(unit: UnitInfo, held: Held, group: Collection[int], *, alone: bool = False) -> list[Whole] | None:
    """What some ranks keep of a unit, if it is different parts, of which each has as many copies; `alone`: or one."""
    # Optimizer state first: it is never gathered, so what a rank holds of it is what it owns.
    for category in ("optimizer_state", "parameters", "gradients"):
        keepers: dict[Spans, list[int]] = {}
        for rank, (least, _) in sorted(held.get((unit.name, category), {}).items()):
            if rank in group:
                keepers.setdefault(least.spans or (), []).append(rank)
        parts = sorted((start, stop, ranks) for spans, ranks in keepers.items() for start, stop in spans)
        # Where parts overlap, several ranks kept the same elements, and none owns them.
        disjoint = all(left[1] <= right[0] for left, right in pairwise(parts))
        copies = {len(ranks) for ranks in keepers.values()}
        # Of optimizer state one rank may have all: a unit with a single matrix.
        one_is_enough = alone or (category == "optimizer_state" and copies == {1})
        if disjoint and len(copies) == 1 and len(keepers) > (not one_is_enough):
            return [[[start, stop, ranks[copy]] for start, stop, ranks in parts] for copy in range(max(copies))]
    return None


def whole_of(rank: int, wholes: list[Whole]) -> Whole:
    """Of the wholes that `owners` gives the one that a rank has a part of; of a rank without any the first."""
    return next((whole for whole in wholes if any(owner == rank for *_, owner in whole)), wholes[0])
