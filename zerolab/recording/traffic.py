"""What a rank sends in one step: how many collectives of each kind, over how many elements and bytes."""

from typing import TYPE_CHECKING, Any

from zerolab.tables import Table

if TYPE_CHECKING:
    from zerolab.recording.recording import Recording


def traffic(recording: "Recording", step: int | None, rank: int | None) -> Table:
    """One row per kind of collective. Raises ValueError for an unknown step or rank."""
    of_rank = recording.rank(rank)
    last = of_rank.info.steps
    chosen = last if step is None else step
    if not 0 <= chosen <= last:
        raise ValueError(f"step {step!r} is not in this recording: choose one of 1 to {last}")
    rows: dict[tuple[str, int], dict[str, Any]] = {}
    for event in of_rank.events:
        # Sends and receives within a collective would count the same bytes twice.
        if event.kind == "collective" and event.parent is None and event.step == chosen:
            # A send or a receive has two ends.
            ranks = 2 if event.op in ("send", "recv") else len(event.group or range(recording.world_size))
            empty = {"op": event.op, "count": 0, "ranks": ranks, "elements": 0, "logical bytes": 0}
            row = rows.setdefault((event.op, ranks), empty)
            row["count"] += 1
            row["elements"] = _sum(row["elements"], event.numel if event.is_sized else None)
            row["logical bytes"] = _sum(row["logical bytes"], event.logical_bytes if event.is_sized else None)
    total = {key: _sum(*(row[key] for row in rows.values())) for key in ("count", "elements", "logical bytes")}
    title = f"{recording.title}: step {chosen} of rank {of_rank.rank}"
    return Table([*rows.values(), {"op": "total", **total}], title)


def _sum(*values: int | None) -> int | None:
    """None if one of them was not recorded."""
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None
