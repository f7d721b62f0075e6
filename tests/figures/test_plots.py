"""The plotly figures say what theory and measurement say, the same each time, in the player's colours."""

import io
import json
import re
from pathlib import Path

import pytest
import torch
from IPython.core.formatters import DisplayFormatter

import zerolab.player
from zerolab import catalog, figures, theory, what_fits
from zerolab.engines import ENGINES
from zerolab.figures import chart
from zerolab.recording.host import HostMemory
from zerolab.theory import forms, systems
from zerolab.theory.moments import PARTS

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
        figures.plan(theory.plan("7b", 8)),
        figures.wall(),
        figures.losses({"fp32": [1.0, 0.1], "bf16": [1.0, 0.5]}, guess=0.2),
        figures.loading({"whole": [HostMemory(100, 100, 200), HostMemory(120, 90, 200)]}, 100),
    ]


def test_what_ranks_allocate_adds_up_and_pages_of_a_file_count_once():
    figure = figures.loading({"whole": [HostMemory(100, 100, 200), HostMemory(120, 90, 200)]}, 100)
    assert [trace.y[0] for trace in figure.data] == [1.0, 1.2, 1.0]
    assert figure.data[-1].text == ("a rank 1.20",)
    with pytest.raises(ValueError, match="model_bytes is 0: give the bytes"):
        figures.loading({}, 0)


def test_measured_bytes_stand_beside_the_formula():
    bars = {trace.name: dict(zip(trace.x, trace.y, strict=True)) for trace in figures.stages(ROWS).data}
    assert bars["parameters, measured"]["zero3"] == 1008
    assert bars["parameters, formula"]["zero3"] == 1000
    assert bars["optimizer state, formula"]["zero1"] == 2000


def test_rows_of_one_stage_are_all_in_the_caption_and_none_that_is_apart_is_said_to_be_alike():
    alike = ROWS[0]
    apart = {**alike, "state": {category: 2 * value for category, value in alike["state"].items()}}
    figure = figures.stages([apart, alike])
    assert repr(figure).endswith("Bytes measured: ddp (1) 32,048, ddp (2) 16,024.")
    assert "Each pair is as high" in figures.stages([alike, alike]).layout.title.text
    assert "Each pair is as high" not in figure.layout.title.text


def test_rows_of_one_stage_have_bars_of_their_own_named_by_what_they_differ_in():
    def names(*changes):
        return list(figures.stages([ROWS[0] | change for change in changes]).data[0].x)

    assert names({}) == ["ddp"]
    assert names({"precision": "fp32"}, {"precision": "bf16"}) == ["ddp, fp32", "ddp, bf16"]
    assert names({}, {"world_size": 8}) == ["ddp, 4 ranks", "ddp, 8 ranks"]
    assert names({"stage": "zero1"}, {"world_size": 8}) == ["zero1", "ddp"]
    assert names({}, {"stage": "zero1"}, {}) == ["ddp (1)", "zero1", "ddp (2)"]
    assert names({"num_params": 1000}, {"num_params": 2000}, {"num_params": 1000}) == [
        "ddp, 1,000 parameters (1)",
        "ddp, 2,000 parameters",
        "ddp, 1,000 parameters (2)",
    ]
    assert "on 4 ranks" in figures.stages(ROWS).layout.title.text
    assert "on 4 ranks" not in figures.stages([ROWS[0], ROWS[0] | {"world_size": 8}]).layout.title.text


def test_every_stage_has_a_formula_and_a_colour_a_dash_and_a_mark_of_its_own():
    own = list(ENGINES)[: len(theory.STAGES)]
    assert own == [stage for stage in ENGINES if stage not in systems.FORMS] == list(theory.STAGES)
    for table in (forms.SHARDED, forms.PASSES, chart.STAGE_COLOURS, chart.DASHES, chart.MARKS):
        assert list(table) == own
    for looks in (chart.STAGE_COLOURS, chart.DASHES, chart.MARKS):
        assert len(set(looks.values())) == len(own)
    palette = (Path(zerolab.player.__file__).parent / "palette.js").read_text()
    assert not [colour for colour in chart.STAGE_COLOURS.values() if colour in palette]  # not a rank's, for one


def test_every_other_system_has_a_closed_form_that_it_should_follow():
    assert [stage for stage in ENGINES if stage not in theory.STAGES] == list(systems.FORMS)


def test_the_wall_has_the_formulas_bytes_below_the_cards_line():
    figure = figures.wall("ddp,zero3", "7b", 8, "a100")
    assert [trace.x for trace in figure.data] == [("ddp", "zero3")] * 3
    assert [sum(bars) for bars in zip(*(trace.y for trace in figure.data), strict=True)] == [112.0, 14.0]
    assert [shape.y0 for shape in figure.layout.shapes] == [catalog.gpu("a100").memory_bytes / 1e9]
    assert repr(figure).endswith("On 8 GPUs: ddp 112 GB, zero3 14 GB; one a100 has 85.1 GB.")


def test_the_walls_slider_gives_the_bytes_of_each_number_of_gpus():
    figure = figures.wall(["ddp", "zero3"], "7b", 8)
    steps = {step.label: step.args[0] for step in figure.layout.sliders[0].steps}
    assert list(steps["1"]["text"][-1]) == ["112 GB", "112 GB"]
    assert list(steps["1,024"]["text"][-1]) == ["112 GB", "0.109 GB"]
    assert [next(sum(bars) for bars in zip(*step["y"], strict=True)) for step in steps.values()] == [112.0] * 11
    with pytest.raises(ValueError, match="zero4"):
        figures.wall("zero4")


def test_each_run_has_a_line_of_its_own_and_a_guess_is_a_ghost_across_the_figure():
    figure = figures.losses({"fp32": [1.0, 0.1, 0.01], "bf16": [1.0, 0.5, 0.4]}, "Above the best", guess=0.2)
    assert [(trace.name, trace.x, trace.y) for trace in figure.data] == [
        ("fp32", (1, 2, 3), (1.0, 0.1, 0.01)),
        ("bf16", (1, 2, 3), (1.0, 0.5, 0.4)),
        ("your guess", (1, 3), (0.2, 0.2)),
    ]
    assert len({trace.line.dash for trace in figure.data}) == 3
    assert figure.layout.yaxis.type == "log"
    assert repr(figure) == "figure: Above the best. A line for each of: fp32, bf16."
    assert len(figures.losses({"fp32": [1.0]}).data) == 1


@pytest.mark.parametrize(
    ("curves", "guess", "says"),
    [
        ({"a": [1.0]}, 0, "guess is 0"),
        ({"a": [1.0]}, float("nan"), "guess is nan"),
        ({"a": [1.0]}, "1e-3", "guess is '1e-3': .* give a number above 0"),
        ({"a": [1.0]}, [0.1], "guess is .0.1.: .* give a number above 0"),
        ({"a": [1.0, 0.0]}, 1, "a has a loss of 0.0"),
        ({"a": [1.0, float("nan")]}, None, "a has a loss of nan"),
        ({}, 1, "no losses to draw in {}"),
        ({"a": [1.0], "b": []}, None, "no losses to draw in"),
    ],
)
def test_what_has_no_place_on_a_logarithmic_axis_is_refused(curves, guess, says):
    with pytest.raises(ValueError, match=says):
        figures.losses(curves, guess=guess)


def test_memory_falls_with_the_ranks_as_the_formula_says():
    lines = {trace.name: dict(zip(trace.x, trace.y, strict=True)) for trace in figures.memory_against_ranks(7e9).data}
    assert [round(lines[stage][8], 1) for stage in theory.STAGES] == [112.0, 63.0, 38.5, 14.0]


def test_the_slider_gives_the_seconds_of_each_bandwidth():
    figure = figures.traffic_against_bandwidth(1e9, 4, 0.5)
    step = next(step for step in figure.layout.sliders[0].steps if step.label == "1")
    computing, sending = step.args[0]["y"]
    assert list(computing) == [0.5] * 4
    assert list(sending) == pytest.approx([6.0, 6.0, 6.0, 9.0])
    assert "upper bound" in figures.traffic_against_bandwidth.__doc__


def test_one_rank_is_one():
    alone = [{**row, "world_size": 1} for row in ROWS]
    shown = [figures.stages(alone), figures.wall(world_size=1), figures.traffic_against_bandwidth(1e9, 1, 1.0)]
    shown += [figures.FlatPicture(torch.nn.Linear(2, 2), 1), figures.OwnersPicture([4], [0], 1)]
    assert all(re.search(r"\b1 (rank|GPU)\b", repr(figure)) for figure in shown)


def test_a_figure_is_the_same_text_every_time():
    first, second = (list(map(figures.html, every_figure())) for _ in range(2))
    assert first == second
    assert 'id="zerolab-memory"' in first[1]


def test_on_a_dark_page_a_figure_has_no_paper_of_its_own_and_its_title_the_pages_ink():
    for figure in every_figure():
        assert figure.layout.paper_bgcolor == figure.layout.plot_bgcolor == "rgba(0,0,0,0)"
        assert "color:var(--jp-content-font-color1" in figure.layout.title.text
        assert set(re.findall(r"#\w{6}", figure.layout.title.text)) == {chart.NEUTRAL}  # in a picture, without a page


def test_figures_and_player_share_their_colours():
    palette = (Path(zerolab.player.__file__).parent / "palette.js").read_text()
    light = re.search(r"CATEGORY_COLOURS = \{\s*light: \{(.*?)\}", palette, re.DOTALL)[1]
    for category in ("parameters", "gradients", "optimizer_state", "communication", "activations"):
        assert f'{category}: "{chart.COLOURS[category]}"' in light
    inks = re.search(r"INKS = \{\s*light: \{(.*?)\}", palette, re.DOTALL)[1]
    assert f'forward: "{chart.COLOURS["computing"]}"' in inks
    assert f'formula: "{chart.COLOURS["formula"]}"' in inks
    assert f' muted: "{chart.COLOURS["limit"]}"' in inks


def test_the_planner_is_drawn_with_the_line_of_the_memory_in_the_middle():
    plan = theory.plan("7b", 8, 80e9)
    figure = figures.plan(plan)
    bars = {trace.name: dict(zip(trace.x, trace.y, strict=True)) for trace in figure.data}
    for row in plan:
        held = sum(bars[part][row["stage"]] for part in map(chart.words, PARTS))
        assert held == pytest.approx(row["needs GB"])
        assert bars["communication"][row["stage"]] == row["communication_seconds"]
    usable = 80 - catalog.CONTEXT_BYTES / 1e9
    assert [shape.y0 for shape in figure.layout.shapes] == pytest.approx([usable])
    assert tuple(figure.layout.yaxis.range) == pytest.approx((0, 2 * usable))
    looks = [(trace.marker.color, trace.marker.pattern.shape) for trace in figure.data if trace.showlegend is not False]
    assert len(set(looks)) == len(looks) == len(PARTS)
    assert [note.text.split("<br>")[1] for note in figure.layout.annotations] == ["too much", "fits", "fits", "fits"]


def test_a_figures_text_is_its_caption():
    assert repr(figures.plan(theory.plan("7b", 8))).startswith(
        "figure: 7b on 8 h100, bf16, 84.94 GB each. Fits: zero1, "
    )
    assert repr(figures.memory_against_ranks(7e9)).endswith(
        "GB at N = 1,024: ddp 112, zero1 56.1, zero2 28.1, zero3 0.109."
    )


def shown(figure):
    """What a notebook would show of a figure, by kind."""
    return DisplayFormatter().format(figure)[0]


def test_a_figure_needs_no_network_to_be_shown(monkeypatch):
    monkeypatch.delenv("ZEROLAB_STATIC", raising=False)
    for figure in every_figure():
        assert set(shown(figure)) == {"text/plain", chart.PLOTLY}
        assert "cdn" not in json.dumps(shown(figure)[chart.PLOTLY], default=str)


def test_plotlys_buttons_leave_room_for_a_title_and_hide_nothing_behind_them():
    for figure in every_figure():
        assert figure.layout.modebar.bgcolor == chart.CLEAR
        assert {"zoom", "pan", "lasso"} <= set(figure.layout.modebar.remove)


def test_where_outputs_are_compared_a_figure_is_its_caption_alone(monkeypatch):
    monkeypatch.setenv("ZEROLAB_STATIC", "1")
    for figure in every_figure():
        assert shown(figure) == {"text/plain": repr(figure)}


@pytest.mark.browser
@pytest.mark.slow
@pytest.mark.usefixtures("browser")
def test_a_stored_figure_is_a_small_picture_of_it(monkeypatch):
    from PIL import Image
    from stills import figure_still

    monkeypatch.setenv("ZEROLAB_STATIC", "1")
    monkeypatch.setenv("ZEROLAB_STILLS", "1")
    for figure in every_figure()[2:]:  # the one with a slider, and the one of two parts
        png = figure_still(json.loads(json.dumps(shown(figure)[chart.PLOTLY])))
        assert len(png) <= 60_000
        picture = Image.open(io.BytesIO(png))
        assert picture.size == (chart.WIDTH, chart.HEIGHT)
        colours = {colour for _, colour in picture.convert("RGB").getcolors(100_000)}
        assert len(colours) > 20, "nothing was drawn"


# --- the planner's panel ---------------------------------------------------------------------------------------------


def test_the_panel_shows_what_fits_and_how_to_set_it():
    panel = what_fits("7b", 8)
    assert panel.answer.value == theory.plan("7b", 8).answer
    assert repr(panel) == f"planner: 7b on 8 h100, bf16, 84.94 GB each. {panel.answer.value}"
    assert panel.fsdp2.value == "FSDP2 has no zero1."
    assert json.loads(panel.deepspeed.value)["zero_optimization"]["stage"] == 1


def test_a_moved_slider_moves_bars_line_answer_and_settings():
    panel = what_fits("7b", 8)
    panel.memory.label = "16 GB card, 15.7 GiB"
    assert panel.bars.figure.layout.shapes[0].y0 == pytest.approx(15.2 * 2**30 / 1e9)
    assert panel.found.fitting == []
    assert "No: even zero3 needs" in panel.answer.value
    assert "nothing to set" in panel.deepspeed.value
    panel.world_size.value = 64
    assert panel.found.fitting == ["zero3"]
    assert "reshard_after_forward" in panel.fsdp2.value
    parts = panel.bars.figure.data[: len(PARTS)]
    assert sum(trace.y[3] for trace in parts) == pytest.approx(panel.found[3]["needs GB"])


def test_checkpointing_in_the_panel_needs_less_and_says_what_to_type():
    panel = what_fits("llama2-13b", 8)
    before = panel.found[3]["needs GB"]
    assert panel.lines.value == "Nothing is checkpointed."
    panel.checkpointing.value = "block"
    assert panel.found[3]["needs GB"] < before
    assert "use_reentrant=False" in panel.lines.value


@pytest.mark.parametrize("world_size", [8, 512])
def test_the_panel_begins_with_the_plan_of_the_gpus_own_link_and_the_network_between_nodes(world_size):
    found, plan = what_fits("7b", world_size).found, theory.plan("7b", world_size)
    assert (found.title, found.steps) == (plan.title, plan.steps)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"model": "7B"}, "unknown model '7B': did you mean '7b'"),
        ({"world_size": 3}, "world_size is 3, and its slider has powers of two up to 1024"),
        ({"rows": 0}, "rows is 0, and its slider has 1 to 32: theory.plan takes any number"),
        ({"rows": 100}, "rows is 100"),
    ],
)
def test_what_is_not_on_the_panels_sliders_is_refused(given, says):
    with pytest.raises(ValueError, match=says):
        what_fits(**given)


def test_a_faster_network_shortens_the_sending_alone():
    panel = what_fits("gpt2-xl", 8)
    panel.bandwidth.value = 450
    before = [panel.bars.figure.data[index].y for index in (-2, -1)]
    panel.bandwidth.value = 900
    computing, sending = (panel.bars.figure.data[index].y for index in (-2, -1))
    assert computing == before[0]
    assert sending == pytest.approx([seconds / 2 for seconds in before[1]])


def test_compiled_kernels_shorten_the_computing_alone_and_the_panel_says_what_the_seconds_owe_to_them():
    panel = what_fits("7b", 8)
    before = [panel.bars.figure.data[index].y for index in (-2, -1)]
    panel.kernels.value = "compiled"
    computing, sending = (panel.bars.figure.data[index].y for index in (-2, -1))
    assert all(after < earlier for after, earlier in zip(computing, before[0], strict=True))
    assert sending == before[1]
    assert panel.sensitivity.value == panel.found.sensitivity


def test_where_outputs_are_compared_the_panel_is_its_sentence(monkeypatch):
    monkeypatch.setenv("ZEROLAB_STATIC", "1")
    panel = what_fits("7b", 8)
    assert shown(panel) == {"text/plain": repr(panel)}


def test_wrong_use_is_told_in_words():
    with pytest.raises(ValueError, match="give the rows of compare"):
        figures.stages([])
    for seconds in (0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match=f"compute_seconds is {seconds}"):
            figures.traffic_against_bandwidth(1e9, 4, seconds)
    for count in (0, float("nan")):
        with pytest.raises(ValueError, match=f"the world size is {count}"):
            figures.wall(world_size=count)
    with pytest.raises(ValueError, match="there are no sizes"):
        figures.memory_against_ranks(1e9, sizes=())
    with pytest.raises(ValueError, match="world size is 0"):
        figures.memory_against_ranks(1e9, sizes=(0,))


@pytest.mark.slow
def test_explore_runs_and_keeps_the_run_before_beside_the_new_one():
    from zerolab.figures.explore import explore

    panel = explore()
    panel.world_size.value = 2
    panel.button.click()
    assert repr(panel) == "explore: 1 run", panel.said.value
    panel.stage.value = "ddp"
    panel.button.click()
    bars, player = panel.shown.children
    assert set(bars.figure.data[0].x) == {"run 1: zero3, 2 ranks", "run 2: ddp, 2 ranks"}
    assert "beside it" in repr(player)
    assert not panel.button.disabled
