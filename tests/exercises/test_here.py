"""Plain functions are checked in one process, without torch: as `check` does it, in the same words."""

import subprocess
import sys

import pytest

from zerolab import exercises
from zerolab.exercises.harness.here import checked

PLAIN = [exercise for exercise in map(exercises.load, exercises.names()) if not exercise.targets.on_ranks]
NEEDED = "def gpus_needed(stage, num_params, precision, memory):\n    "
WITHOUT_TORCH = """
import sys

class NotHere:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "numpy", "platformdirs", "IPython", "plotly", "ipywidgets"):
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, NotHere())
from zerolab.exercises.harness.here import checked, load
for name in sys.argv[1:]:
    print(name, checked(name, load(name).solution_source(), 3).passed)
"""


@pytest.mark.parametrize("exercise", PLAIN, ids=lambda exercise: exercise.id)
def test_the_solution_passes_and_every_misconception_is_named(exercise):
    found = checked(exercise.id, exercise.solution_source(), 1)
    assert (found.ran, found.passed, found.said) == (True, True, ["value right"])
    assert len(found.table) == exercise.targets.tries
    for wrong in exercise.wrong:
        found = checked(exercise.id, exercise.wrong_source(wrong), 1)
        assert (found.ran, found.passed) == (True, False)
        assert wrong.says in found.said[-1]


def test_neither_torch_nor_numpy_is_needed():
    ids = [exercise.id for exercise in PLAIN]
    done = subprocess.run([sys.executable, "-c", WITHOUT_TORCH, *ids], capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == [f"{name} True" for name in ids], done.stderr


def test_the_words_are_those_of_check(capsys):
    exercise = exercises.load("gpus-needed")
    for body in (
        "return 3",
        "return",
        'return hole("x")',
        "yield 3",
        "from zerolab.exercises.gpus_needed import solution",
    ):
        text = NEEDED + body
        attempt = exercises.check(exercise.id, exercise.compile(text), seed=5)
        said = str(attempt).removesuffix('\ngpus-needed: not yet. hint("gpus-needed") helps; seed=5 repeats this.')
        assert "\n".join(checked(exercise.id, text, 5).said) == said
    capsys.readouterr()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("def gpus_needed(", 'Python cannot read your answer:\n  File "your answer", line 1'),
        ("x = y", "`gpus_needed` failed: NameError: name 'y' is not defined"),
        ("x = 3", "Your answer does not define `gpus_needed`: keep the line that begins with `def`."),
        ("def gpus_needed(stage): return 1", "is called as gpus_needed(stage, num_params, precision, memory)"),
        ("gpus_needed = 3", "check() got an int; give it the function `gpus_needed` itself"),
        (f"{NEEDED}return 1 / 0", "line 2, in gpus_needed\n      return 1 / 0"),
        (f"{NEEDED}raise SystemExit('enough')", "`gpus_needed` failed: SystemExit: enough"),
        (f"{NEEDED}return gpus_needed(stage, num_params, precision, memory)", "failed: RecursionError"),
    ],
)
def test_whatever_is_written_gets_a_sentence(text, said):
    found = checked("gpus-needed", text, 1)
    assert said in "\n".join(found.said)
    assert not found.passed


def test_what_an_answer_prints_is_kept_up_to_a_length_and_shown_nowhere_else(capsys):
    found = checked("gpus-needed", f"{NEEDED}print('x' * 999)\n    return 1", 1)
    assert found.printed[:3] == "xxx"
    assert len(found.printed) == 4_000
    assert capsys.readouterr().out == ""


def test_an_answer_that_uses_its_arguments_up_is_judged_by_what_it_was_given():
    text = """def gradient_peak(units, world_size):
    peak = shards = 0
    while units:
        shard = -(-units.pop() // world_size)
        peak = max(peak, shards + shard * world_size)
        shards += shard
    return 4 * peak
"""
    found = checked("gradient-peak", text, 1)
    assert (found.passed, found.said) == (True, ["value right"])


def test_an_exercise_on_ranks_is_refused():
    with pytest.raises(ValueError, match="zero1-average runs on ranks: open its lesson"):
        checked("zero1-average", "", 1)


def test_a_finished_formula_is_no_answer():
    exercise = exercises.load("state-bytes")
    text = "import zerolab.theory\n"
    text += f"def {exercise.name}({', '.join(exercise.arguments)}):\n"
    text += "    return zerolab.theory.state_bytes('ddp', 10, 2)\n"
    assert "is a finished answer: write the function yourself" in "\n".join(checked("state-bytes", text, 1).said)
