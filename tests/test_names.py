"""A name that does not exist is answered with what was meant."""

import subprocess
import sys
from pathlib import Path

import pytest

import zerolab
from zerolab import catalog, check, exercises, hint, models, theory
from zerolab.lessons.predictions import reveal
from zerolab.names import unknown


def test_a_short_list_is_shown_whole_and_a_long_one_only_where_nothing_is_near():
    assert unknown("stage", "zero4", theory.STAGES) == (
        "unknown stage 'zero4': choose one of ddp, zero1, zero2, zero3; did you mean 'zero3', 'zero2' or 'zero1'?"
    )
    many = [f"exercise-{number}" for number in range(40)]
    assert unknown("exercise", "exercize-7", [*many, "ring"]).startswith(
        "unknown exercise 'exercize-7': did you mean 'exercise-7'"
    )
    assert unknown("exercise", "nothing like it", many).endswith(", ".join(many))


@pytest.mark.parametrize(
    ("ask", "meant"),
    [
        (lambda: models.build("gpt_tinny"), "gpt-tiny"),
        (lambda: theory.state_bytes("Zero 3", 10, 2), "zero3"),
        (lambda: theory.plan("llama7b", world_size=8), "llama-7b"),
        (lambda: catalog.gpu("H-100"), "h100"),
        (lambda: exercises.load("ring-all-gatherr"), "ring-all-gather"),
        (lambda: reveal("04-zero-state", 1.0), "04-zero1-state"),
        (lambda: zerolab.Zero4, "Zero3"),
        (lambda: zerolab.simulat, "simulate"),
    ],
)
def test_whoever_mistypes_a_name_is_told_the_one_that_was_meant(ask, meant):
    with pytest.raises((ValueError, AttributeError), match=rf"did you mean .*{meant}"):
        ask()


def test_hint_and_check_say_what_was_meant_too(capsys):
    hint("ring-all-gatherr")
    check("ring-all-gatherr", print)
    assert capsys.readouterr().out.count("did you mean 'ring-all-gather'?") == 2


def test_a_mistyped_command_is_told_the_one_that_was_meant():
    command = [Path(sys.executable).with_name("zerolab"), "recrod"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr.count("did you mean 'record'?")) == (2, 1)
