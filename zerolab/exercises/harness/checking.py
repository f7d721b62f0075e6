"""`check`: runs an answer on real ranks and says what is right and what is not. It never raises."""

import inspect
import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from zerolab import progress
from zerolab.exercises.harness.attempt import Attempt
from zerolab.exercises.harness.exercise import Exercise, load
from zerolab.exercises.harness.hole import open_holes
from zerolab.exercises.harness.verdict import Verdict

if TYPE_CHECKING:
    from zerolab.exercises.harness.ground import Plan
    from zerolab.recording.recording import Recording

HANG_SECONDS = 2.0  # a rank that waits longer than this in one collective of a tiny model waits for ever
ANSWER_SECONDS = 20.0  # that one run of an answer may take; a right one takes less than one


def check(exercise_id: str, answer: Callable[..., Any], seed: int | None = None) -> Attempt:
    """Runs `answer` on real ranks, prints a verdict for each target, and returns the attempt. Never raises.

    With a hole still open no ranks are started. Sizes, weights and batches are drawn anew at each check, or from
    `seed`. Judged is what the recording shows, not what the answer says of itself; the check guards against mistakes
    and short cuts, not against tampering.
    """
    try:
        attempt = _attempt(exercise_id, answer, seed)
    except KeyboardInterrupt:
        attempt = Attempt(exercise_id, said=("Stopped. Nothing is left running.",))
    except Exception as error:  # noqa: BLE001  the promise: a notebook goes on whatever happens
        attempt = Attempt(exercise_id, said=(f"The check itself failed, with {type(error).__name__}: {error}",))
    print(attempt)
    if attempt.ran:
        progress.note_attempt(exercise_id, attempt.passed)
    return attempt


def _attempt(exercise_id: str, answer: Callable[..., Any], seed: int | None) -> Attempt:
    try:
        exercise = load(exercise_id)
    except ValueError as error:
        return Attempt(exercise_id, said=(f"{error}.",))
    refusal = _refuse(exercise, answer)
    if refusal:
        return Attempt(exercise_id, said=(refusal,))
    return _run(exercise, answer, random.SystemRandom().randrange(2**31) if seed is None else seed)


def _refuse(exercise: Exercise, answer: Callable[..., Any]) -> str:
    """Why the answer cannot be run at all, in a sentence; empty if it can."""
    if not callable(answer):
        return (
            f"check() got a {type(answer).__name__}; give it the function `{exercise.name}` itself, without calling it."
        )
    holes = open_holes(answer)
    if holes:
        return f'The hole "{holes[0]}" is still open: nothing was run.'
    if inspect.isgeneratorfunction(answer) or inspect.iscoroutinefunction(answer):
        return f"`{exercise.name}` contains `yield` or `async`, so calling it does not run it: write a plain function."
    try:
        inspect.signature(answer).bind(*exercise.arguments)
    except TypeError as error:
        arguments = ", ".join(exercise.arguments)
        return (
            f"`{exercise.name}` is called as {exercise.name}({arguments}), which its definition does not fit: {error}."
        )
    return ""


def _run(exercise: Exercise, answer: Callable[..., Any], seed: int) -> Attempt:
    from zerolab.exercises.harness.failure import in_words
    from zerolab.exercises.harness.ground import trial
    from zerolab.exercises.harness.judge import judge_memory, judge_training
    from zerolab.runtime.cluster import Cluster
    from zerolab.runtime.faults import RankError

    verdicts: list[Verdict] = []
    recording: Recording | None = None
    for world_size in exercise.targets.world_sizes:
        plan = draw(seed, world_size)
        try:
            with Cluster(world_size=world_size, device="cpu", timeout=HANG_SECONDS) as cluster:
                for judge, optimizer in ((judge_training, "sgd"), (judge_memory, "adam")):
                    stage = exercise.targets.stage
                    recording = cluster.record(trial, answer, plan, optimizer, stage, ANSWER_SECONDS)
                    verdicts += judge(exercise, recording, plan)
                    if not verdicts[-1].right:
                        return Attempt(exercise.id, tuple(verdicts), (), recording, seed)
        except RankError as error:
            said = f"on {world_size} ranks: {in_words(error, exercise.name)}"
            return Attempt(exercise.id, tuple(verdicts), (said,), error.recording, seed)
    return Attempt(exercise.id, tuple(verdicts), (), recording, seed)


def draw(seed: int, world_size: int) -> "Plan":
    """What one run uses: widths that leave padding more often than not, rows, and the seed of weights and batches."""
    from zerolab.exercises.harness.ground import Plan

    dice = random.Random(f"{seed} {world_size}")
    widths = dice.randrange(60, 90), dice.randrange(110, 150), dice.randrange(60, 90)
    return Plan(seed=dice.randrange(2**31), widths=widths, rows=dice.randrange(3, 7))
