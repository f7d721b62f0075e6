"""A memory snapshot of torch's allocator: how many bytes its tensors had on a GPU, moment by moment.

Written by `torch.cuda.memory._dump_snapshot()` after `_record_memory_history()`. It knows addresses, sizes and lines of
source, not what a tensor is for: all bytes count as `other`. Source: torch/cuda/memory.py, torch/cuda/_memory_viz.py.
"""

from collections.abc import Iterator
from itertools import accumulate
from typing import Any

from zerolab.opening import found
from zerolab.opening.flight import frames_of, line_of, named_rank_in
from zerolab.opening.found import Foreign, Found
from zerolab.recording.events import CATEGORIES, Event

MOMENTS = 1000  # more cannot be drawn; of each stretch of time, the highest and the lowest are kept
_ALLOCATES, _FREES = "alloc", "free_completed"


def is_one(document: Any) -> bool:
    """Whether a pickle is a memory snapshot."""
    return isinstance(document, dict) and isinstance(document.get("device_traces"), list) and "segments" in document


def read(document: dict[str, Any], name: str) -> Found:
    """Reads a snapshot. Raises Foreign if it is damaged, or was made without a history."""
    listed = enumerate(document["device_traces"])
    traces = {device: trace for device, trace in listed if isinstance(trace, list) and trace}
    if not traces:
        why = "call torch.cuda.memory._record_memory_history() before the training"
        raise Foreign(f"{name!r} is a {found.SNAPSHOT} without a history, so nothing of it can be played: {why}")
    if len(traces) > 1:
        raise Foreign(f"{name!r} has {len(traces)} devices in it, and a rank has one: give a snapshot of each rank")
    # Another number is part of a date or a time: torch's tutorial names snapshots after the moment they are made.
    said = Found(name, found.SNAPSHOT, rank=named_rank_in(name), device="cuda")
    (device, trace), *_ = traces.items()
    levels = _levels(trace, _in_use(document["segments"], device), name)
    said.levels = [(time, total) for time, total, _ in levels]
    for time, total, entry in _moments(levels):
        frames = (frame for frame in frames_of(entry.get("frames")) if frame[0].endswith(".py"))
        line, text = line_of(frames, said), f"{total:,} bytes are allocated, of all tensors together"
        said.events.append(
            Event(0, 0, time, time, 0, "setup", "memory", "allocated", live=live_of(total), source=line, text=text)
        )
    if not said.events:
        raise Foreign(f"{name!r} is a {found.SNAPSHOT} without times: torch 2.2 and later write them")
    said.lacks = [found.NO_CATEGORIES, found.NO_STEPS, found.NO_MODULES, found.NO_COLLECTIVES]
    return said


def live_of(total: int) -> dict[str, int]:
    """Bytes by category, where nobody knows what they are for."""
    return {category: total if category == "other" else 0 for category in CATEGORIES}


def _in_use(segments: Any, device: int) -> int:
    """The bytes of a device's blocks that are in use, or wait to be freed, when the snapshot is made."""
    mine = (one for one in _dicts(segments) if one.get("device", device) == device)
    states = ((block, block.get("state")) for one in mine for block in _dicts(one.get("blocks")))
    used = (block for block, state in states if isinstance(state, str) and state.startswith("active"))
    return sum(_size(block) or 0 for block in used)


def _dicts(listed: Any) -> list[dict[str, Any]]:
    return [one for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []


def _size(entry: dict[str, Any]) -> int | None:
    size = entry.get("requested_size", entry.get("size"))
    return size if type(size) is int and 0 <= size < 1 << 53 else None


def _levels(trace: list[Any], end: int, name: str) -> list[tuple[int, int, dict[str, Any]]]:
    """After each entry that changes it, the time and the live bytes; counted backwards from what is known: the end."""
    changes: list[tuple[int, int, dict[str, Any]]] = []
    for entry in trace:
        if not isinstance(entry, dict) or entry.get("action") not in (_ALLOCATES, _FREES):
            continue
        time, size = entry.get("time_us", 0), _size(entry) if isinstance(entry.get("size"), int) else None
        if type(time) is not int or not 0 <= time < 1 << 52 or size is None:
            raise Foreign(f"{name!r} is a damaged {found.SNAPSHOT}: an entry is {found.short(entry)}; fetch it again")
        if time:
            changes.append((time * 1000, size if entry["action"] == _ALLOCATES else -size, entry))
    _, *levels = accumulate((change for _, change, _ in changes), initial=end - sum(change for _, change, _ in changes))
    return [(time, max(0, level), entry) for (time, _, entry), level in zip(changes, levels, strict=True)]


def _moments(levels: list[tuple[int, int, dict[str, Any]]]) -> Iterator[tuple[int, int, dict[str, Any]]]:
    """All levels if they are few; or else of each stretch the first of the highest and of the lowest, in order."""
    if len(levels) <= 2 * MOMENTS:
        yield from levels
        return
    stretch = -(-len(levels) // MOMENTS)
    for start in range(0, len(levels), stretch):
        part = levels[start : start + stretch]
        places = {max(range(len(part)), key=lambda i: part[i][1]), min(range(len(part)), key=lambda i: part[i][1])}
        for place in sorted(places):
            yield part[place]
