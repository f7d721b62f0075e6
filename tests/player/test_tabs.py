"""Tests of the player share tabs: nothing that one test did in a tab is there for the next."""

import pytest
from showing import state
from tabs import Complaints

pytestmark = pytest.mark.browser
KEPT = """() => {
  const media = (query) => matchMedia(query).matches;
  return {
    size: [innerWidth, innerHeight, devicePixelRatio],
    media: ["print", "(prefers-color-scheme: dark)", "(prefers-reduced-motion: reduce)"].map(media),
    hovered: document.querySelectorAll(":hover").length,
    focus: document.activeElement.tagName,
    left: [window.left, CanvasRenderingContext2D.prototype.left, window.name, localStorage.left].map(String),
    hash: location.hash.includes("rank"),
    animations: document.getAnimations().length,
    scrolled: scrollY,
  };
}"""
LISTEN = """() => {
  window.heard = [];
  for (const kind of ["keydown", "keyup", "pointermove", "pointerdown", "pointerup", "click"])
    addEventListener(kind, (event) => window.heard.push([kind, event.shiftKey, event.buttons]), true);
}"""


@pytest.fixture
def every_tab(tabs):
    """All tabs that are free, so that a test can look at the very one that it gives back."""
    kept, tabs.free = tabs.free, []
    yield tabs
    tabs.free = kept


def use(tab, address):
    """What a test sees and hears of a player in this tab."""
    tab.goto(address)
    tab.evaluate(LISTEN)
    seen = tab.evaluate(KEPT), state(tab)
    tab.mouse.move(300, 300)
    tab.mouse.click(310, 310)
    tab.keyboard.press("ArrowRight")
    return seen, tab.evaluate("window.heard"), state(tab)


def leave_traces(tab, address):
    """Whatever a test may do, and nothing of it undone."""
    tab.goto(f"{address}&rank=1")
    tab.evaluate("window.left = CanvasRenderingContext2D.prototype.left = 'something'")
    tab.evaluate("window.name = localStorage.left = 'left'; scrollTo(0, 100); void (location.hash = '#rank=2')")
    tab.emulate_media(media="print", color_scheme="dark", reduced_motion="reduce")
    tab.set_viewport_size({"width": 400, "height": 500})
    tab.keyboard.press("Space")  # it plays
    tab.mouse.move(200, 200)
    tab.mouse.down()
    tab.mouse.move(210, 210)
    for key in ("Shift", "Control", "Alt", "Meta"):
        tab.keyboard.down(key)


def test_a_tab_that_was_used_is_like_one_that_is_new(every_tab, recording, written):
    address = f"{written(recording).as_uri()}#view=all&events"
    new = every_tab.take()
    expected = use(new, address)
    used = every_tab.take()
    assert used is not new
    leave_traces(used, address)
    every_tab.give_back(used)
    assert every_tab.take() is used
    assert use(used, address) == expected
    for tab in (new, used):
        tab.close()


def test_a_tab_that_was_given_back_plays_nothing_and_nobody_listens_to_it(every_tab, recording, written):
    tab, complaints = every_tab.take(), Complaints()
    complaints.listen(tab.on)
    tab.goto(f"{written(recording).as_uri()}#plays")
    tab.evaluate("console.info('heard')")
    complaints.listen(tab.remove_listener)
    every_tab.give_back(tab)
    assert tab.evaluate("window.zerolabPlayers") is None
    tab.evaluate("console.info('not heard')")
    assert complaints == ["info: heard"]
    tab.close()


def test_two_that_are_shown_at_once_have_a_tab_each(recording, show):
    one, other = show(recording, "#event=5"), show(recording, "#event=9")
    assert one is not other
    assert (state(one)["index"], state(other)["index"]) == (4, 8)
