"""A dump of torch's flight recorder: the last collectives that a rank asked for, and which of them have not ended.

Written by `torch._C._distributed_c10d._dump_nccl_trace()`, by the watchdog of NCCL when a run hangs, or by
`_dump_fr_trace()`; as a pickle, or as JSON, which has no frames. Neither says its rank: as with torch's own tool, that
is the last number in the file's name. Source: torch/csrc/distributed/c10d/FlightRecorder.hpp, version 2.10, and for
what its entries mean torch/distributed/flight_recorder/components.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import PurePath
from typing import Any

from zerolab.opening import found, sizes
from zerolab.opening.found import Foreign, Found
from zerolab.recording import sources
from zerolab.recording.events import Event, Source, SourceLine

# Python's calls for which the backend does something else: gloo scatters by reducing everything.
_CALLED = {"reduce_scatter_single": "reduce_scatter", "reduce_scatter_tensor": "reduce_scatter"}
_CALLED |= {"_reduce_scatter_base": "reduce_scatter", "reduce_scatter": "reduce_scatter"}
DEFAULT = "0"  # the name of the group of all ranks
_DONE = "completed"
_COUNTERS = ("collective_seq_id", "p2p_seq_id")
_OUTCOME = ("state", "retired", "time_discovered_completed_ns")
UNFINISHED = "it had not ended when the dump was made"


def is_one(document: Any) -> bool:
    """Whether a pickle or a JSON document is such a dump."""
    return isinstance(document, dict) and isinstance(document.get("entries"), list) and "version" in document


def read(document: dict[str, Any], name: str, groups: Mapping[str, tuple[int, ...]] | None = None) -> Found:
    """Reads a dump, with what the same rank's trace knows of process groups.

    Raises Foreign if it is damaged, or has no collective in it.
    """
    return _Dump(document, name, groups or {}).found()


class _Dump:
    def __init__(self, document: dict[str, Any], name: str, groups: Mapping[str, tuple[int, ...]]) -> None:
        self.document, self.name = document, name
        for entry in document["entries"]:
            if not isinstance(entry, dict):
                raise self._damaged(entry)
        self.groups = {**groups, **self._groups()}
        # Gloo lists only the last group made, without its name: that of all ranks, if nothing was sent within another.
        if "" in self.groups and all(group_of(entry) == DEFAULT for entry in document["entries"]):
            self.groups.setdefault(DEFAULT, self.groups[""])
        self.said = Found(name, found.FLIGHT, rank=rank_in(name), groups=self.groups, document=document)

    def found(self) -> Found:
        said, document = self.said, self.document
        for entry in _with_ends_of_batches(document["entries"]):
            self._add(entry)
        self._number()
        if not said.events:
            remedy = "set TORCH_FR_BUFFER_SIZE before the run"
            raise Foreign(f"{self.name!r} is a {found.FLIGHT} without an entry: {remedy}")
        versions = {"the flight recorder's version": document["version"], "NCCL": document.get("comm_lib_version")}
        said.versions = {key: found.word(value) for key, value in versions.items() if value}
        said.world_size = max((max(ranks) + 1 for ranks in self.groups.values()), default=None)
        said.lacks = [found.NO_MEMORY, found.NO_STEPS, found.NO_MODULES, found.NO_WAITS, found.NO_UNITS]
        said.lacks += [found.NO_ENDS] * any(event.t_end == event.t_start for event in said.events)
        said.lacks += [found.NO_PIECES] * any(event.op == "all_to_all" for event in said.events)
        said.lacks += [found.NO_SOURCE] * (not said.sources)
        # Only frames tell, and JSON has none.
        said.lacks += [found.NO_SCATTERS] * (said.backend == "gloo" and not said.sources)
        return said

    def _add(self, entry: dict[str, Any]) -> None:
        created, number = entry.get("time_created_ns"), entry.get("collective_seq_id")
        called = found.text(entry.get("profiling_name"))
        backend, _, words = called.partition(":")
        if type(created) is not int or not 0 <= created < 1 << 62 or type(number) is not int:
            self._refuse_old()
            raise self._damaged({"time_created_ns": created, "collective_seq_id": number})
        frames = list(frames_of(entry.get("frames")))
        asked = next((function for file, _, function in frames if file.endswith("distributed_c10d.py")), "")
        op = _CALLED.get(asked) or sizes.word(words.split(" ")[0])
        if op not in sizes.OPERATIONS:
            return  # a communicator that is made, or split
        ends = re.fullmatch(r"\w+ (\d{1,9})(?:->|<-)(\d{1,9})", words)
        message = self._message(op, entry, int(ends[2]) if ends else None)
        done = entry.get("time_discovered_completed_ns") or 0
        ended = done if type(done) is int and created <= done < 1 << 62 else created
        fields = message._asdict() | ({"text": UNFINISHED} if _is_unfinished(entry) else {})
        fields["number"] = None if op in ("send", "recv") or message.group is None else number
        source = line_of(frames, self.said)
        self.said.events.append(Event(0, 0, created, ended, 0, "setup", "collective", op, source=source, **fields))
        self.said.called.append((group_of(entry), number))
        self.said.backend = self.said.backend or found.word(backend)
        self.said.device = "cuda" if backend == "nccl" else "cpu"

    def _number(self) -> None:
        """Numbers the events by all that their ranks have called together: each of their groups has its own counter.

        The oldest entries may be gone, so a group's counter stands one below what is first seen of it.
        """
        counters: dict[Any, dict[str, int]] = defaultdict(dict)
        called = [*zip(self.said.events, self.said.called, strict=True)]
        for event, (group, number) in called:
            if event.number is not None:
                counters[event.group].setdefault(group, number - 1)
        for place, (event, (group, number)) in enumerate(called):
            if event.number is not None:
                counters[event.group][group] = number
                self.said.events[place] = replace(event, number=sum(counters[event.group].values()))

    def _message(self, op: str, entry: dict[str, Any], peer: int | None) -> sizes.Message:
        ranks = self.groups.get(group_of(entry))
        side = "output" if op in ("reduce_scatter", "scatter", "all_to_all") else "input"
        kinds, share = entry.get(f"{side}_dtypes"), sizes.elements(entry.get(f"{side}_sizes"))
        if op in ("reduce_scatter", "scatter") and ranks and share == sizes.elements(entry.get("input_sizes")):
            share = share // len(ranks) if share is not None else None  # gloo's entry has the whole buffer twice
        kind = found.text(kinds[0]) if isinstance(kinds, list) and kinds else ""
        if peer is not None:  # torch writes the peer's place in the group
            peer = sorted(ranks)[peer] if ranks and peer < len(ranks) else None
        # What only a root has: NCCL's entry has an empty tensor in its place, gloo's nothing.
        whole = entry.get("output_sizes" if op == "gather" else "input_sizes")
        is_root = None if whole is None else bool(sizes.elements(whole))
        return sizes.message(op, kind, share, ranks, peer=peer, is_root=is_root)

    def _groups(self) -> dict[str, tuple[int, ...]]:
        listed = self.document.get("pg_config")
        listed = listed if isinstance(listed, dict) else {}
        given = {found.text(key): one.get("ranks") for key, one in listed.items() if isinstance(one, dict)}
        return {name: ranks for name, said in given.items() if (ranks := sizes.numbers(said))}

    def _refuse_old(self) -> None:
        version = found.text(self.document["version"])
        if re.match(r"[01]\.", version):
            said = f"{self.name!r} is a {found.FLIGHT} of version {found.short(version)}, written by torch before 2.4"
            raise Foreign(f"{said}, which numbers collectives in another way: run the training with torch 2.4 or later")

    def _damaged(self, entry: object) -> Foreign:
        return Foreign(f"{self.name!r} is a damaged {found.FLIGHT}: an entry is {found.short(entry)}; fetch it again")


def on_one_count(files: Sequence[Found]) -> list[Found]:
    """The files, a collective's number in them the same on all ranks.

    Of a group that was used early, one rank's dump may still have an entry and another's none: all numbers of the other
    are too low then. By how much is what most collectives tell, known by their group and torch's number in it.
    """
    first: dict[Any, dict[tuple[str, int], int]] = {}
    shifts: dict[Any, dict[int, int]] = defaultdict(dict)  # of those who count together, by the file's place
    for place, one in enumerate(files):
        numbers: dict[Any, dict[tuple[str, int], int]] = defaultdict(dict)
        for event, called in zip(one.events, one.called, strict=False):
            if event.number is not None:
                numbers[event.group][called] = event.number
        for ranks, mine in numbers.items():
            theirs = first.setdefault(ranks, mine)
            apart = Counter(theirs[called] - number for called, number in mine.items() if called in theirs)
            shifts[ranks][place] = max(apart, key=apart.__getitem__, default=0)
    counted = []
    for place, one in enumerate(files):
        events = [
            replace(event, number=event.number + shifts[event.group][place] - min(shifts[event.group].values()))
            if one.called and event.number is not None
            else event
            for event in one.events
        ]
        counted.append(replace(one, events=events))
    return counted


def _with_ends_of_batches(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The entries, in which all that was sent in one batch has ended when the batch has.

    NCCL carries out a batch, such as one of `batch_isend_irecv`, as a whole. Torch notes the end in an entry of its own
    behind the others, `coalesced`, with the same numbers; the others stay "scheduled" for ever (its issue 137969).
    """
    told: list[dict[str, Any]] = []
    batches: dict[str, dict[str, Any]] = {}  # the end of the batch that each group is in
    for entry in reversed(entries):
        group = group_of(entry)
        batch = batches.get(group, {})
        if found.text(entry.get("profiling_name")).endswith(":coalesced"):
            batches[group] = entry
        elif any(entry.get(counter) != batch.get(counter) for counter in _COUNTERS):
            batches.pop(group, None)
        elif batch and _is_unfinished(entry):
            told.append({**entry, **{key: batch.get(key) for key in _OUTCOME}})
            continue
        told.append(entry)
    return told[::-1]


def _is_unfinished(entry: dict[str, Any]) -> bool:
    """Whether it had not ended: gloo's entries are never "completed", but retired when their work is."""
    return entry.get("state") != _DONE and not entry.get("retired")


def group_of(entry: dict[str, Any]) -> str:
    """The name of the process group of an entry."""
    group = entry.get("process_group")
    return found.text(group[0]) if isinstance(group, (list, tuple)) and group else ""


def line_of(frames: Iterable[tuple[str, int, str]], said: Found) -> SourceLine | None:
    """The innermost line outside any package, under the last part of its file's name: these files have no source."""
    for file, line, _ in frames:
        if sources.is_own(file) and line > 0:
            label = PurePath(file).name
            said.sources.setdefault(label, Source(label, ""))
            return SourceLine(label, line)
    return None


def frames_of(listed: Any) -> Iterator[tuple[str, int, str]]:
    """The file, line and function of each frame that a file lists; what is no frame is left out."""
    for frame in listed if isinstance(listed, list) else ():
        if isinstance(frame, dict) and type(frame.get("line")) is int and frame["line"] < 10**9:  # as a recording has
            yield found.text(frame.get("filename")), frame["line"], found.text(frame.get("name"))


def rank_in(name: str) -> int | None:
    """The rank that a file's name says: the number behind "rank", or else the last one."""
    said = re.findall(r"(?<!\d)\d{1,6}(?!\d)", name)
    named = named_rank_in(name)
    return int(said[-1]) if named is None and said else named


def named_rank_in(name: str) -> int | None:
    """The number behind "rank" in a file's name."""
    said = re.findall(r"rank[-_.]?(\d{1,6})", name, re.IGNORECASE)
    return int(said[-1]) if said else None
