"""Progress is a small file outside of the project; losing it or being unable to write it harms nothing."""

import json
import subprocess
import sys
from contextlib import ExitStack

import pytest

from zerolab import cli
from zerolab.exercises import names
from zerolab.exercises.harness import solved
from zerolab.lessons import progress


@pytest.fixture
def file(tmp_path, monkeypatch):
    path = tmp_path / "data" / "progress.json"
    monkeypatch.setenv("ZEROLAB_PROGRESS", str(path))
    return path


def test_nothing_is_kept_under_tests(monkeypatch):
    monkeypatch.delenv("ZEROLAB_PROGRESS", raising=False)
    assert progress.path() is None
    progress.note_attempt("zero1-average", passed=True)
    assert progress.read()["exercises"] == {}


def test_outside_of_tests_it_lies_in_the_users_data_folder(monkeypatch):
    for name in ("ZEROLAB_PROGRESS", "PYTEST_CURRENT_TEST", "ZEROLAB_STATIC"):
        monkeypatch.delenv(name, raising=False)
    path = progress.path()
    assert path is not None
    assert path.parts[-2:] == ("zerolab", "progress.json")
    monkeypatch.setenv("ZEROLAB_PROGRESS", "off")
    assert progress.path() is None


def test_nothing_is_kept_of_somebody_whose_home_nobody_knows(monkeypatch):
    monkeypatch.delenv("PYTEST_CURRENT_TEST", raising=False)
    for name in ("ZEROLAB_PROGRESS", "ZEROLAB_STATIC", "HOME", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("os.getuid", lambda: 54_321)  # of which the system lists no home
    progress.note_attempt("ddp-average", passed=True)
    assert progress.read()["exercises"] == {}


def test_tries_are_counted_and_a_pass_stays(file):
    for passed in (False, True, False):
        progress.note_attempt("zero1-average", passed=passed)
    assert progress.read()["exercises"] == {"zero1-average": {"tries": 3, "passed": True}}
    (line,) = [line for line in solved.summary().splitlines() if " zero1-average " in line]
    assert line.split() == ["04", "zero1-average", "passed", "3", "tries"]
    assert f"1 of {len(names())} exercises passed" in solved.summary()


def test_the_first_guess_is_kept(file):
    progress.note_guess("04-zero1-state", 7.0)
    progress.note_guess("04-zero1-state", 10.0)
    assert progress.read()["guesses"] == {"04-zero1-state": 7.0}


def test_the_file_is_replaced_whole(file):
    progress.note_attempt("zero1-average", passed=False)
    progress.note_attempt("zero1-average", passed=True)
    assert [path.name for path in file.parent.iterdir()] == ["progress.json"]


EDITED = '{"format": 1, "exercises": {"zero1-average": 5, "buckets": {"tries": "two"}}, "guesses": {}}'


@pytest.mark.parametrize("content", ["", "{", "[]", '{"format": 99}', '{"format": 1, "exercises": 3}', EDITED])
def test_a_damaged_file_counts_as_empty(file, content):
    file.parent.mkdir()
    file.write_text(content)
    assert progress.read() == {"format": 1, "exercises": {}, "guesses": {}}
    progress.note_attempt("zero1-average", passed=True)
    assert progress.read()["exercises"]["zero1-average"]["tries"] == 1
    assert [path.read_text() for path in file.parent.glob("*.bak*")] == ([] if content == EDITED else [content])


def test_no_earlier_file_is_lost_that_cannot_be_understood(file):
    file.parent.mkdir()
    for content in ("[" * 100_000, '{"format": 2}'):
        file.write_text(content)
        progress.note_guess("04-zero1-state", 7.0)
    assert sorted(path.name for path in file.parent.iterdir()) == [
        "progress.json",
        "progress.json.bak",
        "progress.json.bak2",
    ]


NOTING = """
import sys
from zerolab.lessons import progress

sys.stdin.read()
for _ in range(50):
    progress.note_attempt(sys.argv[1], passed=True)
"""


def test_kernels_that_note_at_the_same_time_lose_nothing(file):
    ids = ["product", "buckets", "state-bytes"]
    with ExitStack() as stack:
        kernels = [
            stack.enter_context(subprocess.Popen([sys.executable, "-c", NOTING, name], stdin=subprocess.PIPE))
            for name in ids
        ]
        for kernel in kernels:
            kernel.stdin.close()
    assert progress.read()["exercises"] == {name: {"tries": 50, "passed": True} for name in ids}


def test_a_place_that_cannot_be_written_is_no_error(tmp_path, monkeypatch):
    (tmp_path / "in the way").write_text("a file, not a folder")
    monkeypatch.setenv("ZEROLAB_PROGRESS", str(tmp_path / "in the way" / "progress.json"))
    progress.note_attempt("zero1-average", passed=True)
    assert progress.read()["exercises"] == {}


def test_json_and_reset(file, capsys):
    progress.note_attempt("zero1-average", passed=True)
    assert cli.main(["progress", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["exercises"]["zero1-average"]["passed"] is True
    assert cli.main(["reset", "progress"]) == 0
    assert cli.main(["reset", "progress"]) == 0
    assert capsys.readouterr().out == "progress forgotten\nthere was no progress to forget\n"
    assert not file.exists()


def test_the_reset_of_the_first_edition_works_and_says_what_to_write_now(file, capsys):
    progress.note_attempt("zero1-average", passed=True)
    assert cli.main(["progress", "--reset"]) == 0
    out, err = capsys.readouterr()
    assert out == "progress forgotten\n"
    assert err == "zerolab: progress --reset is now reset progress; the old form will be removed in the next edition\n"
    assert not file.exists()


def test_exercises_stand_in_the_order_of_the_lessons():
    exercises = solved.by_lesson()
    lessons = [lesson for lesson, _ in exercises]
    assert sorted(lessons) == lessons
    assert sorted(name for _, name in exercises) == names()
    assert ("06", "zero3-train") in exercises


def test_a_class_is_counted_and_a_file_that_is_not_there_is_an_error(file, tmp_path, monkeypatch, capsys):
    learners = [tmp_path / f"{learner}.json" for learner in ("ada", "alan", "grace")]
    for learner, tries in zip(learners, ([False, True], [False], []), strict=True):
        monkeypatch.setenv("ZEROLAB_PROGRESS", str(learner))
        progress.note_guess("04-zero1-state", 1.0)
        for passed in tries:
            progress.note_attempt("zero1-average", passed=passed)
    said = solved.of_class(learners).splitlines()
    (line,) = [line.split() for line in said if " zero1-average " in line]
    assert line == ["04", "zero1-average", "passed", "1", "tried", "2", "tries", "3"]
    assert said[-1] == "3 learners"
    (tmp_path / "recording.json").write_text('{"format": 7, "events": []}')
    for other in ("nobody.json", "recording.json", "."):
        with pytest.raises(ValueError, match="is no progress file that can be read"):
            solved.of_class([tmp_path / other])
    assert solved.of_class(learners[:1]).endswith("\n1 learner")
    before = [learner.read_text() for learner in learners]
    assert cli.main(["progress", "--json", *map(str, learners)]) == 2
    assert "ask for one of them" in capsys.readouterr().err
    assert [learner.read_text() for learner in learners] == before, "the first was not taken for the file to write"
