"""explore() answers at once with runs that were made beforehand, and a fresh run gives the same."""

import json
from collections import Counter

import pytest

from zerolab.figures import beforehand
from zerolab.figures.explore import explore

KEPT = 600_000  # bytes of all of them, for everybody who installs the package has them


def happened(recording):
    """What every rank did, without times; how long somebody waited differs from run to run, so waits are left out."""
    return Counter(
        (event.rank, event.step, event.phase, event.kind, event.op, event.unit, event.numel, event.logical_bytes)
        for rank in recording.ranks
        for event in rank.events
        if event.kind in ("module", "collective", "optimizer") or event.op == "hold"
    )


@pytest.mark.slow
@pytest.mark.parametrize("world_size", beforehand.WORLD_SIZES)
@pytest.mark.parametrize("stage", ["ddp", "zero1", "zero2", "zero3"])
def test_what_is_shipped_equals_a_fresh_run_in_bytes_events_and_losses(stage, world_size):
    kept, fresh = beforehand.shipped(stage, world_size), beforehand.measure(stage, world_size)
    assert happened(kept.recordings[stage]) == happened(fresh.recordings[stage])
    [mine], [its] = kept.rows, json.loads(json.dumps(fresh.rows))
    for row in (mine, its):
        row["traffic"].pop("wire_bytes")  # what a kernel puts around the messages
    assert mine.pop("losses") == pytest.approx(its.pop("losses"), rel=1e-5)  # another processor adds in another order
    assert mine == its


def test_all_that_is_shipped_for_the_panel_is_small():
    files = {path.name: path.stat().st_size for path in beforehand.FOLDER.iterdir()}
    assert set(files) == {f"{stage}-{world_size}.json.gz" for stage, world_size in beforehand.every()}
    assert sum(files.values()) <= KEPT


def test_the_panel_answers_before_any_rank_has_started_and_says_that_it_was_recorded():
    panel = explore()
    assert panel.said.value.startswith("Recorded beforehand on real ranks.")
    bars, player = panel.shown.children
    assert list(bars.figure.data[0].x) == ["ddp", "zero3"]
    assert player._recording.info.stage == "zero3"
    for stage in ("zero2", "zero1", "ddp"):
        panel.stage.value = stage
        assert panel.shown.children[1]._recording.info.stage == stage
    panel.world_size.value = 2
    assert panel.shown.children[1]._recording.world_size == 2
    assert not panel.runs


@pytest.mark.parametrize(("name", "value"), [("world_size", 3), ("precision", "bf16"), ("steps", 3)])
def test_what_was_not_recorded_beforehand_is_said_to_need_a_run(name, value):
    panel = explore()
    getattr(panel, name).value = value
    assert panel.said.value.startswith("Not recorded beforehand: press Run")
    assert not panel.shown.children


def test_an_option_that_is_off_needs_a_run_of_its_own():
    panel = explore()
    panel.options["prefetch"].value = False
    assert panel.said.value.startswith("Not recorded beforehand")
    panel.stage.value = "zero2"  # which has no such option
    assert panel.said.value.startswith("Recorded beforehand")
