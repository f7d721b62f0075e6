"""What a check of a training loop says of common mistakes, and that its recording counts whole turns."""

from dataclasses import replace

import pytest

from zerolab import check, exercises
from zerolab.exercises.harness import checking

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
