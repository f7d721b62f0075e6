"""Notebooks that were written for the first edition still find its modules, and hear where they are now."""

import subprocess
import sys
from importlib import import_module

import pytest

import zerolab
from zerolab.moved import MOVED


@pytest.mark.parametrize(("old", "new"), MOVED.items())
def test_an_old_name_gives_the_module_of_today_and_says_so(old, new):
    sys.modules.pop(f"zerolab.{old}", None)
    with pytest.warns(FutureWarning, match=f"^zerolab.{old} is zerolab.{new} now, and goes with the next edition$"):
        module = import_module(f"zerolab.{old}")
    today = import_module(f"zerolab.{new}")
    names = [name for name in vars(today) if not name.startswith("__")]
    assert names
    assert all(getattr(module, name) is getattr(today, name) for name in names)


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
