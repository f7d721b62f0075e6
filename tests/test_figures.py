"""The plotly figures say what theory and measurement say, the same each time, in the player's colours."""

import re
from pathlib import Path

import pytest

import zerolab.player
from zerolab import figures, theory

ROWS = [
    {
        "stage": stage,
        "world_size": 4,
        "state": {category: value + 8 for category, value in theory.state_bytes(stage, 1000, 4).items()},
        "formula": theory.state_bytes(stage, 1000, 4),
    }
    for stage in theory.STAGES
]


def every_figure():
    return [
        figures.stages(ROWS),
        figures.memory_against_ranks(7e9),
        figures.traffic_against_bandwidth(7e9, 8, 1.0),
    ]


def test_measured_bytes_stand_beside_the_formula():
    bars = {trace.name: dict(zip(trace.x, trace.y, strict=True)) for trace in figures.stages(ROWS).data}
    assert bars["parameters, measured"]["zero3"] == 1008
    assert bars["parameters, formula"]["zero3"] == 1000
    assert bars["optimizer state, formula"]["zero1"] == 2000


def test_memory_falls_with_the_ranks_as_the_formula_says():
    lines = {trace.name: dict(zip(trace.x, trace.y, strict=True)) for trace in figures.memory_against_ranks(7e9).data}
    assert [round(lines[stage][8], 1) for stage in theory.STAGES] == [112.0, 63.0, 38.5, 14.0]


def test_the_slider_gives_the_seconds_of_each_bandwidth():
    figure = figures.traffic_against_bandwidth(1e9, 4, 0.5)
    step = next(step for step in figure.layout.sliders[0].steps if step.label == "1")
    computing, sending = step.args[0]["y"]
    assert list(computing) == [0.5] * 4
    assert list(sending) == pytest.approx([6.0, 6.0, 6.0, 9.0])
    assert "upper end" in figures.traffic_against_bandwidth.__doc__


def test_a_figure_is_the_same_text_every_time():
    first, second = (list(map(figures.html, every_figure())) for _ in range(2))
    assert first == second
    assert 'id="zerolab-memory"' in first[1]


def test_figures_and_player_share_their_colours():
    palette = (Path(zerolab.player.__file__).parent / "palette.js").read_text()
    light = re.search(r"CATEGORY_COLOURS = \{\s*light: \{(.*?)\}", palette, re.DOTALL)[1]
    for category in ("parameters", "gradients", "optimizer_state", "communication"):
        assert f'{category}: "{figures.COLOURS[category]}"' in light


def test_wrong_use_is_told_in_words():
    with pytest.raises(ValueError, match="give the rows of compare"):
        figures.stages([])
    with pytest.raises(ValueError, match="compute_seconds is 0"):
        figures.traffic_against_bandwidth(1e9, 4, 0)
    with pytest.raises(ValueError, match="world size is 0"):
        figures.memory_against_ranks(1e9, sizes=(0,))


@pytest.mark.slow
def test_explore_runs_and_keeps_the_run_before_beside_the_new_one():
    from zerolab.panel import explore

    panel = explore()
    panel.ranks.value = 2
    panel.button.click()
    assert repr(panel) == "explore: 1 run", panel.said.value
    panel.stage.value = "ddp"
    panel.button.click()
    bars, player = panel.shown.children
    assert set(bars.data[0].x) == {"run 1: zero3, 2 ranks", "run 2: ddp, 2 ranks"}
    assert "beside it" in repr(player)
    assert not panel.button.disabled
