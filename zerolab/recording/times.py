"""How long a step took, and for how much of it each rank waited, told by the clock that the recording has.

Blocked is the time for which a rank cannot compute because of communication: on a GPU the compute stream waits for a
collective or executes one itself; without a GPU the host waits. It is not exposed communication, which is a step minus
the same step with nothing sent: a rank is also blocked while it waits for a slower one, and sending slows down what is
computed meanwhile.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from zerolab.recording.events import COMPUTE, Event, Interval, RankRecording, merge_spans
from zerolab.tables import Table

if TYPE_CHECKING:
    from zerolab.recording.recording import Recording


def times(recording: "Recording", step: int | None) -> Table:
    """One row a rank: milliseconds of a step, computing, communicating and blocked. ValueError for an unknown step."""
    chosen, last = recording.info.steps if step is None else step, recording.info.steps
    if not 1 <= chosen <= last:
        raise ValueError(f"step {step!r} is not in this recording: choose one of 1 to {last}")
    rows = [{"rank": rank.rank} | _of_rank(rank, chosen) for rank in recording.ranks]
    return Table(rows, f"step {chosen}, {clock(recording)}", times=True)


def clock(recording: "Recording") -> str:
    """Whose time a recording tells: `GPU time` where its device stamped the events, `host time` elsewhere."""
    return "GPU time" if any(event.stream for rank in recording.ranks for event in rank.events) else "host time"


def length(intervals: Iterable[Interval]) -> int:
    """How much time lies in one of the intervals or more."""
    return sum(max(0, end - start) for start, end in merge_spans(intervals))


def _of_rank(rank: RankRecording, step: int) -> dict[str, Any]:
    events = [event for event in rank.events if event.step == step]
    sent = [event for event in events if event.kind == "collective" and event.parent is None]
    computed = [event.interval for event in events if event.kind in ("module", "optimizer")]
    blocked = _blocked(events, sent)
    of_device = any(event.stream for event in events)
    times = [event.interval for event in events if event.stream or not of_device]
    figures = {
        "step_ms": max((end for _, end in times), default=0) - min((start for start, _ in times), default=0),
        "computing_ms": None if blocked is None else length([*computed, *blocked]) - length(blocked),
        "communication_ms": length(event.interval for event in sent),
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
