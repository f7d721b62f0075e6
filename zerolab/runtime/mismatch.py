"""Compares the ranks' last collectives: what they disagree on, and who waits for whom because of it."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from zerolab.runtime.board import Position
from zerolab.runtime.faults import ABSENT, Standing

Calls = Mapping[int, Sequence[Position]]
"""The last collectives of each rank that takes part, oldest first."""


class Finding(NamedTuple):
    """What ranks disagree on, in a sentence, and the ranks that are not as most are."""

    ranks: tuple[int, ...]
    text: str


def mismatches(standings: Sequence[Standing], calls: Calls) -> list[str]:
    """The sentences of `findings`."""
    return [finding.text for finding in findings(standings, calls)]


def findings(standings: Sequence[Standing], calls: Calls) -> list[Finding]:
    """One for each group of ranks that disagree, about the first collective in which they do."""
    # Group by group, that of all ranks first: each counts its own collectives.
    found: list[Finding] = []
    here = {standing.position.circle for standing in standings}
    waited = {each.position.circle for each in standings if each.waits and each.position.number is not None}
    circles = waited | {call.circle for history in calls.values() for call in history}
    for circle in sorted(circles, key=lambda circle: (abs(circle[0]), circle)):
        ranks = _ranks(circle, calls)
        # Another thread's calls may have left no room for those of the rank's own in the history.
        known = {rank: [standings[rank].position] if circle in waited else [] for rank in ranks}
        columns = {rank: _by_number(calls[rank], circle) or _by_number(known[rank], circle) for rank in ranks}
        # Only the first, from the oldest that is still in every rank's history: all later differences follow from it.
        oldest = max((min(column) for column in columns.values() if column), default=0)
        for number in range(oldest, max((max(column, default=-1) for column in columns.values()), default=-1) + 1):
            row = {rank: columns[rank].get(number) for rank in ranks}
            # A group that no rank stands in is another thread's, which comes to it at its own time.
            if len({_what(call) for call in row.values() if call or circle in here}) > 1:
                found += _differences(row, columns, standings)
                break
    return found + _left_out(standings) + _unmatched_pairs(standings)


def waits_for(standings: Sequence[Standing], calls: Calls) -> dict[int, list[int]]:
    """For each rank that waits, the ranks that have not reached the same collective."""
    edges = {}
    for standing in standings:
        position = standing.position
        if not standing.waits or standing.rank not in calls:
            continue
        if position.number is None:
            edges[standing.rank] = [position.peer] if position.peer >= 0 else []
            continue
        ranks = [rank for rank in _ranks(position.circle, calls) if rank != standing.rank]
        there = {rank: _by_number(calls[rank], position.circle).get(position.number) for rank in ranks}
        edges[standing.rank] = [rank for rank, call in there.items() if _what(call) != _what(position)]
    return edges


def _ranks(circle: tuple[int, int], calls: Calls) -> list[int]:
    """Who is in a group; of one whose ranks are not listed, those that have called something in it."""
    members, _ = circle
    if members < 0:
        return [rank for rank in sorted(calls) if any(call.circle == circle for call in calls[rank])]
    return [rank for rank in sorted(calls) if not members or members >> rank & 1]


def _by_number(history: Sequence[Position], circle: tuple[int, int]) -> dict[int, Position]:
    return {call.number: call for call in history if call.circle == circle and call.number is not None}


def _what(call: Position | None) -> tuple[object, ...]:
    """All that must be the same on all ranks of a collective; not its state: some may have left it."""
    return (call.word, call.numel, call.itemsize, call.peer, call.travels) if call is not None else ()


def _differences(
    row: Mapping[int, Position | None],
    columns: Mapping[int, Mapping[int, Position]],
    standings: Sequence[Standing],
) -> list[Finding]:
    there = {rank: call for rank, call in row.items() if call is not None}
    # The odd one out is named, though with two ranks nobody can say which of them is wrong.
    majority = max(_alike({rank: _what(call) for rank, call in there.items()}), key=len)
    usual = there[majority[0]]
    found = []
    for ranks in _alike({rank: _what(call) for rank, call in there.items() if rank not in majority}):
        call = there[ranks[0]]
        others = "the others" if len(majority) + len(ranks) == len(row) else named(majority)
        text = f"{named(ranks)} {'is' if len(ranks) == 1 else 'are'} in {_contrast(call, usual, others)}"
        # As far as its history goes: a rank that waits in its first call has no second one yet.
        later = [other for number, other in columns[ranks[0]].items() if number > (usual.number or 0)]
        if (call.word, call.travels) != (usual.word, usual.travels) and _what(usual) in map(_what, later):
            text += f": {named(ranks)} {'calls' if len(ranks) == 1 else 'call'} the same in a different order"
        found.append(Finding(tuple(ranks), text))
    for rank in (rank for rank, call in row.items() if call is None):
        standing = standings[rank]
        instead = standing.doing
        if standing.state == "running":
            instead = f"it is {instead}" + (f", at {standing.where}" if standing.where else "")
        found.append(Finding((rank,), f"rank {rank} has not reached {usual.label}: {instead}"))
    return found


def _contrast(call: Position, usual: Position, others: str) -> str:
    """For example `reduce_scatter #17, the others in all_gather #17`."""
    if call.word != usual.word:
        return f"{call.label}, {others} in {usual.label}"
    # One of them gave no tensor but, for example, a list, so there is no number to show.
    if min(call.numel, usual.numel) < 0 and call.numel != usual.numel:
        return f"{call.label}, {others} in it with an argument of another kind"
    if call.numel != usual.numel:
        return f"{call.label} with {call.numel:,} elements, {others} with {usual.numel:,}"
    if call.itemsize != usual.itemsize:
        return f"{call.label} with {call.itemsize} bytes an element, {others} with {usual.itemsize}"
    if call.travels != usual.travels:
        return f"{call.label} with {call.travels!r}, {others} with {usual.travels!r}"
    return f"{call.label} with rank {call.peer} as its root, {others} with rank {usual.peer}"


def _left_out(standings: Sequence[Standing]) -> list[Finding]:
    """Collectives that need a rank on which the cell does not run."""
    absent = [standing.rank for standing in standings if standing.state == ABSENT]
    for standing in standings:
        position = standing.position
        # Who is in a group whose ranks are not listed, and calls nothing in it, nobody knows.
        missing = [rank for rank in absent if position.members == 0 or rank in position.ranks]
        if standing.waits and position.number is not None and missing:
            who = f"{named(missing)} {'takes' if len(missing) == 1 else 'take'} no part in this run"
            needed = f"{position.label} needs every rank of its group"
            return [Finding(tuple(missing), f"{who}, and {needed}: %%ranks without numbers is for all")]
    return []


def _unmatched_pairs(standings: Sequence[Standing]) -> list[Finding]:
    """Sends and receives without a counterpart."""
    found = []
    for standing in standings:
        position = standing.position
        if standing.waits and position.number is None and 0 <= position.peer < len(standings):
            peer = standings[position.peer]
            ends = peer.waits and peer.position.number is None and peer.position.peer == standing.rank
            if not ends or _is_sending(peer.position) == _is_sending(position):
                text = f"rank {standing.rank} waits in {position.name} for rank {peer.rank}, which is {_doing(peer)}"
                found.append(Finding((_last_of_chain(standing.rank, standings),), text))
    return found


def _last_of_chain(rank: int, standings: Sequence[Standing]) -> int:
    """The rank for which it waits, which may wait for another's message, and so on; in a circle, the first."""
    passed = [rank]
    while (standing := standings[passed[-1]]).waits and standing.position.number is None:
        peer = standing.position.peer
        if peer in passed or not 0 <= peer < len(standings):
            return passed[1] if len(passed) > 1 else rank
        passed.append(peer)
    return passed[-1]


def _doing(standing: Standing) -> str:
    """What it does, and of a message for whom it waits."""
    position = standing.position
    whom = standing.waits and position.number is None and position.peer >= 0
    return standing.doing + (f" for rank {position.peer}" if whom else "")


def _is_sending(position: Position) -> bool:
    return "send" in position.name


def _alike(signatures: Mapping[int, object]) -> list[list[int]]:
    groups: dict[object, list[int]] = {}
    for rank, signature in signatures.items():
        groups.setdefault(signature, []).append(rank)
    return list(groups.values())


def named(ranks: Sequence[int]) -> str:
    """Ranks in words: `ranks 0, 1 and 3`."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    return f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"
