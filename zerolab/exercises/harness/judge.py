"""From a recorded run of an answer to verdicts: the targets in their order, up to the first that is missed."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from zerolab.exercises.harness import memory, values
from zerolab.exercises.harness.exercise import Exercise
from zerolab.exercises.harness.ground import STEPS, Noted, Plan
from zerolab.exercises.harness.reference import run_reference
from zerolab.exercises.harness.verdict import Verdict
from zerolab.recording.events import RankRecording

if TYPE_CHECKING:
    from zerolab.recording.recording import Recording

Judgement = tuple[str, str]
"""A target's name, and in a sentence what is wrong; an empty one if nothing is."""


def judge_training(exercise: Exercise, recording: "Recording", plan: Plan) -> list[Verdict]:
    """The verdicts on a run under SGD with momentum: gradients, weights and what came back."""
    targets = exercise.targets

    def judgements() -> Iterator[Judgement]:
        noted: list[Noted] = recording.results or []
        reference = run_reference(plan, recording.world_size)
        value, weights = values.judge_training(noted, reference, targets.value, targets.weights)
        yield "value", value
        yield "weights", weights
        yield "return", values.judge_returned(noted, targets.returns, exercise.name)

    return _up_to_the_first_miss(judgements(), recording.world_size)


def judge_memory(exercise: Exercise, recording: "Recording", plan: Plan) -> list[Verdict]:
    """The verdicts on a run under Adam: state bytes, peak and collectives, on every rank."""
    targets = exercise.targets
    numel = sum(width * wider + wider for width, wider in zip(plan.widths, plan.widths[1:], strict=False))
    padded = -(-numel // recording.world_size) * recording.world_size

    def on_ranks(judge: Callable[[RankRecording], str]) -> str:
        return next(filter(None, map(judge, recording.ranks)), "")

    def judgements() -> Iterator[Judgement]:
        yield "state", on_ranks(lambda rank: memory.judge_state(rank, padded, targets))
        yield "peak", on_ranks(lambda rank: memory.judge_peak(rank, padded, targets))
        yield "collectives", on_ranks(lambda rank: memory.judge_collectives(rank, padded, targets, STEPS))

    return _up_to_the_first_miss(judgements(), recording.world_size)


def _up_to_the_first_miss(judgements: Iterator[Judgement], world_size: int) -> list[Verdict]:
    verdicts = []
    for target, why in judgements:
        verdicts.append(Verdict(target, world_size, why))
        if why:
            break
    return verdicts
