"""A recording in Chrome's trace format, which Perfetto and chrome://tracing open.

Ranks are processes, streams are threads, memory is counters, and an arrow leads from each collective to the wait for
it. Events of one thread must follow or contain one another, so overlapping collectives get threads of their own.
Where a device's own times are known, each of its streams is a thread, next to what the host asked for.
Times are in microseconds, memory is in bytes.
Source: Trace Event Format, Google, sections on complete, metadata, counter and flow events. Perfetto 52, by which an
export was read, gives two numbers a special meaning: process 0 is the idle process, and a thread numbered 0, or like
its process, is the process's main thread. So the ranks start at 10,000, and no two threads have the same number.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from zerolab.recording.events import Event, RankRecording

if TYPE_CHECKING:
    from zerolab.recording.recording import Recording

COMPUTE, WAITING, COMMUNICATION = 0, 1, 2  # streams; more collectives at once take the numbers after the last
SAVING = 999
ON_DEVICE = 1000  # the first of a device's own streams
RANKS = 10_000  # more than there are in any recording: a thread's number encodes its stream and its rank


def trace(recording: "Recording") -> dict[str, Any]:
    """The whole recording as the format's JSON object."""
    events = [entry for rank in recording.ranks for entry in _rank(rank)]
    about = {"title": f"{recording.info.stage} on {recording.world_size} ranks", "simulated": recording.info.simulated}
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": about}


def _rank(rank: RankRecording) -> Iterator[dict[str, Any]]:
    yield _name("process_name", rank.rank, COMPUTE, f"rank {rank.rank}")
    yield {**_place(rank.rank, COMPUTE), "ph": "M", "name": "process_sort_index", "args": {"sort_index": rank.rank}}
    yield _name("thread_name", rank.rank, COMPUTE, "computation")
    yield _name("thread_name", rank.rank, WAITING, "waiting")
    busy_until: list[int] = []
    streams: dict[int, int] = {}  # of collectives, by `seq`: where the arrow to their wait begins
    device = sorted({event.stream for event in rank.events if event.stream})
    for place, name in enumerate(device, ON_DEVICE):
        yield _name("thread_name", rank.rank, place, f"{name} stream")
    for event in sorted(rank.events, key=lambda event: (event.t_start, event.seq)):
        if event.stream:
            start, end = event.interval
            yield _complete(replace(event, t_start=start, t_end=end), ON_DEVICE + device.index(event.stream))
            if event.kind == "collective":
                continue
        if event.kind in ("module", "optimizer"):
            yield _complete(event, COMPUTE)
        elif event.kind == "wait":
            yield _complete(event, WAITING)
            if event.parent in streams:
                yield _arrow("f", event, WAITING, event.parent)
        elif event.kind == "collective" and event.parent is None:  # its sends and receives lie within it
            lane = next((lane for lane, until in enumerate(busy_until) if until <= event.t_start), len(busy_until))
            if lane == len(busy_until):
                busy_until.append(0)
                name = "communication" + f" {lane + 1}" * (lane > 0)
                yield _name("thread_name", rank.rank, COMMUNICATION + lane, name)
            busy_until[lane] = event.t_end
            streams[event.seq] = COMMUNICATION + lane
            yield _complete(event, COMMUNICATION + lane)
            yield _arrow("s", event, COMMUNICATION + lane, event.seq)
    yield from _saves(rank)
    yield from _memory(rank)


def _saves(rank: RankRecording) -> Iterator[dict[str, Any]]:
    """What is copied and written for checkpoints: beside the computation, if a thread does it."""
    saves = [event for event in rank.events if event.kind == "save"]
    if any(event.op == "write" for event in saves):
        yield _name("thread_name", rank.rank, SAVING, "saving")
    for event in saves:
        yield _complete(event, SAVING if event.op == "write" else COMPUTE)


def _memory(rank: RankRecording) -> Iterator[dict[str, Any]]:
    """The live bytes as counters, in order of time: an event has those of its end, after the events within it."""
    known = [event for event in rank.events if event.live]
    for event in sorted(known, key=lambda event: event.t_end):
        shared = {**_place(rank.rank, COMPUTE), "ph": "C", "ts": event.t_end / 1000}
        for name, total, live in (("memory", "live", event.live), ("main memory", "live in main memory", event.host)):
            if live:  # Chrome stacks the categories, Perfetto draws each alone and needs their sum
                yield {**shared, "name": name, "args": dict(live)}
                yield {**shared, "name": total, "args": {"bytes": sum(live.values())}}


def _complete(event: Event, stream: int) -> dict[str, Any]:
    detail = {"step": event.step, "elements": event.numel, "bytes sent": event.logical_bytes}
    # The same collective has the same number on every rank of its group, whose first one is number 0.
    numbered: dict[str, Any] = {} if event.number is None else {"collective": event.number}
    if event.group is not None:
        numbered["ranks"] = list(event.group)
    name = f"{event.op} {event.unit}" if event.unit else event.op
    return {
        **_place(event.rank, stream),
        "ph": "X",
        "name": f"wait: {name}" if event.kind == "wait" else name,
        "cat": event.phase,
        "ts": event.t_start / 1000,
        "dur": (event.t_end - event.t_start) / 1000,
        "args": numbered | {key: value for key, value in detail.items() if value},
    }


def _arrow(end: str, event: Event, stream: int, seq: int | None) -> dict[str, Any]:
    """One end of an arrow, "s" or "f", which belongs to the bar that begins then; Perfetto wants a number."""
    shared = {"name": "is waited for", "cat": "wait", "id": event.rank * 10**9 + (seq or 0), "bp": "e"}
    return {**_place(event.rank, stream), **shared, "ph": end, "ts": event.t_start / 1000}


def _name(kind: str, rank: int, stream: int, name: str) -> dict[str, Any]:
    return {**_place(rank, stream), "ph": "M", "name": kind, "args": {"name": name}}


def _place(rank: int, stream: int) -> dict[str, int]:
    """Process and thread; computation is the main thread, which stands first."""
    return {"pid": RANKS + rank, "tid": RANKS * (1 + stream) + rank}
