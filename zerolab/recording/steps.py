"""What a rank did in one step, as tables: what it sent, how long that took, and for how much of it it was blocked.

docs/glossary.md says what counts as blocked, and why that is not exposed communication.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from zerolab.recording.events import COMPUTE, Event, Interval, RankRecording, merge_spans
from zerolab.tables import Table

if TYPE_CHECKING:
    from zerolab.recording.recording import Recording


def traffic(recording: "Recording", step: int | None = None, rank: int | None = None) -> Table:
    """One row a kind of collective: how often in one step, over how many elements, and what a rank must send.

    Steps are counted from 1, and None takes the last; `rank` says whose bytes, and None takes the first. Raises
    ValueError for a step or a rank that is not in the recording. What really left the sockets depends on the machine,
    so it is not in this table: see `wire_bytes`.
    """
    of_rank = recording.rank(rank)
    chosen = _chosen(step, of_rank.info.steps, first=0)
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


def times(recording: "Recording", step: int | None = None) -> Table:
    """One row a rank: milliseconds of one step, computing, communicating, and blocked by communication.

    The title says whose time it is: the GPU's, or the host's. "-" is what was not recorded, such as when that ended for
    which nobody was seen to wait. Steps are counted from 1, and None takes the last. Raises ValueError for a step that
    is not in the recording.
    """
    chosen = _chosen(step, recording.info.steps)
    rows = [{"rank": rank.rank} | _of_rank(rank, chosen) for rank in recording.ranks]
    clock = "GPU time" if any(event.stream for rank in recording.ranks for event in rank.events) else "host time"
    return Table(rows, f"step {chosen}, {clock}", times=True)


def length(intervals: Iterable[Interval]) -> int:
    """How much time lies in one of the intervals or more."""
    return sum(max(0, end - start) for start, end in merge_spans(intervals))


def _chosen(step: int | None, last: int, first: int = 1) -> int:
    if last < first:
        raise ValueError("no training step has ended in this recording: record one or more, each with an update")
    chosen = last if step is None else step
    if not first <= chosen <= last:
        raise ValueError(f"step {step!r} is not in this recording: choose one of 1 to {last}")
    return chosen


def _sum(*values: int | None) -> int | None:
    """None if one of them was not recorded."""
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None


def _of_rank(rank: RankRecording, step: int) -> dict[str, Any]:
    events = [event for event in rank.events if event.step == step]
    sent = [event for event in events if event.kind == "collective" and event.parent is None]
    waited = {event.parent for event in events if event.kind == "wait"}
    # Until it is waited for, a collective has only been asked for; a device's stream and other tools know its end.
    seen = (event.stream or event.seq in waited or event.op == "barrier" for event in sent)
    has_ends = rank.info.origin or rank.world_size == 1 or all(seen)
    computed = [event.interval for event in events if event.kind in ("module", "optimizer")]
    blocked = _blocked(events, sent)
    of_device = any(event.stream for event in events)
    times = [event.interval for event in events if event.stream or not of_device]
    figures = {
        "step_ms": max((end for _, end in times), default=0) - min((start for start, _ in times), default=0),
        "computing_ms": None if blocked is None else length([*computed, *blocked]) - length(blocked),
        "communication_ms": length(event.interval for event in sent) if has_ends else None,
        "blocked_ms": None if blocked is None else length(blocked),
    }
    return {name: None if time is None else time / 1e6 for name, time in figures.items()}


def _blocked(events: list[Event], sent: list[Event]) -> list[Interval] | None:
    """When a rank could not compute because of what it sent; None if some wait for that was not seen."""
    waits = [event for event in events if event.kind == "wait"]
    within = [event for event in sent if event.stream == COMPUTE]  # it computes nothing meanwhile
    found = [*(wait for wait in waits if wait.parent is not None), *within]
    # FSDP has the compute stream wait for the one that gathers, and does not say for what; others do so for copies.
    unnamed = [wait for wait in waits if wait.parent is None]
    seen = {wait.parent for wait in waits} | {event.seq for event in within}
    if any(event.seq not in seen for event in sent):
        if not unnamed:  # they are native code's: a sum without them would be too small
            return None
        found += unnamed
    return [event.interval for event in found if event.kind != "wait" or event.stream in (None, COMPUTE)]
