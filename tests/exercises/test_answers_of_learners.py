"""Answers as learners write them: unusual right ones pass, plausible wrong ones do not, whatever is drawn."""

import copy

import pytest
from answered import answers_to, exercises_with_answers

from zerolab import exercises
from zerolab.exercises.harness.plain import listed, plain

SEEDS = range(8)
FUNCTIONS = [name for name in exercises.names() if not exercises.load(name).targets.on_ranks]


def test_every_exercise_has_answers():
    assert exercises_with_answers() == exercises.names()


@pytest.mark.parametrize("exercise_id", FUNCTIONS)
def test_a_function_is_judged_the_same_whatever_is_drawn(exercise_id):
    exercise = exercises.load(exercise_id)
    runs = [next(exercise.targets.runs(exercise, 1, seed, 1.0)) for seed in SEEDS]
    answers = answers_to(exercise_id)
    assert sum(name.startswith("right_") for name in answers) >= 5
    assert sum(name.startswith("wrong_") for name in answers) >= 10
    for name, answer in answers.items():
        accepted = [not _why(exercise, answer, run.arguments[0]) for run in runs]
        assert set(accepted) == {name.startswith("right_")}, f"{name}: {accepted}"


def _why(exercise, answer, inputs):
    """What the check says of the answer for these inputs; empty if nothing."""
    try:
        given = [listed(plain(answer(*each.values()))) for each in copy.deepcopy(inputs)]
    except Exception as error:  # noqa: BLE001  an answer may raise anything
        return repr(error)
    return exercise.targets._judge(exercise, inputs, given)
