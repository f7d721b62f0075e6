"""Notebooks that were written for the first edition still find its modules, and hear where they are now."""

import subprocess
import sys
from importlib import import_module
from inspect import signature

import pytest

import zerolab
from zerolab import theory
from zerolab.moved import MOVED


@pytest.mark.parametrize(("old", "new"), MOVED.items())
def test_an_old_name_gives_the_module_of_today_and_says_so(old, new):
    sys.modules.pop(f"zerolab.{old}", None)
    sentence = f"^zerolab.{old} is now zerolab.{new}; the old name will be removed in the next edition$"
    with pytest.warns(FutureWarning, match=sentence):
        module = import_module(f"zerolab.{old}")
    today = import_module(f"zerolab.{new}")
    names = [name for name in vars(today) if not name.startswith("__")]
    assert names
    assert all(getattr(module, name) is getattr(today, name) for name in names)


@pytest.mark.slow
def test_a_cell_of_the_first_edition_runs_and_shows_one_line():
    cell = (
        "from zerolab.lab import record\nfrom zerolab import workspace\nprint(record.__name__, workspace.lab.__name__)"
    )
    done = subprocess.run([sys.executable, "-c", cell], check=False, capture_output=True, text=True, timeout=120)
    assert done.stdout == "record lab\n", done.stderr
    said = [line for line in done.stderr.splitlines() if "FutureWarning" in line]
    assert [line.split(": ", 2)[0].split(":")[0] for line in said] == ["<string>", "<string>"]


def test_what_was_never_there_is_not_there():
    with pytest.raises(ModuleNotFoundError, match=r"zerolab\.laboratory"):
        import_module("zerolab.laboratory")
    assert not set(MOVED) & set(zerolab.__all__)


def test_a_plan_takes_its_keywords_of_the_first_edition_and_says_their_names_of_today():
    with pytest.warns(FutureWarning) as told:
        old = theory.plan("llama3-8b", gpus=8, batch=2)
    assert sorted(str(each.message) for each in told) == [
        "batch= of plan is now rows=; the old name will be removed in the next edition",
        "gpus= of plan is now world_size=; the old name will be removed in the next edition",
    ]
    assert {each.filename for each in told} == {__file__}
    assert old == theory.plan("llama3-8b", world_size=8, rows=2)


def test_a_keyword_under_both_of_its_names_is_refused():
    with pytest.raises(TypeError, match=r"plan\(\) takes rows=, and batch= is its old name: leave batch= out"):
        theory.plan("7b", 8, rows=1, batch=2)


def test_shift_tab_shows_the_keywords_of_today():
    assert [*signature(theory.plan).parameters][:2] == ["model", "world_size"]
    assert [*signature(zerolab.what_fits).parameters] == ["model", "world_size", "rows"]
