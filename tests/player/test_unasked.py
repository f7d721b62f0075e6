"""The player that plays by itself: once, when it is seen, until the first touch; never where motion is not wanted."""

import pytest
from showing import state, until

from zerolab.player import page

pytestmark = pytest.mark.browser
PLAYER = "window.zerolabPlayers[0]"
PLAYING = f"{PLAYER}.state().playing"


def test_it_plays_when_it_is_seen_and_stops_at_the_end_of_the_step(recording, show):
    tab = show(page(recording), "#plays", story=True)
    until(tab, PLAYING)
    tab.evaluate(f"""(() => {{ const p = {PLAYER}; const last = p.beats.list.length - 1;
        p.showTime(p.beats.list[last].t1 - 1e5); }})()""")
    until(tab, f"!{PLAYING}")
    tab.wait_for_timeout(300)
    assert not state(tab)["playing"]
    assert state(tab)["beat"] == state(tab)["beats"] - 1
    tab.keyboard.press("Space")  # asked for, it goes on and on
    until(tab, f"{PLAYER}.state().beat < {PLAYER}.state().beats - 1")
    assert state(tab)["playing"]


def test_in_a_frame_it_waits_until_it_is_scrolled_to(recording, show, tmp_path):
    (tmp_path / "player.html").write_text(page(recording), encoding="utf-8")
    frame = '<iframe src="player.html#plays" sandbox="allow-scripts" style="width:100%;height:850px"></iframe>'
    tab = show(f"<!doctype html><title>a page</title><div style='height:1800px'></div>{frame}", story=True)
    inner = tab.frames[1]
    inner.locator(".zl-player").wait_for()
    tab.wait_for_timeout(400)
    assert not inner.evaluate(PLAYING)
    tab.evaluate("window.scrollTo(0, 1700)")
    until(inner, PLAYING)


@pytest.mark.parametrize("touch", ["pointer", "wheel", "key"])
def test_the_first_touch_stops_it(recording, show, touch):
    tab = show(recording, "#plays", story=True)
    until(tab, PLAYING)
    tab.locator(".zl-ownership canvas").first.hover()
    {"pointer": tab.mouse.down, "wheel": lambda: tab.mouse.wheel(0, 5), "key": lambda: tab.keyboard.press("Tab")}[
        touch
    ]()
    until(tab, f"!{PLAYING}")


def test_the_play_button_and_its_key_pause_it_once(recording, show):
    for act in (lambda tab: tab.locator(".zl-play").click(), lambda tab: tab.keyboard.press("Space")):
        tab = show(recording, "#plays", story=True)
        until(tab, PLAYING)
        act(tab)
        until(tab, f"!{PLAYING}")
        act(tab)
        until(tab, PLAYING)


def test_it_never_plays_unasked_where_less_motion_is_wanted_nor_on_a_page_of_its_own(recording, show):
    for address, motion in (("#plays", "reduce"), ("", "no-preference")):
        tab = show(recording, address, story=True, motion=motion)
        tab.wait_for_timeout(400)
        assert not state(tab)["playing"]
