"""The benchmark's arithmetic: ratios within a round, quartiles, budgets, exponents; its results name no machine."""

import json
import platform
from pathlib import Path

import growth
import measuring
import plot
import pytest
import steps


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


def test_a_figure_that_was_not_run_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "RESULTS", tmp_path)
    measuring.write(measuring.Figure("gpu", "On a GPU", "seconds", "plain", {"zero1": 1.05}, note="not run: no GPU"))
    assert (tmp_path / "gpu.md").read_text().endswith("\n\nnot run: no GPU\n")
    assert json.loads((tmp_path / "gpu.json").read_text())["rows"] == []


def test_a_stage_is_held_against_deepspeeds_same_stage_where_that_was_measured() -> None:
    samples = {"ddp": [1.0], "zero2": [3.0, 1.0], "deepspeed-2": [6.0, 4.0]}
    assert steps.against_same_stage(samples) == {"zero2": [0.5, 0.25]}


@pytest.mark.parametrize("power", [0.5, 1.0, 2.0])
def test_the_exponent_of_a_power_law_is_its_power(power: float) -> None:
    assert growth.exponent([(x, 3 * x**power) for x in (10.0, 50.0, 100.0)]) == pytest.approx(power)


def test_the_models_that_grow_have_about_the_parameters_that_their_name_says() -> None:
    assert {size: round(growth._numel(size) / 1e6) for size in growth.WIDTHS} == {size: size for size in growth.WIDTHS}


def test_a_plot_is_the_same_bytes_for_the_same_numbers_and_shows_every_point() -> None:
    lines = {"zero2, N=1": [(1.0, 2.0), (10.0, 20.0)], "zero3, N=1": [(1.0, 5.0)]}
    picture = plot.svg("a & b", "MiB", "seconds", lines)
    assert picture == plot.svg("a & b", "MiB", "seconds", lines)
    assert picture.count("<circle") == 3
    assert "a &amp; b" in picture
