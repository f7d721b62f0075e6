"""The two clocks of a rank show when it computes, when it is blocked, and when it sends, as its recording has it."""

from itertools import pairwise

import pytest

from zerolab import Cluster, simulate
from zerolab.figures import two_clocks
from zerolab.player.strip import RANK_COLOURS


@pytest.fixture(scope="module")
def runs():
    found = {}
    for name, bandwidth in (("slow", 1.25e9), ("fast", 50e9)):
        found[name] = simulate("zero3", 16, "gpt2", precision="bf16", bandwidth=bandwidth).recordings["zero3"]
    return found


def lengths(trace):
    return sum(trace.x)


def test_computing_and_being_blocked_fill_the_step_and_blocked_is_what_the_cost_model_says(runs):
    for name, run in runs.items():
        computing, blocked, sending = two_clocks({name: run}).data
        costs = run.info.costs
        assert lengths(blocked) == pytest.approx(1e3 * costs["blocked_seconds"], rel=1e-3)
        assert lengths(computing) + lengths(blocked) == pytest.approx(1e3 * costs["seconds"], rel=0.01)
        ends = [(base, base + length) for base, length in zip(sending.base, sending.x, strict=True)]
        assert all(end <= start for (_, end), (start, _) in pairwise(ends))


def test_the_slider_shows_each_recording_on_one_axis(runs):
    figure = two_clocks(runs)
    steps = figure.layout.sliders[0].steps
    assert [step.label for step in steps] == ["slow", "fast"]
    slow, fast = (step.args[0] for step in steps)
    assert list(figure.data[1].x) == slow["x"][1]
    assert sum(map(sum, fast["x"][:2])) < sum(map(sum, slow["x"][:2])) < figure.layout.xaxis.range[1]
    assert {lane for lanes in fast["y"] for lane in lanes} == {"computing", "sending"}
    assert repr(figure).endswith("Blocked: slow 65.2 ms, fast 0.9 ms.")
    assert {trace.marker.color for trace in figure.data}.isdisjoint(RANK_COLOURS)


def test_nothing_to_draw_is_refused():
    with pytest.raises(ValueError, match="there is nothing to draw"):
        two_clocks({})
    with Cluster(world_size=2, device="cpu") as cluster:
        idle = cluster.record(lambda: None)
    with pytest.raises(ValueError, match="'idle' has no training step"):
        two_clocks({"idle": idle})
