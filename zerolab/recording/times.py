"""How long a step took, and for how much of it each rank waited, told by the clock that the recording has.

Blocked is the time for which a rank cannot compute because of communication: on a GPU the compute stream waits for a
collective or executes one itself; without one the host waits. It is not exposed communication, which is a step minus
the same step in which nothing is sent: a rank is also blocked while it waits for another that is slower, and what is
sent slows down what is computed meanwhile.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from zerolab.recording.events import COMPUTE, Interval, RankRecording
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
    total, reached = 0, None
    for start, end in sorted(intervals):
        begin = start if reached is None else max(start, reached)
        total += max(0, end - begin)
        reached = max(begin, end)
    return total


def _of_rank(rank: RankRecording, step: int) -> dict[str, Any]:
    events = [event for event in rank.events if event.step == step]
    sent = [event for event in events if event.kind == "collective" and event.parent is None]
    of_device = any(event.stream for event in events)
    computed = [event.interval for event in events if event.kind in ("module", "optimizer")]
    waited = [event for event in events if event.kind == "wait"]
    within = [event for event in sent if event.stream == COMPUTE]  # it computes nothing meanwhile
    blocked = [event.interval for event in (*waited, *within)]
    # A wait inside native code, or of one stream for another, was not seen: a sum without it would be too small.
    seen = {event.parent for event in waited} | {event.seq for event in within}
    is_known = all(event.seq in seen for event in sent)
    times = [event.interval for event in events if event.stream or not of_device]
    whole = max((end for _, end in times), default=0) - min((start for start, _ in times), default=0)
    figures = {
        "step_ms": whole,
        "computing_ms": length([*computed, *blocked]) - length(blocked) if is_known else None,
        "communication_ms": length(event.interval for event in sent),
        "blocked_ms": length(blocked) if is_known else None,
    }
    return {name: None if time is None else time / 1e6 for name, time in figures.items()}
