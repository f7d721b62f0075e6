"""What an answer on ranks cost, beside what ours costs on the same draws."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from zerolab.exercises.harness.exercise import Text
from zerolab.exercises.harness.memory import started
from zerolab.tables import Table

if TYPE_CHECKING:
    from zerolab.recording.events import RankRecording
    from zerolab.recording.recording import Recording


def run_ours(text: Text, trial: Callable[..., Any], *arguments: Any) -> Any:
    """On a rank: `trial` with our answer. Made here, because the guard refuses calls of the shipped one."""
    return trial(text.made(), *arguments)


def score(yours: "Recording", ours: "Recording") -> Table:
    """Peak bytes, bytes sent and exchanges of the whole run, each of the rank that has most."""
    rows: list[dict[str, Any]] = []
    for what, of_rank in (("peak bytes", _peak), ("bytes sent", _sent), ("exchanges", _exchanges)):
        most = {"yours": max(map(of_rank, yours.ranks)), "ours": max(map(of_rank, ours.ranks))}
        rows.append({"on the rank with most": what, **most})
    return Table(rows)


def _peak(rank: "RankRecording") -> int:
    return max((sum(event.live.values()) for event in rank.events), default=0)


def _sent(rank: "RankRecording") -> int:
    return sum(event.logical_bytes for event in started(rank))


def _exchanges(rank: "RankRecording") -> int:
    return sum(event.op != "barrier" for event in started(rank))  # a trial's own
