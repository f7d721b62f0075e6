"""Hints come one at a time, the solution is folded, and an exercise's cells come from its file alone."""

import pytest

from zerolab import hint, solution
from zerolab.exercises import Wrong, load, names
from zerolab.exercises.harness import help as harness_help


@pytest.fixture(autouse=True)
def _no_hints_given_yet(monkeypatch):
    monkeypatch.setattr(harness_help, "_given", {})


def test_three_hints_then_the_way_to_the_solution(capsys):
    for _ in range(4):
        hint("zero1-average")
    first, second, third, last = capsys.readouterr().out.strip().splitlines()
    assert first.startswith("Hint 1 of 3: ")
    assert second.startswith("Hint 2 of 3: ")
    assert third.startswith("Hint 3 of 3: ")
    assert 'solution("zero1-average")' in last


def test_the_solution_is_text_outside_of_a_notebook(capsys):
    solution("zero1-average")
    assert capsys.readouterr().out.startswith("def zero1(")


def test_an_unknown_id_is_answered_with_those_that_exist(capsys):
    hint("zero9")
    solution("zero9")
    assert capsys.readouterr().out.count(f"choose one of {', '.join(names())}") == 2


def test_the_cells_are_statement_hole_check_sentence_and_picture():
    for exercise in map(load, names()):
        kinds, sources = zip(*exercise.cells(), strict=True)
        assert kinds == ("markdown", "code", "code", "markdown", "code")
        holes = exercise.hole.values() if exercise.is_class else [exercise.hole]
        assert all(f'return hole("{what}")' in sources[1] for what in holes)
        assert sources[2] == f'attempt = check("{exercise.id}", {exercise.name})'
        assert sources[4] == "attempt.play()"


@pytest.mark.parametrize("exercise_id", names())
def test_a_solution_that_is_pasted_below_what_the_exercise_gives_runs_as_it_is(exercise_id, capsys):
    solution(exercise_id)
    namespace = {"__name__": "__main__"}
    exec(f"{load(exercise_id).given}\n{capsys.readouterr().out}", namespace)  # noqa: S102  the project's own text
    assert callable(namespace[load(exercise_id).name])


def test_whoever_is_stuck_has_hint_and_solution_at_hand(capsys):
    for exercise in map(load, names()):
        cell = dict(enumerate(exercise.cells()))[1][1]
        assert f'# hint("{exercise.id}") helps' in cell
        namespace = {}
        exec(cell.split("\n\n\n")[0], namespace)  # noqa: S102  (the import lines of our own cell)
        namespace["hint"](exercise.id)
        assert "Hint 1 of 3" in capsys.readouterr().out
        assert callable(namespace["solution"])


def test_an_edit_that_fits_no_single_place_is_refused():
    with pytest.raises(ValueError, match="occurs 0 times in the solution"):
        load("zero1-average").wrong_source(Wrong(says="nothing", replace="no such text"))
