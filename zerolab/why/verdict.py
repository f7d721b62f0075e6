"""What to say about ranks that hang: which one is the cause, and at which line, in the same words as for a Cluster."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from zerolab.runtime import faults
from zerolab.runtime.board import DONE, INSIDE
from zerolab.runtime.faults import Standing
from zerolab.runtime.mismatch import Calls, Finding, findings, named

ELSEWHERE = "on another node"
"""The state of a rank of which this node knows nothing."""
FINISHED, GONE = "finished", "gone"
"""The states of a rank whose script came to its end, and of one that ended without a word."""
INIT = "init_process_group"


class Verdict(NamedTuple):
    """The ranks at fault, none if that cannot be told; their lines; sentences, of which the first names them."""

    ranks: tuple[int, ...]
    lines: tuple[str, ...]
    text: str

    @property
    def as_json(self) -> dict[str, Any]:
        """For a file."""
        return {"zerolab-why": 1, **self._asdict()}


def of_hang(
    standings: Sequence[Standing], calls: Calls, seconds: float | None = None, remarks: Mapping[int, str] | None = None
) -> Verdict | None:
    """What holds up the ranks; None if no rank waits.

    Args:
        standings: where every rank stands, by rank.
        calls: the last collectives of the ranks that are known.
        seconds: how long they have waited; None if nobody knows.
        remarks: what else is known of what a rank does.
    """
    if not any(standing.waits for standing in standings):
        return None
    found = findings(standings, calls) or _unknown(standings)
    blamed = _blamed(found, standings)
    found.sort(key=lambda finding: not set(finding.ranks) <= set(blamed))
    sentences = [_with_lines(finding, standings, remarks or {}) for finding in found]
    # Those that are at fault stand in the sentences before.
    waiting = [one for one in standings if one.waits and (one.rank not in blamed or len(blamed) == len(standings))]
    # What native code has begun may be computed beside; by now it is clear that these wait for it.
    known = [replace(one, position=one.position._replace(state=INSIDE)) if one in waiting else one for one in standings]
    return _verdict(blamed, known, [*sentences, *_waiting(waiting, seconds)])


def of_end(cause: int, how: str, standings: Sequence[Standing], calls: Calls) -> Verdict:
    """What the end of a rank did to the others; `how` it ended, the first that did."""
    found, standing = findings(standings, calls), standings[cause]
    at = "last seen at" if standing.state in (FINISHED, GONE) else "at"  # nothing tells the line of such an end
    end = f"rank {cause} {how}" + (f", {at} {standing.where}" if standing.where else "")
    if standing.position.state == DONE or not found:
        own = [finding.text for finding in found if cause in finding.ranks]
        return _verdict((cause,), standings, [end, *own])
    # It failed within a collective, as when sizes differ: the rank that differs from the others is at fault.
    return _verdict(_blamed(found, standings), standings, [*(_with_lines(one, standings, {}) for one in found), end])


def _blamed(found: Sequence[Finding], standings: Sequence[Standing]) -> tuple[int, ...]:
    """Of the ranks that are named, those that wait for nobody; if all wait, those waiting where the fewest are."""
    ranks = sorted({rank for finding in found for rank in finding.ranks})
    at_work = [rank for rank in ranks if not standings[rank].waits]
    if at_work or not ranks:
        return tuple(at_work)
    company = Counter(_where_it_waits(standing) for standing in standings)
    fewest = min(company[_where_it_waits(standings[rank])] for rank in ranks)
    return tuple(rank for rank in ranks if company[_where_it_waits(standings[rank])] == fewest)


def _where_it_waits(standing: Standing) -> object:
    position = standing.position
    return (position.label, position.circle) if position.number is not None else standing.rank


def _verdict(blamed: tuple[int, ...], standings: Sequence[Standing], sentences: Sequence[str]) -> Verdict:
    table = "\n".join(f"  {line}" for line in faults.table(standings).splitlines())
    return Verdict(blamed, tuple(standings[rank].where for rank in blamed), "\n".join([*sentences, table]))


def _with_lines(finding: Finding, standings: Sequence[Standing], remarks: Mapping[int, str]) -> str:
    """The sentence, with the lines of its ranks, and what they do there, as far as it lacks them."""
    text = finding.text
    for rank in finding.ranks:
        where = standings[rank].where
        if where and where not in text:
            text += f"; rank {rank} {'is' if standings[rank].state == 'running' else 'was'} at {where}"
        if rank in remarks:
            text += f"; {remarks[rank]}"
    return text


def _waiting(waiting: Sequence[Standing], seconds: float | None) -> list[str]:
    """Who waits, where."""
    groups = defaultdict(list)
    for standing in waiting:
        # Groups whose ranks are not listed have labels alike.
        groups[standing.position.label, standing.where, standing.position.circle].append(standing.rank)
    waited = f" for {seconds:.0f} s" if seconds is not None else ""
    return [
        f"{named(ranks)} {'has' if len(ranks) == 1 else 'have'} waited in {label}{waited}"
        + (f", at {where}" if where else "")
        for (label, where, _), ranks in groups.items()
    ]


def _unknown(standings: Sequence[Standing]) -> list[Finding]:
    """What is said where ranks do not disagree in a collective."""
    waiting = [standing for standing in standings if standing.waits]
    ranks = tuple(standing.rank for standing in waiting)
    away = [standing.rank for standing in standings if standing.state == ELSEWHERE]
    if away:
        return [Finding((), f"no rank of this node differs: look at what is said on that of {named(away)}")]
    if all(standing.position.name == INIT for standing in waiting) and len(waiting) == len(standings):
        text = f"{named(ranks)} are in {INIT}, which counts on more, or they do not reach each other"
        return [Finding(ranks, f"{text}: look at world_size=, MASTER_ADDR and MASTER_PORT")]
    others = [standing for standing in standings if standing.rank not in ranks]
    keys = [standing.rank for standing in waiting if standing.position.name.startswith("store.")]
    if keys:
        text = f"{named(keys)} {'waits' if len(keys) == 1 else 'wait'} for a key of the store, which no rank has set"
        behind = [Finding((one.rank,), f"{text}; rank {one.rank} is {one.doing}, at {one.where}") for one in others]
        return behind or [Finding(tuple(keys), text)]
    return [Finding((), "the ranks do not differ in what they called: what carries it, or a rank's device, stands")]
