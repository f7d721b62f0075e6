"""Why a run has hung, from files: what was reported while it ran, or its ranks' flight recorder dumps.

A dump has the collectives that a rank asked for, their lines, and which have not ended. It does not say what a rank did
after its last collective, nor anything about a rank whose dump is missing; we say so in both cases.
"""

import json
import os
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from zerolab import files
from zerolab.opening import flight, found, read, sizes
from zerolab.opening.found import Foreign, Found
from zerolab.opening.together import ranks_of
from zerolab.recording.events import Event, RankRecording
from zerolab.recording.events import count as counted
from zerolab.runtime.board import DONE, INSIDE, Position
from zerolab.runtime.faults import Standing
from zerolab.runtime.mismatch import named
from zerolab.why import verdict
from zerolab.why.notes import in_folder
from zerolab.why.verdict import Verdict
from zerolab.why.watch import HANG

LARGEST = 1 << 20  # bytes of what is said of a hang
DIFFERENT_RUNS = 8  # collectives in common, of which half differ: fewer may be the hang itself
_MISSING, _SILENT = "no dump of it", "silent in its dump"
_GUESSED = "the dumps do not list the ranks of some groups: those that called something in one are taken for all of it"
_NO_MESSAGES = "gloo's dumps have no messages in them: a send or a receive may hang all the same"


def explain(paths: Sequence[str | os.PathLike[str]]) -> Verdict:
    """What there is to say about these files; no rank is at fault if they show no hang.

    Args:
        paths: the folder that `-m zerolab.why` wrote or its `hang.json`; or dumps of the flight recorder, one of each
            rank, or a folder of them.

    Raises:
        ValueError: none, another tool's file, half a file, or ranks of different runs.
        FileNotFoundError: there is no such file.
    """
    given = [Path(path) for path in paths]
    if len(given) == 1 and (folder := given[0]).is_dir():
        given = sorted(path for path in folder.iterdir() if path.is_file() and not path.name.startswith("."))
        if folder / HANG in given:
            given = [folder / HANG]
        elif in_folder(folder):
            return Verdict((), (), f"no hang was noticed in the run whose notes are in {str(folder)!r}")
    if len(given) == 1 and given[0].name == HANG:
        return _said(given[0])
    if not given:
        where = f" in {str(paths[0])!r}" if paths else ""
        raise Foreign(f"there is no file{where}: give dumps of the flight recorder, one of each rank, or their folder")
    return of_dumps([read(path) for path in given])


def _said(path: Path) -> Verdict:
    """What was said while a run hung."""
    files.check_readable(path)
    try:
        with files.named(path), path.open("rb") as file:
            document = json.loads(file.read(LARGEST))
        ranks, lines, text = document["ranks"], document["lines"], document["text"]
    except (ValueError, TypeError, KeyError, RecursionError):
        raise Foreign(f"{str(path)!r} is not what zerolab.why wrote of a hang, or only half of it") from None
    return Verdict(tuple(map(int, ranks)), tuple(map(str, lines)), str(text))


def of_dumps(dumps: Sequence[Found]) -> Verdict:
    """What the ranks' dumps say. Raises Foreign if they are of another kind, or of different runs."""
    for one in dumps:
        if one.tool != found.FLIGHT:
            raise Foreign(f"{one.said}, does not tell what has not ended: give dumps of the flight recorder")
    dumps, guessed = _with_groups(dumps)
    recordings = {each.rank: each for each in ranks_of(dumps, DIFFERENT_RUNS)}
    world_size = next(iter(recordings.values())).world_size
    positions = _positions(recordings, dumps)
    calls = _up_to_the_first_stuck(positions)
    standings = [
        _standing(recordings[rank], positions[rank]) if rank in recordings else Standing(rank, _MISSING, Position())
        for rank in range(world_size)
    ]
    missing = [rank for rank in range(world_size) if rank not in recordings]
    lacks = [f"of {named(missing)} there is no dump, and so nothing is said"] if missing else []
    if any(not recording.sources for recording in recordings.values()):
        lacks.append("some dumps have no lines of source: torch writes them into pickles, and not into JSON")
    lacks += [_GUESSED] * bool(guessed)
    said = verdict.of_hang(standings, calls)
    if said is None:
        numbered = [call for history in calls.values() for call in history if call.number is not None]
        total = counted(len(numbered), "call") + " of collectives"
        text = f"no hang in {'these dumps' if len(dumps) > 1 else 'this dump'}: {total}, and all have ended"
        lacks += [_NO_MESSAGES] * any(one.backend == "gloo" for one in dumps)
        return Verdict((), (), "\n".join([text, *lacks]))
    if not said.ranks and missing:
        text = f"the ranks that are here do not differ: look at {named(missing)}, of which there is no dump"
        return Verdict(tuple(missing), ("",) * len(missing), "\n".join([text, *said.text.splitlines()[1:], *lacks[1:]]))
    if not said.ranks and guessed:
        text = "the dumps do not tell whom the ranks wait for: none of them differs within a group that is known"
        return said._replace(text="\n".join([text, *said.text.splitlines()[1:], *lacks]))
    if any(_is_guessed_full(standings[rank].position, standings, guessed) for rank in said.ranks):
        text = "the dumps do not tell whom the ranks wait for: all known ranks of a group not listed have arrived"
        return Verdict((), (), "\n".join([text, said.text, *lacks]))
    return said._replace(text="\n".join([said.text, *lacks]))


def _is_guessed_full(position: Position, standings: Sequence[Standing], guessed: Collection[tuple[int, ...]]) -> bool:
    """Whether a rank hangs in a call of a group that is a guess, and all that are known of the group hang in it."""
    there = [one.rank for one in standings if one.position._replace(since=0) == position._replace(since=0)]
    ranks = tuple(position.ranks)
    return position.waits and position.number is not None and ranks in guessed and set(ranks) <= set(there)


def _with_groups(dumps: Sequence[Found]) -> tuple[list[Found], list[tuple[int, ...]]]:
    """The dumps, and the ranks of the groups that are a guess: gloo lists none as soon as a second one was made.

    A group has one name on all of its ranks, and among those that no dump lists no other has that name.
    """
    known = {name: ranks for one in dumps for name, ranks in one.groups.items() if name}
    callers: dict[str, set[int]] = defaultdict(set)
    for one in dumps:
        for name, _ in one.called:
            if name not in known:
                callers[name].add(one.rank or 0)
    if callers:
        highest = max(max(ranks) for ranks in [*callers.values(), *known.values()])
        known |= {name: tuple(sorted(ranks)) for name, ranks in callers.items()}
        known |= {flight.DEFAULT: tuple(range(highest + 1))} if flight.DEFAULT in callers else {}
        dumps = [flight.read(one.document or {}, one.name, known) for one in dumps]
    return list(dumps), [known[name] for name in callers]


def _positions(recordings: Mapping[int, RankRecording], dumps: Sequence[Found]) -> dict[int, list[Position]]:
    """What each rank called, in order. Groups of the same ranks are told apart: all but the first have a number."""
    listed = {(name, ranks) for one in dumps for name, ranks in one.groups.items() if name}
    further: dict[tuple[str, tuple[int, ...] | None], int] = {}  # by both: groups that `split_group` makes share names
    seen: set[tuple[int, ...]] = set()
    for place, (name, ranks) in enumerate(sorted(listed, key=lambda one: (len(one[0]), one))):
        if ranks in seen:
            further[name, ranks] = int(name) if name.isdecimal() and len(name) < 9 else place
        seen.add(ranks)
    positions: dict[int, list[Position]] = {}
    for one in dumps:
        rank = one.rank or 0
        # As the recording has them, in the order in which they began.
        called = sorted(zip(one.events, one.called, strict=True), key=lambda each: (each[0].t_start, -each[0].t_end))
        positions[rank] = [
            _position(event, number)._replace(group=further.get((name, one.groups.get(name)), 0))
            for event, (_, (name, number)) in zip(recordings[rank].events, called, strict=True)
        ]
    return positions


def _position(event: Event, number: int) -> Position:
    known = event.dtype is not None
    return Position(
        INSIDE if event.text == flight.UNFINISHED else DONE,
        event.op,
        None if event.number is None else number,
        event.t_start,
        event.numel if known else -1,
        sizes.width(event.dtype) if known else 0,
        sum(1 << rank for rank in event.group or ()),
        -1 if event.peer is None else event.peer,
    )


def _standing(recording: RankRecording, positions: Sequence[Position]) -> Standing:
    """Where a rank stands: in the first collective that has not ended, or after its last."""
    place = next((place for place, each in enumerate(positions) if each.state == INSIDE), -1)
    position, source = positions[place], recording.events[place].source
    where = f"{recording.sources[source.id].label}, line {source.line}" if source is not None else ""
    return Standing(recording.rank, "running" if position.state == INSIDE else _SILENT, position, where=where)


def _up_to_the_first_stuck(calls: Mapping[int, list[Position]]) -> dict[int, list[Position]]:
    """Leaves out what was asked for after the first collective of a group that hangs: a host runs ahead of a device."""
    stuck: dict[tuple[int, int], int] = {}
    for call in (call for history in calls.values() for call in history):
        if call.state == INSIDE and call.number is not None:
            stuck[call.circle] = min(call.number, stuck.get(call.circle, call.number))
    return {
        rank: [call for call in history if call.number is None or call.number <= stuck.get(call.circle, call.number)]
        for rank, history in calls.items()
    }
