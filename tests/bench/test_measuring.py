"""The benchmark's arithmetic: ratios within a round, quartiles, budgets; its results name no machine."""

import json
import platform
from pathlib import Path

import measuring
import pytest


def figure() -> measuring.Figure:
    return measuring.Figure(
        "steps", "A step", "seconds", "torch", {"ours": 0.9}, {"ours": [1.0, 3.0, 2.0], "torch": [2.0, 3.0, 2.5]}
    )


def test_a_ratio_is_taken_round_by_round_and_held_against_its_budget() -> None:
    base, ours = figure().rows()
    assert (base["variant"], base["ratio"], base["kept"]) == ("torch", 1.0, None)
    assert (ours["median"], ours["ratio"], ours["kept"]) == (2.0, 0.8, "yes")  # the median of 0.5, 1.0 and 0.8


def test_a_missed_budget_says_so() -> None:
    missed = measuring.Figure("run", "A run", "ms", None, {"run": 5.0}, {"run": [6.0]})
    assert missed.rows()[0]["kept"] == "NO"


def test_every_round_measures_every_variant_once() -> None:
    seen = [variant for variant, _ in measuring.interleaved(["a", "b", "c"], 4, lambda _: 0.0)]
    assert [sorted(seen[start : start + 3]) for start in range(0, 12, 3)] == [["a", "b", "c"]] * 4
    assert len({tuple(seen[start : start + 3]) for start in range(0, 12, 3)}) > 1


def test_results_have_machine_and_date_but_no_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "RESULTS", tmp_path)
    text = measuring.write(figure())
    content = json.loads((tmp_path / "steps.json").read_text())
    assert content["machine"]["cores"] >= 1
    assert len(content["date"]) == len("2000-01-01")
    assert (tmp_path / "steps.md").read_text() == text
    assert platform.node() not in text + json.dumps(content)
