"""All ranks' recordings merged: one clock, collectives matched across ranks, tables, and a file to keep."""

import json
import os
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, Self, TypeVar

from zerolab import files
from zerolab.recording import explain, jsonfile, memory, steps
from zerolab.recording.events import ByCategory, Event, RankRecording, RunInfo, Source, State, UnitInfo, count

Figures = TypeVar("Figures", bound=Collection[Any])


@dataclass(frozen=True, slots=True)
class Collective:
    """One collective as all its ranks saw it: their events by rank. `ops` has more than one word where they differ.

    `number` counts those of its group, the ranks that take part; None for all.
    """

    number: int
    events: dict[int, Event]
    group: tuple[int, ...] | None = None

    # More than one word is no damage: ranks that disagree are what a mismatch looks like.
    @property
    def ops(self) -> tuple[str, ...]:
        """What the ranks called: one word if they agree."""
        return tuple(dict.fromkeys(event.op for event in self.events.values()))

    @property
    def step(self) -> int:
        """The training step that it belongs to; 0 for what compares the ranks before."""
        return max(event.step for event in self.events.values())


class Recording:
    """What all ranks of one run did, as data.

    `ranks` holds one RankRecording each, in order of rank (a rank that died may be missing), `events` all of their
    events by start, `sources` and `units` what these refer to, `info` what holds for the whole run (stage, optimizer,
    precision, formula, steps and more; each rank's `info` has its figures as well) and `results` what the ranks
    returned, if it was recorded just now. Times are nanoseconds since the first rank began to record.

    You will mostly want `num_params`, `state`, `peak` and `sent`.
    """

    def __init__(
        self,
        ranks: Iterable[RankRecording],
        *,
        world_size: int,
        info: RunInfo,
        units: Iterable[UnitInfo] = (),
        sources: Mapping[str, Source] | None = None,
        results: list[Any] | None = None,
    ) -> None:
        # A list, not a map: with a dead rank the place in it is not the number, so `rank()` looks.
        self.ranks = list(ranks)
        self.world_size, self.info, self.results = world_size, info, results
        self.units, self.sources = tuple(units), dict(sources or {})

    @classmethod
    def merge(cls, rank_recordings: Iterable[RankRecording], results: list[Any] | None = None) -> Self:
        """Brings the ranks' recordings together on one clock that starts with the first of them.

        Raises ValueError if there is none, a rank twice, or recordings of different runs.
        """
        ranks = sorted(rank_recordings, key=lambda recording: recording.rank)
        numbers, sizes = [recording.rank for recording in ranks], {recording.world_size for recording in ranks}
        # The same rank twice is two runs mixed up, and no clock could put them in order.
        if not ranks or len(set(numbers)) < len(numbers) or len(sizes) > 1:
            raise ValueError(
                f"cannot merge recordings of ranks {numbers} out of {sorted(sizes)}: give one of each rank of one run"
            )
        # Before its first event a rank is there already: its start counts, or a late first event would hide a wait.
        zero = min(_start(recording) for recording in ranks)
        sources = {key: source for recording in ranks for key, source in recording.sources.items()}
        # Reversed, so that where ranks differ the lowest one's counts, as in `info`.
        units = {unit.name: unit for recording in reversed(ranks) for unit in recording.units}
        shared = {field.name: getattr(ranks[0].info, field.name) for field in fields(RunInfo)}
        # A step is done when all ranks have done it; one that was cut off has fewer.
        info = RunInfo(**shared | {"steps": min(recording.info.steps for recording in ranks)})
        # All ranks point into the same tables: a file holds them once.
        tables: dict[str, Any] = {"units": tuple(units.values()), "sources": sources}
        merged = []
        for recording in ranks:
            moved = recording.moved(lambda time: time - zero)
            of_rank = replace(moved.info, started_ns=_start(recording) - zero)
            merged.append(replace(moved, info=of_rank, **tables))
        return cls(merged, world_size=sizes.pop(), info=info, results=results, **tables)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the recording as JSON, whole or not at all; `results` are not in it.

        Raises ValueError if `path` is a folder, or in a folder that does not exist.
        """
        files.write_text(path, jsonfile.text(self))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Reads what `save` wrote; it executes nothing of the file.

        Raises ValueError for a folder and for an empty, malformed or newer file; FileNotFoundError for none.
        """
        return cls(**jsonfile.read(path)._asdict())

    @classmethod
    def open(cls, *paths: str | os.PathLike[str]) -> "Recording":
        """What torch's own tools have written of a run, as a recording.

        Args:
            paths: traces of torch.profiler (JSON, or packed by gzip), dumps of the flight recorder (pickle or JSON) or
                memory snapshots (pickle): of each rank one, or one of each kind.

        What the files do not say is not made up, but listed in `info.lacks`. Nothing in a file is executed. Raises
        ValueError for files of another tool or of different runs, or damaged ones; FileNotFoundError for missing ones.
        """
        from zerolab.opening import open_files

        return open_files(paths)

    @property
    def num_params(self) -> int:
        """Ψ, the number of parameters. Raises ValueError if no model was seen."""
        if self.info.num_params is None:
            raise ValueError("this recording has no model in it: record a loop that calls one, or makes an engine")
        return self.info.num_params

    @property
    def state(self) -> State:
        """Bytes of model state by category on the first rank, at the last update; `rank(2).state` has another's.

        Raises ValueError before the second step, in which the state is complete.
        """
        return self.ranks[0].state

    @property
    def peak(self) -> ByCategory:
        """Bytes by category at the highest moment of the first rank's last step. Raises ValueError without a step."""
        self.info.check_bytes()
        return _of_steps(self.ranks[0].info.peak)

    @property
    def sent(self) -> int:
        """Logical bytes that the first rank has to send in the last step. Raises ValueError without a step."""
        return _of_steps(self.ranks[0].info.logical_bytes)[-1]

    @property
    def meta(self) -> dict[str, Any]:
        """`info` as the first edition had it."""
        return self.info.as_meta()

    # A picture asks often, a recording never changes.
    @cached_property
    def events(self) -> list[Event]:
        """The events of all ranks, by start."""
        every = [event for recording in self.ranks for event in recording.events]
        # By rank and number where times are equal, so that two looks at one file see one order.
        return sorted(every, key=lambda event: (event.t_start, event.rank, event.seq))

    @cached_property
    def collectives(self) -> list[Collective]:
        """The collectives in the order in which they began, each with the events of all ranks that took part."""
        found: dict[tuple[tuple[int, ...] | None, int], Collective] = {}
        for recording in self.ranks:
            for event in recording.events:
                # A group's ranks call its collectives in one order, or they hang: the n-th is the n-th of the others.
                if event.kind == "collective" and event.number is not None:
                    of = found.setdefault((event.group, event.number), Collective(event.number, {}, event.group))
                    of.events[event.rank] = event
        return sorted(found.values(), key=lambda one: (min(event.t_start for event in one.events.values()), one.number))

    @property
    def counted(self) -> str:
        """How many collectives: those that are numbered, and how many of them belong to training steps.

        Of other tools' files also the calls of which nobody knows on which ranks they are one collective.
        """
        inside = sum(collective.step > 0 for collective in self.collectives)
        # What compares the ranks, or sends them the first parameters, comes before the steps and has numbers as well.
        aside = f" ({inside} in steps)" if 0 < inside < len(self.collectives) else ""
        told = count(len(self.collectives), "collective") + aside
        sent = (event for event in self.events if event.kind == "collective" and event.op not in ("send", "recv"))
        unmatched = sum(event.number is None for event in sent) if self.info.origin else 0
        if not unmatched:
            return told
        return f"{told} and " * bool(self.collectives) + f"{count(unmatched, 'call')} of collectives"

    def rank(self, number: int | None = None) -> RankRecording:
        """One rank's recording, the first one's for None. Raises ValueError if it is not there."""
        for recording in self.ranks:
            if number in (None, recording.rank):
                return recording
        there = ", ".join(str(recording.rank) for recording in self.ranks)
        raise ValueError(f"rank {number!r} is not in this recording: choose one of {there}")

    # What is asked of it in tables and figures; each is a function of a recording.
    table, memory, highest = memory.table, memory.memory, memory.highest
    traffic, times, explain = steps.traffic, steps.times, explain.explain

    def to_chrome(self, path: str | os.PathLike[str]) -> None:
        """Writes a trace that Perfetto opens: ranks as processes, streams as threads, memory as counters."""
        from zerolab.recording.chrome import trace

        files.write_text(path, json.dumps(trace(self)))

    def wire_bytes(self) -> dict[int, list[int | None]]:
        """Bytes that left each rank's own TCP connections, step by step; None where the system does not count them."""
        return {recording.rank: recording.info.wire_bytes for recording in self.ranks}

    def play(self, other: "Recording | None" = None, *, walk: bool = False) -> Any:
        """The recording as an animation, for a notebook cell; needs `pip install zerolab[lab]`.

        With `other`, it shows both side by side on common axes, and the first thing they did differently. With `walk`,
        it opens with the guided walk through one step.
        """
        from zerolab.player import Player

        return Player(self, other, walk=walk)

    def to_html(self, path: str | os.PathLike[str], other: "Recording | None" = None) -> None:
        """Writes the animation, next to that of `other` if given, as one self-contained page that needs no network."""
        from zerolab.player import page

        files.write_text(path, page(self, other))

    @property
    def title(self) -> str:
        """What ran, on how many ranks."""
        return f"{self.info.stage or 'a loop of your own'} on {count(self.world_size, 'rank')}"

    def __repr__(self) -> str:
        # No address and no time in it: a notebook's stored output is compared with the next run's.
        missing = self.world_size - len(self.ranks)
        parts = [count(self.info.steps, "step"), self.counted]
        parts += [f"{count(missing, 'rank')} missing"] if missing else []
        parts += ["cut off"] * any(not recording.complete for recording in self.ranks)
        return f"<Recording of {self.title}: {', '.join(parts)}>"


def _of_steps(figures: Figures | None) -> Figures:
    """What was measured of steps. Raises ValueError if there were none."""
    if not figures:
        raise ValueError("no training step has ended in this recording: record one or more, each with an update")
    return figures


def _start(recording: RankRecording) -> int:
    if recording.info.started_ns is not None:
        return recording.info.started_ns
    # A recording made by hand need not say when it began.
    return min((event.t_start for event in recording.events), default=0)
