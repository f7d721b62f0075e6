"""The environment variables that are zerolab's own: read in one place, documented in README, refused in a sentence."""

import ast
import re
from pathlib import Path

import pytest

import zerolab
from zerolab.runtime import variables

PACKAGE = Path(zerolab.__file__).parent
README = (PACKAGE.parent / "README.md").read_text(encoding="utf-8")
NAME = re.compile(r"ZEROLAB_[A-Z_]+")


def asked_for(path):
    """The variables that a file reads: names that are an argument of a call, or in brackets behind something."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        asked = node.args if isinstance(node, ast.Call) else [node.slice] if isinstance(node, ast.Subscript) else []
        for each in asked:
            if isinstance(each, ast.Constant) and isinstance(each.value, str) and NAME.fullmatch(each.value):
                yield each.value


def test_one_module_reads_all_those_in_readmes_table_and_no_other():
    table = re.findall(r"^\| `(ZEROLAB_\w+)` \| .+ \|$", README, re.MULTILINE)
    readers = {path.relative_to(PACKAGE).as_posix(): set(asked_for(path)) for path in PACKAGE.rglob("*.py")}
    assert {name: found for name, found in readers.items() if found} == {"runtime/variables.py": set(table)}


@pytest.mark.parametrize(("value", "named"), [("", None), ("0", (0,)), ("2, 0,2", (2, 0)), ("cpu", ())])
def test_devices_names_gpus_or_the_cpu(value, named, monkeypatch):
    monkeypatch.setenv("ZEROLAB_DEVICES", value)
    assert variables.devices() == named


@pytest.mark.parametrize(("value", "seconds"), [("", 1200), ("0", 0), ("1.5", 90)])
def test_idle_minutes_are_twenty_or_what_is_set(value, seconds, monkeypatch):
    monkeypatch.setenv("ZEROLAB_IDLE_MINUTES", value)
    assert variables.idle_seconds() == seconds


@pytest.mark.parametrize("value", ["soon", "-1", "nan", "inf"])
def test_idle_minutes_that_make_no_sense_are_refused(value, monkeypatch):
    monkeypatch.setenv("ZEROLAB_IDLE_MINUTES", value)
    with pytest.raises(ValueError, match=f"ZEROLAB_IDLE_MINUTES is '{value}'; give minutes such as 20, or 0"):
        variables.idle_seconds()
