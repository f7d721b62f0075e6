"""Room for what is told: nothing moves from beat to beat, and a step ends with all that happened in it."""

import pytest
from showing import in_order, state, until

pytestmark = pytest.mark.browser
PLAYER = "window.zerolabPlayers[0]"


@pytest.mark.parametrize("stage", ["zero3", "zero1", "ddp"])
@pytest.mark.parametrize(("width", "height"), [(700, 1220), (730, 1220), (900, 850), (390, 844)])
def test_nothing_moves_from_beat_to_beat_and_the_page_stays_as_high_as_the_window(
    recordings, show, stage, width, height
):
    tab = show(recordings[stage], story=True, width=width, height=height)
    first, last = state(tab)["beat"], state(tab)["beats"] - 1
    places, heights = set(), set()
    for _ in range(first, last + 1):
        places.add(tab.locator(".zl-now").evaluate("(now) => now.offsetTop"))
        heights.add(tab.evaluate("document.documentElement.scrollHeight"))
        tab.keyboard.press("ArrowRight")
    assert len(places) == len(heights) == 1
    if height == 1220:
        assert heights == {height}


@pytest.mark.parametrize("stage", ["zero1", "zero3", "ddp"])
def test_a_step_ends_with_its_last_event_whether_one_steps_or_plays_to_it(recordings, show, stage):
    events = in_order(recordings[stage])
    last = max(place for place, event in enumerate(events) if event.step == 2)
    tab = show(recordings[stage], story=True)
    tab.keyboard.press("End")
    now = state(tab)
    assert now["index"] >= last
    assert now["beat"] == now["beats"] - 1
    tab.keyboard.press("ArrowLeft")
    tab.evaluate(f"{PLAYER}.setSpeed(4)")
    tab.keyboard.press("Space")
    until(tab, f"{PLAYER}.state().beat === {now['beat']} && {PLAYER}.state().index >= {last}")


def test_the_step_before_another_ends_with_its_last_event_too(recording, show):
    events = in_order(recording)
    last = max(place for place, event in enumerate(events) if event.step == 1)
    tab = show(recording, story=True)
    tab.keyboard.press("ArrowLeft")
    now = state(tab)
    beats = tab.evaluate(f"{PLAYER}.beats.list.map(({{ step, t1 }}) => ({{ step, t1 }}))")
    assert beats[now["beat"]]["step"] == 1
    assert beats[now["beat"] + 1]["step"] == 2
    assert now["index"] >= last
