"""One clock for ranks on several nodes: how far each rank's clock is from rank 0's, at both ends of a run.

Ranks that run compare their clocks (`pingpong`); of a finished run the collectives tell. Two readings give the drift,
assumed constant between them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from zerolab.recording.events import RankRecording

_NEEDS_ALL = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier")


class Reading(NamedTuple):
    """One look at a rank's clock, in nanoseconds."""

    at: int  # on the rank's own clock
    offset: int  # the rank's clock minus rank 0's
    uncertainty: int  # the offset is right to within this


def from_collectives(first: RankRecording, other: RankRecording) -> Reading:
    """How far a rank's clock is from the first one's, judging by their collectives: none ends before all have begun it.

    Each collective gives two bounds, and the tightest ones count: the offset is the midpoint between them, accurate to
    half the distance. Raises ValueError if the two ranks have no such collective in common.
    """
    theirs = dict(_together(other))
    pairs = [(mine, theirs[number]) for number, mine in _together(first) if number in theirs]
    if not pairs:
        raise ValueError(
            f"rank {other.rank} is on another node than rank {first.rank}, and they have recorded no collective in "
            "common: their clocks cannot be compared, so record at least one whole step"
        )
    least = max(start - end for (_, end), (start, _) in pairs)
    most = min(end - start for (start, _), (_, end) in pairs)
    return Reading(0, (least + most) // 2, abs(most - least + 1) // 2)


def _together(recording: RankRecording) -> Iterator[tuple[int, tuple[int, int]]]:
    """The numbers of the collectives that need all ranks' data, and when each began and had certainly ended here."""
    waits = {event.parent: event.t_end for event in recording.events if event.kind == "wait"}
    updates = [event.t_start for event in recording.events if event.kind == "optimizer"]
    for event in recording.events:
        if event.number is None or event.op not in _NEEDS_ALL or event.group is not None:
            continue
        ended = event.device_end if recording.info.device != "cpu" else waits.get(event.seq)
        if ended is None and event.phase == "reduce" and recording.info.device == "cpu":
            # DDP's own code waits, unseen, before its backward is over; and no rank updates before that.
            ended = next((time for time in updates if time >= event.t_start), None)
        if ended is not None:
            yield event.number, (event.t_start, ended)


def align(recording: RankRecording, start: Reading, end: Reading) -> RankRecording:
    """The same recording with its times on rank 0's clock, read before and after it; `info.clock` says how."""
    drift = (end.offset - start.offset) / max(1, end.at - start.at)

    def here(time: int) -> int:
        # The offset may be years of nanoseconds, which a float does not hold exactly; what has drifted is small.
        return time - start.offset - round((time - start.at) * drift)

    clock = {
        "offset_ns": start.offset,
        "drift_ppm": round(drift * 1e6, 3),
        "uncertainty_ns": max(start.uncertainty, end.uncertainty),
    }
    if recording.info.started_ns is None:
        raise ValueError("the recording does not say when it began: record with Recorder")
    moved = recording.moved(here)
    return replace(moved, info=replace(moved.info, clock=clock))


def on_one_clock(
    recordings: Sequence[RankRecording], hosts: Sequence[str | None]
) -> tuple[list[RankRecording], str | None]:
    """The recordings on the first one's clock, as their collectives tell, and how exactly; one host has one clock.

    Raises ValueError as `from_collectives`.
    """
    pairs = zip(recordings, hosts, strict=True)
    readings = [None if host == hosts[0] else from_collectives(recordings[0], one) for one, host in pairs]
    aligned = [one if at is None else align(one, at, at) for one, at in zip(recordings, readings, strict=True)]
    worst = max((at.uncertainty for at in readings if at is not None), default=None)
    within = "" if worst is None else f"to within {worst / 1e3:.0f} microseconds, as collectives tell"
    return aligned, f"times of all nodes are on one clock, {within}" if within else None
