"""`check`: runs an answer on real ranks and says what is right and what is not. It never raises."""

import inspect
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from zerolab.exercises.harness import rungs
from zerolab.exercises.harness.attempt import Attempt
from zerolab.exercises.harness.exercise import Exercise, load
from zerolab.exercises.harness.hole import open_holes
from zerolab.exercises.harness.plain import kind_of
from zerolab.exercises.harness.targets import Verdict
from zerolab.lessons import progress
from zerolab.runtime.waiting import waiting

HANG_SECONDS = 2.0  # a rank that waits longer than this in one collective of a tiny model waits for ever
TRIALS = tuple(f"zerolab.exercises.harness.{name}" for name in ("clinic", "onranks", "trials"))
ANSWER_SECONDS = 20.0  # that one run of an answer may take; a right one takes less than one

OURS_FAILED = (
    "Ours could not run after yours on the same ranks, so it is not set beside it: has yours left something changed, "
    "such as a function of torch?"
)


def check(exercise_id: str, answer: Callable[..., Any], seed: int | None = None) -> Attempt:
    """Runs `answer` on real ranks, prints a verdict for each target, and returns the attempt. Never raises.

    With a hole still open no ranks are started. Sizes, weights and batches are drawn anew at each check, or from
    `seed`. Judged is what the recording shows, not what the answer says of itself; the check guards against mistakes
    and short cuts, not against tampering.
    """
    try:
        with waiting(f"running your answer to {exercise_id}"):
            attempt = _attempt(exercise_id, answer, seed)
    except KeyboardInterrupt:
        attempt = Attempt(exercise_id, said=("Stopped. Nothing is left running.",))
    except Exception as error:  # noqa: BLE001  the promise: a notebook goes on whatever happens
        attempt = Attempt(exercise_id, said=(f"The check itself failed, with {type(error).__name__}: {error}",))
    print(attempt)
    if attempt.ran:
        progress.note_attempt(exercise_id, attempt.passed)
    if attempt.passed:
        rungs.note_passed(exercise_id, answer)
    return attempt


def _attempt(exercise_id: str, answer: Callable[..., Any], seed: int | None) -> Attempt:
    try:
        exercise = load(exercise_id)
    except ValueError as error:
        return Attempt(exercise_id, said=(str(error),))
    refusal = refuse(exercise, answer) or _refuse_ranks(max(exercise.targets.world_sizes)) or _refuse_to_send(answer)
    if refusal:
        return Attempt(exercise_id, said=(refusal,))
    seed = random.SystemRandom().randrange(2**31) if seed is None else seed
    if not exercise.targets.on_ranks:
        return _run(exercise, answer, seed)
    from zerolab.exercises.harness.settings import settings_restored

    with settings_restored():  # what is right is computed here, and is as small
        return _run(exercise, answer, seed)


def refuse(exercise: Exercise, answer: Callable[..., Any]) -> str:
    """Why the answer cannot be run at all, in a sentence; empty if it can."""
    kind = "class" if exercise.is_class else "function"
    if not callable(answer) or isinstance(answer, type) != exercise.is_class:
        what = "a function" if inspect.isfunction(answer) else kind_of(answer)
        what = "a class" if isinstance(answer, type) else what
        return f"check() got {what}; give it the {kind} `{exercise.name}` itself, without calling it."
    holes = open_holes(answer)
    if holes:
        return f'The hole "{holes[0]}" is still open: nothing was run.'
    if inspect.isgeneratorfunction(answer) or inspect.iscoroutinefunction(answer):
        return f"`{exercise.name}` contains `yield` or `async`, so calling it does not run it: write a plain function."
    return _refuse_methods(exercise, answer) if exercise.is_class else _refuse_arguments(exercise, answer)


def _refuse_ranks(most: int) -> str:
    """Why this machine cannot start as many ranks as the check needs; empty if it can."""
    from zerolab.runtime import devices, variables

    try:
        allowed = variables.max_ranks()
        if allowed is not None and allowed < most:
            return (
                f"This check needs {most} ranks, and ZEROLAB_MAX_RANKS allows {allowed} on this machine: nothing was "
                f"run. Ask whoever set it for {most}."
            )
        devices.check_limits(most)
    except ValueError as error:
        return f"This check needs {most} ranks, which cannot start here: {error}."
    return ""


def _refuse_to_send(answer: Callable[..., Any]) -> str:
    """Why an answer cannot reach the ranks, such as a lock that it uses; empty if it can."""
    from zerolab.runtime.travel import pack_call

    try:
        pack_call(answer, (), {})
    except (TypeError, ValueError) as error:
        return str(error)
    return ""


def _refuse_arguments(exercise: Exercise, answer: Callable[..., Any]) -> str:
    """Why a function cannot be called as the solution is."""
    try:
        inspect.signature(answer).bind(*exercise.arguments)
    except ValueError:  # some built-in functions have no signature to look at: running them will tell
        return ""
    except TypeError as error:
        arguments = ", ".join(exercise.arguments)
        return (
            f"`{exercise.name}` is called as {exercise.name}({arguments}), which its definition does not fit: {error}."
        )
    return ""


def _refuse_methods(exercise: Exercise, answer: Callable[..., Any]) -> str:
    """Why a class cannot be run: a method that is missing, or that cannot be called as the solution's is."""
    if not isinstance(exercise.hole, dict):
        raise TypeError(f"{exercise.id} asks for a class: its `hole` must be a dict from methods to what they do")
    base = inspect.getmro(exercise.solution)[1]  # type: ignore[arg-type]  # with a dict of holes it is a class
    for name in exercise.hole:
        arguments = ", ".join(inspect.signature(getattr(exercise.solution, name)).parameters)
        method = getattr(answer, name, None)
        if not callable(method) or method is getattr(base, name, None):
            return f"`{exercise.name}` has no method {name}({arguments})."
        try:
            inspect.signature(method).bind(*arguments.split(", "))
        except TypeError as error:
            called = f"{name}({arguments})"
            return f"`{exercise.name}.{name}` is called as {called}, which its definition does not fit: {error}."
    return ""


def _run(exercise: Exercise, answer: Callable[..., Any], seed: int) -> Attempt:
    from zerolab.exercises.harness.failure import in_words
    from zerolab.runtime.cluster import Cluster
    from zerolab.runtime.faults import RankError
    from zerolab.runtime.launch import launcher

    launcher().preload(*TRIALS)
    verdicts: list[Verdict] = []
    on_ranks = exercise.targets.on_ranks
    shown = attempt = Attempt(exercise.id, seed=seed)
    for world_size in exercise.targets.world_sizes:
        try:
            with Cluster(world_size=world_size, device="cpu", timeout=HANG_SECONDS) as cluster:
                for run in exercise.targets.runs(exercise, world_size, seed, ANSWER_SECONDS):
                    recording = cluster.record(run.trial, answer, *run.arguments)
                    # Kept run by run: if the next one kills a rank, what was right before is still told.
                    verdicts += run.verdicts(recording, world_size if on_ranks else None)
                    attempt = Attempt(exercise.id, tuple(verdicts), (), recording, seed, run.picture, aside=run.aside)
                    if not verdicts[-1].right:
                        return attempt
                if on_ranks and world_size == max(exercise.targets.world_sizes):
                    from zerolab.exercises.harness.score import run_ours

                    try:
                        ours = cluster.record(run_ours, exercise.ours, run.trial, *run.ours)
                        shown = replace(attempt, ours=ours)
                    except RankError:
                        shown = replace(attempt, aside=OURS_FAILED)
        except RankError as error:
            where, recorded = (f"on {world_size} ranks: ", error.recording) if on_ranks else ("", None)
            said = where + in_words(error, exercise.name)
            return Attempt(exercise.id, tuple(verdicts), (said,), recorded, seed)
    # Of an answer that has passed, the most ranks are shown.
    return replace(shown, verdicts=attempt.verdicts) if on_ranks else attempt
