"""All ranks' files as one recording: checked for agreement, on one clock, with a list of what none of them says."""

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import combinations, count
from operator import itemgetter
from typing import Any

from zerolab.opening import found, sizes
from zerolab.opening.flight import UNFINISHED, named_rank_in, on_one_count, rank_in
from zerolab.opening.flight import read as read_dump
from zerolab.opening.found import FLIGHT, KINETO, SNAPSHOT, Foreign, Found
from zerolab.opening.snapshot import live_of
from zerolab.recording import clocks
from zerolab.recording.events import Event, RankInfo, RankRecording, UnitInfo
from zerolab.recording.events import count as counted
from zerolab.recording.recording import Recording

APART = 1_000_000_000  # nanoseconds by which clocks of two nodes may differ
SAME_RUN = "give the files of one run, one of each rank"


def together(files: Sequence[Found]) -> Recording:
    """One recording of all files. Raises Foreign if they do not belong together."""
    recordings = ranks_of(files)
    hosts = {rank: next((one.host for one in mine if one.host), None) for rank, mine in _by_rank(files).items()}
    try:
        aligned, clock = clocks.on_one_clock(recordings, [hosts[one.rank] for one in recordings])
    except ValueError:
        aligned, clock = recordings, "times of each node are on its own clock: they have no collective in common"
    lacks = list(dict.fromkeys(lack for recording in aligned for lack in recording.info.lacks))
    merged = Recording.merge([replace(one, info=replace(one.info, lacks=lacks)) for one in aligned])
    merged.info = replace(merged.info, clocks=clock)
    return merged


def ranks_of(files: Sequence[Found], different: int = 1) -> list[RankRecording]:
    """Each rank's recording, on its own clock. Raises Foreign if they do not belong together.

    Args:
        files: what was found in the files.
        different: how many collectives two ranks must share before their order can tell whether they belong together.
    """
    files = on_one_count(files)
    ranks = _by_rank(files)
    _alike(files)
    world_size = _world_size(files, ranks)
    _at_one_time(files)
    recordings = [_rank(rank, world_size, mine) for rank, mine in sorted(ranks.items())]
    _in_one_order(recordings, different)
    return recordings


def _by_rank(files: Sequence[Found]) -> dict[int, list[Found]]:
    """Each rank's files; if neither a file nor its name says a rank, it is the only one of its kind."""
    ranks: dict[int, list[Found]] = defaultdict(list)
    alone = len({one.tool for one in files}) == len(files)
    for one in files:
        rank = one.rank
        if rank is None and one.tool == KINETO:  # of one trace, another number may be a date
            rank = named_rank_in(one.name) if alone else rank_in(one.name)
        if rank is None:
            if not alone:
                raise Foreign(f"{one.said}, does not say of which rank it is: name it with its rank, such as rank-0")
            rank = next((other.rank for other in files if other.rank is not None), 0)
        for other in ranks[rank]:
            if other.tool == one.tool:
                raise Foreign(f"{other.name!r} and {one.name!r} are both of rank {rank}: {SAME_RUN}")
        ranks[rank].append(one)
    kinds = {rank: sorted(one.tool for one in mine) for rank, mine in ranks.items()}
    (first, theirs), *rest = kinds.items()
    for rank, tools in rest:
        if tools != theirs:
            said = f"of rank {first} there is a {' and a '.join(theirs)}, of rank {rank} a {' and a '.join(tools)}"
            raise Foreign(f"{said}: give the same kinds of files of each rank")
    return dict(ranks)


def _alike(files: Sequence[Found]) -> None:
    """Refuses files of different versions, sizes of world, backends or steps."""
    for one, other in combinations(files, 2):
        differ = {
            key for key in one.versions.keys() & other.versions.keys() if one.versions[key] != other.versions[key]
        }
        if one.tool == other.tool and differ:
            key = min(differ)
            said = f"{one.versions[key]} in {one.name!r} and {other.versions[key]} in {other.name!r}"
            raise Foreign(f"{key} is {said}: different versions of torch wrote them, so {SAME_RUN}")
        if None not in (one.torch, other.torch) and one.torch != other.torch:
            raise Foreign(f"torch {one.torch} wrote {one.name!r} and {other.torch} {other.name!r}: {SAME_RUN}")
        if None not in (one.world_size, other.world_size) and one.world_size != other.world_size:
            said = f"{one.name!r} is of {counted(one.world_size or 0, 'rank')}, {other.name!r} of {other.world_size}"
            raise Foreign(f"{said}, so they are of different runs: {SAME_RUN}")
        if None not in (one.backend, other.backend) and one.backend != other.backend:
            said = f"{one.name!r} is of {one.backend}, {other.name!r} of {other.backend}"
            raise Foreign(f"{said}, so they are of different runs: {SAME_RUN}")
        if one.steps and other.steps and one.steps != other.steps:
            said = f"{one.name!r} has {_steps(one.steps)}, {other.name!r} {_steps(other.steps)}"
            raise Foreign(f"{said}: profile the same steps on all ranks, and {SAME_RUN}")
        # At the same nanoseconds; of which rank it is, a trace may say itself.
        if one.tool == other.tool and (one.tool != KINETO or one.rank is None) and one.events == other.events:
            said = f"{one.name!r} and {other.name!r} have the same events"
            raise Foreign(f"{said}: one is a copy of the other, so {SAME_RUN}")


def _steps(steps: list[int]) -> str:
    return f"step {steps[0]}" if len(steps) == 1 else f"steps {steps[0]} to {steps[-1]}"


def _world_size(files: Sequence[Found], ranks: Iterable[int]) -> int:
    highest = max(ranks)
    said = next((one.world_size for one in files if one.world_size is not None), highest + 1)
    if highest >= said:
        raise Foreign(f"there is a file of rank {highest}, but a world of {counted(said, 'rank')}: {SAME_RUN}")
    if said > 1 << 20:
        raise Foreign(f"{files[0].name!r} says that there are {said:,} ranks: it is damaged, so fetch it again")
    return said


def _at_one_time(files: Sequence[Found]) -> None:
    """Refuses files of which one begins after another has ended."""
    times = [(min(e.t_start for e in one.events), max(e.t_end for e in one.events), one) for one in files]
    for (begun, ended, one), (other_begun, other_ended, other) in combinations(times, 2):
        gap = max(begun, other_begun) - min(ended, other_ended)
        if gap > (0 if one.host is not None and one.host == other.host else APART):
            later, earlier = (one, other) if begun > other_begun else (other, one)
            said = f"{later.name!r} begins {gap / 1e9:,.1f} seconds after {earlier.name!r} has ended"
            raise Foreign(f"{said}, so they are of different runs: {SAME_RUN}")


def _in_one_order(recordings: list[RankRecording], least: int) -> None:
    """Refuses ranks that did not make the same collectives: one mismatch is a bug in a run, half of them two runs."""
    for one, other in combinations(recordings, 2):
        mine, theirs = _numbered(one), _numbered(other)
        both = mine.keys() & theirs.keys()
        differ = [key for key in both if mine[key] != theirs[key]]
        if len(both) >= least and len(differ) * 2 > len(both):
            said = f"{len(differ)} of {counted(len(both), 'collective')} of ranks {one.rank} and {other.rank} differ"
            raise Foreign(f"{said}, so they are of different runs: {SAME_RUN}")


def _numbered(recording: RankRecording) -> dict[tuple[Any, Any], tuple[str, int]]:
    asked = [event for event in recording.events if event.kind == "collective" and event.number is not None]
    return {(event.group, event.number): (event.op, event.numel) for event in asked if event.op != "all_to_all"}


def _rank(rank: int, world_size: int, files: list[Found]) -> RankRecording:
    """One rank's files as its recording, still on its own clock."""
    by_tool = {one.tool: one for one in files}
    trace, flight, memory = by_tool.get(KINETO), by_tool.get(FLIGHT), by_tool.get(SNAPSHOT)
    events = list(trace.events if trace else flight.events if flight else ())
    sources = {key: source for one in files for key, source in one.sources.items()}
    if trace and flight:
        events = _filled(events, trace, flight)
    if memory:
        events = _with_memory(events, memory)
    events = _placed(events, rank, world_size)
    info = _info(files, events, _lacks(files, events))
    units = tuple(UnitInfo(name, 0, 0, "", ()) for name in dict.fromkeys(e.unit for e in events if e.unit))
    complete = all(event.text != UNFINISHED for one in files for event in one.events)
    return RankRecording(rank, world_size, tuple(events), sources, units, info, complete)


# What each kind of file provides unless it says that it lacks it; then no other file's lack of it counts.
_TELLS = {
    KINETO: {found.NO_COLLECTIVES, found.NO_STEPS, found.NO_MODULES, found.NO_UNITS, found.NO_ENDS, found.NO_SCATTERS},
    FLIGHT: {found.NO_COLLECTIVES, found.NO_SOURCE},
    SNAPSHOT: {found.NO_MEMORY},
}


def _lacks(files: list[Found], events: list[Event]) -> list[str]:
    """What none of a rank's files says."""
    sent = [event for event in events if event.kind == "collective"]
    of_sizes = [event for event in sent if event.dtype is None and event.op != "barrier" and event.text is None]
    no_groups = found.UNLISTED if any(one.tool == FLIGHT for one in files) else found.NO_GROUPS
    lacks = [found.NO_SIZES] * bool(of_sizes) + [no_groups] * any(event.text == sizes.NO_GROUP for event in sent)
    for one in files:
        others = [other for other in files if other is not one]
        made_up = {lack for other in others for lack in _TELLS[other.tool] - set(other.lacks)}
        lacks += [lack for lack in one.lacks if lack not in made_up]
    return list(dict.fromkeys(lacks))


def _filled(events: list[Event], trace: Found, flight: Found) -> list[Event]:
    """A trace's collectives with what the flight recorder knows of each: it was created while it was asked for."""
    if flight.document is not None:
        flight = read_dump(flight.document, flight.name, trace.groups)
    entries = sorted(flight.events, key=lambda entry: entry.t_start)
    times = [entry.t_start for entry in entries]
    filled, left = list(events), set(range(len(entries)))
    sent = [place for place, event in enumerate(events) if event.kind == "collective"]
    for place in sorted(sent, key=lambda place: events[place].t_end):  # one within another, of two threads, comes first
        event = events[place]
        begun = range(bisect_left(times, event.t_start), bisect_right(times, event.t_end))
        like = (each for each in begun if each in left and entries[each].op == event.op)
        if (its := next(like, None)) is not None:  # later ones are of what came next
            left.remove(its)
            names = ("source", *(sizes.Message._fields if event.dtype is None else ()))
            filled[place] = replace(event, **{name: getattr(entries[its], name) for name in names})
    if sent and len(left) == len(entries):
        raise Foreign(f"{trace.name!r} and {flight.name!r} have no collective in common: {SAME_RUN}")
    return filled


def _with_memory(events: list[Event], memory: Found) -> list[Event]:
    """The events with the live bytes at their ends, and the moments of the snapshot among them."""
    filled = []
    for event in events:
        place = bisect_right(memory.levels, event.t_end, key=itemgetter(0))
        filled.append(replace(event, live=live_of(memory.levels[place - 1][1]) if place else {}))
    steps = sorted((event.t_start, event.step, event.phase) for event in events)
    for level in memory.events:
        place = bisect_right(steps, level.t_start, key=lambda one: one[0]) - 1
        _, step, phase = steps[place] if place >= 0 else (0, 0, level.phase)
        filled.append(replace(level, step=step, phase=phase))
    return filled


def _placed(events: list[Event], rank: int, world_size: int) -> list[Event]:
    """The events in the order in which they began, the collectives of each group numbered."""
    numbers: dict[tuple[int, ...] | None, Any] = defaultdict(count)
    placed = []
    for seq, event in enumerate(sorted(events, key=lambda event: (event.t_start, -event.t_end))):
        group = event.group if event.group is None or len(event.group) < world_size else None
        number = event.number
        told = event.group is not None and event.op not in ("send", "recv")
        if number is None and event.kind == "collective" and told:
            number = next(numbers[group])
        placed.append(replace(event, rank=rank, seq=seq, group=group, number=number))
    return placed


def _info(files: list[Found], events: list[Event], lacks: list[str]) -> RankInfo:
    steps = max((event.step for event in events), default=0)
    counted = next((one.steps for one in files if one.steps), [])
    sent: Counter[int] = Counter()
    for event in events:
        sent[event.step] += event.logical_bytes
    known = not {found.NO_SIZES, found.NO_GROUPS, found.UNLISTED, found.NO_COLLECTIVES} & set(lacks)
    has_memory = any(one.tool == SNAPSHOT for one in files)
    return RankInfo(
        backend=next((one.backend for one in files if one.backend), None),
        device="cuda" if any(one.device == "cuda" for one in files) else "cpu",
        optimizer=next((one.optimizer for one in files if one.optimizer), None),
        torch=next((one.torch for one in files if one.torch), None),
        steps=steps,
        first_step=counted[0] + 1 if counted else None,  # torch counts them from 0
        times_only=not has_memory,
        total_only=has_memory,
        origin=" and ".join(f"a {one.tool}" for one in files),
        lacks=lacks,
        started_ns=min(event.t_start for event in events),
        logical_bytes=[sent[step] for step in range(1, steps + 1)] if known else [],
        wire_bytes=[None] * steps,
    )
