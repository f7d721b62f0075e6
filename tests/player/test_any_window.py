"""In any window, with any number of ranks: the picture and its controls are in view together, and text can be read."""

import pytest
from showing import made_up, until

pytestmark = pytest.mark.browser
PLAYER = "window.zerolabPlayers[0]"
RANKS = (1, 4, 8, 16, 64, 256, 1024)
WINDOWS = [(1440, 900), (1280, 720), (1024, 768), (390, 844), (700, 1220)]
CELLS = [(1440, 900), (1280, 720)]
LEAST_PICTURE = 200
"""Pixels of the picture that are seen at once, at least, where it is higher."""
LEAST_TEXT = 12

BOXES = """() => {
  const box = (query) => document.querySelector(query).getBoundingClientRect();
  const [player, play, body, picture] = [".zl-player", ".zl-play", ".zl-body", ".zl-ownership .zl-layers"].map(box);
  return { height: player.height, play: play.bottom, top: body.top, bottom: body.bottom, picture: picture.top,
           end: picture.bottom, scrolls: document.querySelector(".zl-body").tabIndex === 0 };
}"""

AS_IN_A_CELL = """() => {
  document.getElementById("zerolab-player").id = "cell";
  const player = window.zerolabPlayers[0];
  player.options.fill = false;
  player.redraw();
}"""

NOTE_FONTS = """() => {
  const { prototype } = CanvasRenderingContext2D;
  const write = prototype.fillText;
  window.fonts = [];
  prototype.fillText = function (text, ...more) {
    window.fonts.push([parseFloat(this.font.match(/([\\d.]+)px/)[1]), text]);
    return write.call(this, text, ...more);
  };
}"""

TEXTS = """() => [...document.querySelectorAll(".zl-player *")]
  .filter((one) => [...one.childNodes].some((node) => node.nodeType === 3 && node.data.trim()))
  .filter((one) => one.checkVisibility())
  .map((one) => [parseFloat(getComputedStyle(one).fontSize), one.textContent.trim()])"""


@pytest.fixture(scope="module")
def runs():
    return {ranks: made_up(ranks, 2 if ranks > 64 else 4) for ranks in RANKS}


@pytest.mark.parametrize("ranks", RANKS)
def test_play_and_the_picture_are_in_view_together(runs, show, ranks):
    tab = show(runs[ranks], story=True)
    for width, height in WINDOWS:
        tab.set_viewport_size({"width": width, "height": height})
        tab.evaluate(f"{PLAYER}.redraw()")
        seen = tab.evaluate(BOXES)
        in_view(seen, height)
        assert tab.evaluate("document.documentElement.scrollHeight") == height
    tab.evaluate(AS_IN_A_CELL)
    for width, height in CELLS:
        tab.set_viewport_size({"width": width, "height": height})
        tab.evaluate(f"{PLAYER}.redraw()")
        seen = tab.evaluate(BOXES)
        assert seen["height"] <= max(460, height - 280)
        in_view(seen, seen["height"])


def in_view(seen, bottom):
    """Play above a height, and above it all of the picture."""
    assert seen["play"] <= bottom
    assert seen["picture"] >= seen["top"]
    assert min(seen["end"], seen["bottom"]) - seen["picture"] >= min(seen["end"] - seen["picture"], LEAST_PICTURE)
    assert seen["end"] <= seen["bottom"]


def test_what_does_not_fit_scrolls_inside_and_by_keyboard(runs, show):
    tab = show(runs[8], "#view=all", width=1280, height=720, story=True)
    before = tab.evaluate(BOXES)
    assert before["scrolls"]
    tab.locator(".zl-body").focus()
    tab.keyboard.press("PageDown")
    until(tab, f"({BOXES})().picture < {before['picture']}")
    after = tab.evaluate(BOXES)
    assert after["picture"] < before["picture"]
    assert after["play"] == before["play"]
    assert not show(runs[4], width=1280, height=720, story=True).evaluate(BOXES)["scrolls"]


@pytest.mark.parametrize("size", [(1280, 900), (390, 844)])
def test_no_text_is_smaller_than_12_pixels(recording, show, size):
    tab = show(recording, width=size[0], height=size[1])
    tab.evaluate(NOTE_FONTS)
    events = tab.evaluate(f"{PLAYER}.model.count")
    seen = []
    for view in ("story", "timeline", "memory", "source", "all"):
        tab.evaluate(f"{PLAYER}.setView('{view}')")
        for by_events in ("true", "false"):
            tab.evaluate(f"{PLAYER}.tellEvents({by_events})")
            for event in range(0, events, events // 12):
                tab.evaluate(f"{PLAYER}.goto({event})")
        seen += tab.evaluate(TEXTS)
    tab.keyboard.press("?")
    seen += tab.evaluate(TEXTS)
    tab.keyboard.press("f")
    seen += tab.evaluate(TEXTS)
    drawn = tab.evaluate("window.fonts")
    said = {text for _, text in drawn}
    assert {"rank 0", "0"} <= said
    assert size[0] < 480 or "formula 849 kB" in said, "the margin has room for it"
    assert [one for one in seen + drawn if one[0] < LEAST_TEXT] == []
