"""explore(): what is chosen is what the engines get, and what goes wrong is said in the panel."""

import pytest

from zerolab.figures.explore import OPTIONS, explore


def gathers(run):
    """How often rank 0 gathers in the last step."""
    events = run.recordings["zero3"].ranks[0].events
    return sum(e.op == "all_gather" and e.kind == "collective" and e.step == 2 for e in events)


def test_only_the_options_of_the_chosen_stage_can_be_changed():
    panel = explore()
    assert [box.disabled for box in panel.options.values()] == [False, False, False]
    panel.stage.value = "zero1"
    assert {name for name, box in panel.options.items() if not box.disabled} == {"overlap"}
    assert set(panel.options) == set(OPTIONS)


@pytest.mark.slow
def test_options_reach_the_engine_and_progress_is_told():
    panel = explore()
    panel.world_size.value = 2
    told = []
    panel.said.observe(lambda change: told.append(change["new"]), "value")
    panel.button.click()
    panel.options["release_after_forward"].value = False
    panel.button.click()
    released, kept = panel.runs
    assert gathers(released) > gathers(kept), "what was not released need not be gathered again"
    assert told[0] == "starting 2 ranks ..."
    assert told[1].startswith("training zero3: 2 steps on 2 ranks")
    assert panel.progress.value == panel.progress.max


def test_what_cannot_run_is_said_in_the_panel():
    panel = explore()
    panel.model.options = ["no-such-model"]
    panel.button.click()
    assert "no-such-model" in panel.said.value
    assert not panel.runs
    assert not panel.button.disabled
