"""Every solution passes, every wrong answer is refused with its misconception named."""

import random
from itertools import combinations, pairwise

import pytest

from zerolab import Cluster, RankError, exercises
from zerolab.exercises.harness import function
from zerolab.exercises.harness.plain import same

ALL = [exercises.load(name) for name in exercises.names()]
FUNCTIONS = [exercise for exercise in ALL if not exercise.targets.on_ranks]
ON_RANKS = [exercise for exercise in ALL if isinstance(exercise.targets, exercises.RankTargets)]
WRONG = [(exercise, number) for exercise in ALL for number in range(len(exercise.wrong))]


@pytest.fixture
def runs(monkeypatch):
    """The runs of a check, one after the other: None, or the error that ended one."""
    runs, record = [], Cluster.record

    def noted(*args):
        runs.append(None)
        try:
            return record(*args)
        except RankError as error:
            runs[-1] = error
            raise

    monkeypatch.setattr(Cluster, "record", noted)
    return runs


@pytest.mark.parametrize("exercise", ALL, ids=lambda exercise: exercise.id)
def test_the_solution_passes_on_every_number_of_ranks(exercise, capsys):
    attempt = exercises.check(exercise.id, exercise.compile(exercise.solution_source()), seed=1)
    assert attempt.passed, str(attempt)
    tried = exercise.targets.world_sizes if exercise.targets.on_ranks else {None}
    assert {verdict.world_size for verdict in attempt.verdicts} == set(tried)
    assert capsys.readouterr().out.strip().endswith("passed.")
    # What is shown at the end are the most ranks, in whatever order they were tried.
    shown = [attempt.recording, *([attempt.ours] if exercise.targets.on_ranks else [])]
    assert {recording.world_size for recording in shown} == {max(exercise.targets.world_sizes)}


@pytest.mark.parametrize(("exercise", "number"), WRONG, ids=[f"{e.id}-{n}" for e, n in WRONG])
def test_a_wrong_answer_is_refused_and_its_misconception_named(exercise, number, runs):
    wrong = exercise.wrong[number]
    attempt = exercises.check(exercise.id, exercise.compile(exercise.wrong_source(wrong)), seed=1)
    assert not attempt.passed
    assert wrong.says in str(attempt)
    # The first mistake ends the check. A learner waits for one hang to be noticed at most, and for no answer to run out
    # of time.
    assert all(verdict.right for verdict in attempt.verdicts[:-1])
    assert runs[:-1] == [None] * len(runs[:-1])
    assert getattr(runs[-1], "exception", None) != "OutOfTime"


@pytest.mark.parametrize("exercise", FUNCTIONS, ids=lambda exercise: exercise.id)
def test_whatever_is_drawn_no_wrong_answer_is_right_and_no_two_are_taken_for_each_other(exercise):
    targets = exercise.targets
    wrong = [exercise.compile(exercise.wrong_source(each)) for each in exercise.wrong]
    for seed in range(40):
        (run,) = targets.runs(exercise, 1, seed, 1.0)
        inputs = run.arguments[0]
        values = list(filter(None, (function._results(answer, inputs) for answer in (exercise.solution, *wrong))))
        pairs = combinations(values, 2)
        assert not any(same(*pair, targets.tolerance) for pair in pairs), f"seed {seed}"


@pytest.mark.parametrize("exercise", ON_RANKS, ids=lambda exercise: exercise.id)
def test_what_a_mistake_gives_is_known_on_every_number_of_ranks(exercise):
    """A wrong value is compared with that of each mistake, on whichever ranks it is wrong: none of them may raise."""
    for size in exercise.targets.world_sizes:
        arguments = exercise.targets.draw(random.Random(size), size)
        for wrong in exercise.wrong:
            if wrong.gives is not None:
                assert len([wrong.gives(arguments, rank) for rank in range(size)]) == size


@pytest.mark.parametrize("exercise", ALL, ids=lambda exercise: exercise.id)
def test_an_exercise_has_what_a_learner_needs(exercise):
    assert len(exercise.hints) == 3
    assert len(exercise.wrong) >= 5
    assert len(exercise.statement.split()) > 50
    assert "Targets" in exercise.statement


@pytest.mark.parametrize(("exercise", "number"), WRONG, ids=[f"{e.id}-{n}" for e, n in WRONG])
def test_a_wrong_answer_is_one_unique_edit_or_a_whole_function(exercise, number):
    source = exercise.wrong_source(exercise.wrong[number])
    assert source != exercise.solution_source()
    assert callable(exercise.compile(source))


def test_sizes_differ_from_check_to_check_and_repeat_with_a_seed():
    from zerolab.exercises.harness.testbed import draw

    assert draw(1, 2) == draw(1, 2)
    assert len({draw(seed, 2).widths for seed in range(20)}) > 10
    assert all(_parameters(draw(seed, 2, units).widths) <= 50_000 for seed in range(50) for units in (False, True))


def _parameters(widths):
    return sum(a * b + b for a, b in pairwise(widths))
