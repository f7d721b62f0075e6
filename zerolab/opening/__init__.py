"""What torch's own tools have written about a run, as a recording: torch.profiler traces, flight recorder, snapshots.

    recording = Recording.open("trace-0.json", "trace-1.json")

Nothing in a file is executed: traces are scanned for the events that a recording has, and pickles are read by an
unpickler that can build only plain values. What the files do not say is not made up: `info.lacks` lists it.
"""

import os
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from zerolab.opening import contents, flight, kineto, pickles, snapshot
from zerolab.opening.found import Foreign, Found
from zerolab.opening.together import together
from zerolab.recording.events import count
from zerolab.recording.recording import Recording
from zerolab.runtime.waiting import waiting

__all__ = ["Foreign", "describe", "open_files", "read", "together"]


def open_files(paths: Sequence[str | os.PathLike[str]]) -> Recording:
    """One recording from the files of a run: one file per rank, or one of each kind per rank.

    Raises:
        ValueError: none, another tool's, half a file, a pickle that asks for more than plain values, or files of
            different runs, ranks twice, other steps or versions.
        FileNotFoundError: there is no such file.
    """
    if not paths:
        raise ValueError("no file was named: give a trace, a dump or a snapshot of each rank")
    return together([read(path) for path in paths])


def describe(recording: Recording) -> str:
    """What was found in the files of a recording, and what is missing, in lines."""
    info, missing = recording.info, recording.world_size - len(recording.ranks)
    ranks = ", ".join(str(rank.rank) for rank in recording.ranks)
    named = f"{'rank' if len(recording.ranks) == 1 else 'ranks'} {ranks} of {recording.world_size}"
    there = named if missing else count(recording.world_size, "rank")
    first = info.first_step
    numbered = f" ({first - 1} to {first + info.steps - 2} by torch's count)" if first is not None else ""
    unfinished = ", ".join(str(rank.rank) for rank in recording.ranks if not rank.complete)
    lines = [
        f"{info.origin}: {there}, {count(info.steps, 'step')}{numbered}, {recording.counted}",
        f"torch {info.torch or 'of an unknown version'}, {info.backend or 'an unknown backend'}, {info.device}",
        *(f"not in it: {lack}" for lack in info.lacks),
        info.clocks,
        f"not ended: what rank {unfinished} asked for last" if unfinished else None,
    ]
    return "\n".join(line for line in lines if line)


def read(path: str | os.PathLike[str]) -> Found:
    """What one file says. Raises as `open_files`."""
    with waiting(f"reading {Path(path).name}"), closing(contents.Stream(Path(path))) as stream:
        if contents.is_pickle(stream):
            document = pickles.loads(stream.all(), stream.name)
            if snapshot.is_one(document):
                return snapshot.read(document, stream.name)
            what = "a pickle of plain values"
        else:
            head = stream.peek()
            if b'"zerolab-recording"' in head[:200]:
                raise Foreign(f"{stream.name!r} is a recording already: zerolab play shows it")
            if b'"entries"' not in head or b'"traceEvents"' in head:
                return kineto.read(stream)
            document = contents.document(stream)
            what = "JSON"
        if flight.is_one(document):
            return flight.read(document, stream.name)
        raise Foreign(
            f"{stream.name!r} is {what}, but neither a dump of the flight recorder nor a memory snapshot of torch"
        )
