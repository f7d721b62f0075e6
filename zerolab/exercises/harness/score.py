"""What an answer on ranks cost, beside what ours costs on the same draws."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from zerolab.exercises.harness.exercise import Text
from zerolab.exercises.harness.recorded import started
from zerolab.tables import Table

if TYPE_CHECKING:
    from zerolab.recording.events import Event, RankRecording
    from zerolab.recording.recording import Recording


def run_ours(text: Text, trial: Callable[..., Any], *arguments: Any) -> Any:
    """On a rank: `trial` with our answer. Made here, because the guard refuses calls of the shipped one."""
    return trial(text.made(), *arguments)


def score(yours: "Recording", ours: "Recording") -> Table:
    """Peak bytes, bytes sent and exchanges of the last step, each of the rank that has the most.

    Of the last step, because before the first one an answer is given the whole model. A function on ranks is one step.
    """
    rows: list[dict[str, Any]] = []
    for what, of_rank in (("peak bytes but for the update", _peak), ("bytes sent", _sent), ("exchanges", _exchanges)):
        most = {"yours": max(map(of_rank, yours.ranks)), "ours": max(map(of_rank, ours.ranks))}
        rows.append({"of a step, on the rank with the most": what, **most})
    return Table(rows)


def _last_step(rank: "RankRecording") -> int:
    return max((event.step for event in rank.events), default=0)


def _peak(rank: "RankRecording") -> int:
    """But for the update: an optimizer's own temporaries are torch's business, and would hide all else."""
    last = _last_step(rank)
    before = [event for event in rank.events if event.phase != "step" and event.kind != "optimizer"]
    return max((sum(event.live.values()) for event in before if event.step == last), default=0)


def _exchanged(rank: "RankRecording") -> "list[Event]":
    last = _last_step(rank)
    return [event for event in started(rank) if event.step == last and event.op != "barrier"]  # which carries nothing


def _sent(rank: "RankRecording") -> int:
    return sum(event.logical_bytes for event in _exchanged(rank))


def _exchanges(rank: "RankRecording") -> int:
    return len(_exchanged(rank))
