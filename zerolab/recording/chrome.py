"""A recording in Chrome's trace format, which Perfetto and chrome://tracing open.

Ranks are processes, streams are threads, memory is a counter. Events of one thread must lie beside or inside one
another, so collectives that overlap get threads of their own. Times are microseconds.
Source: Trace Event Format, Google, section "Complete Events" and those on metadata and counters.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from zerolab.recording.events import Event, RankRecording

if TYPE_CHECKING:
    from zerolab.recording.recording import Recording

COMPUTE, WAITING, COMMUNICATION = 0, 1, 2  # threads; more collectives at once take the numbers after the last


def trace(recording: "Recording") -> dict[str, Any]:
    """The whole recording as the format's JSON object."""
    events = [entry for rank in recording.ranks for entry in _rank(rank)]
    title = f"{recording.meta.get('stage')} on {recording.world_size} ranks"
    simulated = bool(recording.meta.get("simulated"))
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"title": title, "simulated": simulated}}


def _rank(rank: RankRecording) -> Iterator[dict[str, Any]]:
    pid = rank.rank
    yield _name("process_name", pid, 0, f"rank {pid}")
    yield {"ph": "M", "name": "process_sort_index", "pid": pid, "tid": 0, "args": {"sort_index": pid}}
    yield _name("thread_name", pid, COMPUTE, "computation")
    yield _name("thread_name", pid, WAITING, "waiting")
    busy_until: list[int] = []
    for event in sorted(rank.events, key=lambda event: (event.t_start, event.seq)):
        if event.kind in ("module", "optimizer"):
            yield _complete(event, COMPUTE)
        elif event.kind == "wait":
            yield _complete(event, WAITING)
        elif event.kind == "collective" and event.parent is None:  # its sends and receives lie within it
            lane = next((lane for lane, until in enumerate(busy_until) if until <= event.t_start), len(busy_until))
            if lane == len(busy_until):
                busy_until.append(0)
                yield _name("thread_name", pid, COMMUNICATION + lane, "communication" + f" {lane + 1}" * (lane > 0))
            busy_until[lane] = event.t_end
            yield _complete(event, COMMUNICATION + lane)
    yield from _memory(rank)


def _memory(rank: RankRecording) -> Iterator[dict[str, Any]]:
    """The live bytes as a counter, in order of time: an event tells them at its end, and so after those within it."""
    told = [(event.t_start if event.op == "peak" else event.t_end, event.live) for event in rank.events if event.live]
    for time, live in sorted(told, key=lambda moment: moment[0]):
        yield {"ph": "C", "name": "memory", "pid": rank.rank, "tid": 0, "ts": time / 1000, "args": dict(live)}


def _complete(event: Event, thread: int) -> dict[str, Any]:
    detail = {"step": event.step, "elements": event.numel, "bytes sent": event.logical_bytes}
    name = f"{event.op} {event.unit}" if event.unit else event.op
    return {
        "ph": "X",
        "name": f"wait: {name}" if event.kind == "wait" else name,
        "cat": event.phase,
        "pid": event.rank,
        "tid": thread,
        "ts": event.t_start / 1000,
        "dur": (event.t_end - event.t_start) / 1000,
        "args": {key: value for key, value in detail.items() if value},
    }


def _name(kind: str, pid: int, tid: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": {"name": name}}
