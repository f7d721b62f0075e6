"""What each rank holds at the optimizer's update, by the rank that owns it."""

from typing import TYPE_CHECKING

from zerolab.player.owners import Whole, held_by, owners, whole_of
from zerolab.recording.events import Spans
from zerolab.theory import STATE_CATEGORIES

if TYPE_CHECKING:
    from zerolab.recording.recording import Recording

Parts = dict[str, list[float]]
"""What a rank holds: by category the bytes of each rank's part of the model."""


def held_at_update(recording: "Recording") -> list[Parts]:
    """What each rank holds at its last update. Raises ValueError before the second step, which completes the state."""
    held = held_by(event for rank in recording.ranks for event in rank.events)
    owned = {}
    for unit in recording.units:
        share = unit.padded // recording.world_size  # where nobody owns it: as ZeRO would divide it
        equal = [[rank * share, (rank + 1) * share, rank] for rank in range(recording.world_size)]
        owned[unit.name] = owners(recording, unit, held) or [equal]
    return [_of_rank(recording, rank, _cuts(rank, owned, recording.world_size)) for rank in range(recording.world_size)]


def _cuts(rank: int, owned: dict[str, list[Whole]], world_size: int) -> list[dict[str, list[tuple[int, int]]]]:
    """By owner, then unit, what is cut for each; of other replicas nothing."""
    cuts: list[dict[str, list[tuple[int, int]]]] = [{} for _ in range(world_size)]
    for unit, wholes in owned.items():
        for start, stop, owner in whole_of(rank, wholes):
            cuts[owner].setdefault(unit, []).append((start, stop))
    return cuts


def _of_rank(recording: "Recording", rank: int, cuts: list[dict[str, list[tuple[int, int]]]]) -> Parts:
    recorded = recording.rank(rank)
    state = recorded.state  # first: without one there is perhaps no update either
    update = max(event.seq for event in recorded.events if event.kind == "optimizer")
    holds = (event for event in recorded.events if event.op == "hold" and event.seq < update)
    spans: dict[tuple[str | None, str | None], Spans] = {(e.category, e.unit): e.spans or () for e in holds}
    found = {}
    for category in STATE_CATEGORIES:
        numels = [
            sum(_common(spans.get((category, unit), ()), pieces) for unit, pieces in units.items()) for units in cuts
        ]
        found[category] = [state[category] * numel / (sum(numels) or 1) for numel in numels]
    return found


def _common(spans: Spans, others: list[tuple[int, int]]) -> int:
    """How many elements are in both."""
    return sum(max(0, min(b, d) - max(a, c)) for a, b in spans for c, d in others)
