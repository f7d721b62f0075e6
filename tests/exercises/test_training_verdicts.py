"""What a check of a training loop says of common mistakes, and that its recording counts whole turns."""

from dataclasses import replace
from itertools import product

import pytest

from zerolab import check, exercises
from zerolab.exercises.harness import checking
from zerolab.exercises.harness.memory import FP32, Budget

RANKS = 2


@pytest.fixture(autouse=True)
def _two_ranks(monkeypatch):
    """Has `check` try two ranks only: what differs between numbers of ranks is tested with the solutions."""

    def load(exercise_id):
        exercise = exercises.load(exercise_id)
        return replace(exercise, targets=replace(exercise.targets, world_sizes=(RANKS,)))

    monkeypatch.setattr(checking, "load", load)


def answered(exercise_id, *edits, seed=1):
    """The attempt with the solution, of which each edit (text, new text) has changed one place."""
    exercise = exercises.load(exercise_id)
    source = exercise.solution_source()
    for old, new in edits:
        assert source.count(old) == 1, old
        source = source.replace(old, new)
    return check(exercise_id, exercise.compile(source), seed=seed)


def refused(exercise_id, *edits, seed=1):
    attempt = answered(exercise_id, *edits, seed=seed)
    assert attempt.ran
    assert not attempt.passed
    return str(attempt)


@pytest.mark.parametrize("exercise_id", ["zero1-average", "zero2-free", "zero3-train"])
def test_each_turn_of_a_right_answer_shows_all_that_the_target_sends(exercise_id):
    attempt = answered(exercise_id)
    assert attempt.passed, str(attempt)
    collectives, recording = exercises.load(exercise_id).targets.collectives, attempt.recording
    units = len(recording.units)
    # Of the last step alone: a gather that is booked to the turn before is missing here.
    rows = {row["op"]: row["count"] for row in recording.traffic()}
    assert {op: rows[op] for op in collectives} == {op: units * collectives.count(op) for op in collectives}
    made = [event for event in recording.rank(0).events if event.kind == "collective" and event.parent is None]
    assert [sum(event.step == step for event in made) for step in (0, 1, 2)] == [0, *[units * len(collectives)] * 2]
    assert "setup" not in {event.phase for event in made}


FORWARD = "            outputs = unit.forward(outputs)\n"
NO_DEL = ("            del gradient\n", "")


@pytest.mark.parametrize("seed", [1, 3])
@pytest.mark.parametrize("exercise_id", ["zero2-free", "zero3-train"])
def test_a_whole_gradient_that_a_variable_keeps_is_told_as_what_it_is(exercise_id, seed):
    said = refused(exercise_id, NO_DEL, seed=seed)
    assert "as much as one unit's whole gradient" in said
    assert "a `for` variable too: `del gradient`" in said


def test_whatever_is_drawn_a_whole_gradient_weighs_more_than_what_is_free():
    targets = exercises.load("zero3-train").targets
    for seed, world_size in product(range(100), (2, 3, 4)):
        plan = targets.plan(seed, world_size)
        padded = [layout.padded for layout in plan.layouts(plan.build(), world_size)]
        budget = Budget(padded, world_size, targets.shards, targets.scratch_parts, 0)
        assert min(padded) * FP32 > budget.beside("gradients"), f"seed {seed}, {world_size} ranks"


@pytest.mark.parametrize(
    ("exercise_id", "edit", "remedy"),
    [
        (
            "zero3-train",
            ("            outputs = unit.forward(outputs)\n            unit.release()\n", FORWARD),
            "Release a unit before you gather the one after the next.",
        ),
        (
            "zero2-free",
            ("in backward:", "in list(backward):"),
            "Reduce each gradient before the next backward but one.",
        ),
    ],
)
def test_too_many_whole_units_are_answered_with_what_to_do(exercise_id, edit, remedy):
    assert remedy in refused(exercise_id, edit)
