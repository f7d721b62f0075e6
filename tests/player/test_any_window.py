"""In any window, with any number of ranks: the picture and its controls are in view together, and text can be read."""

import pytest
from showing import DRAWN, made_up, until

from zerolab.player import page

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


def test_the_times_below_memory_are_not_cut_in_half_for_want_of_a_few_pixels(recording, show):
    tab = show(recording, "#view=memory", width=1290, height=900, story=True)
    tab.evaluate(AS_IN_A_CELL)
    for view in ("memory", "timeline"):
        tab.evaluate(f"{PLAYER}.setView('{view}')")
        seen = tab.evaluate(BOXES)
        assert not seen["scrolls"]
        assert seen["height"] <= 620
        lines = tab.evaluate(f"[{PLAYER}.panes.ownership.named, {PLAYER}.panes.memories[0].rows.line >= 24]")
        assert lines == [True, True]  # nothing that is written there is lost
    tab.set_viewport_size({"width": 1290, "height": 700})
    tab.evaluate(f"{PLAYER}.setView('memory')")
    assert tab.evaluate(BOXES)["scrolls"]
    assert tab.evaluate(f"{PLAYER}.panes.memories[0].rows.line") == 32  # what scrolls all the same is not made smaller


LAB = 121
"""Pixels of a window that JupyterLab needs for itself: its menu, its tabs, its bars."""

PAIR_AS_IN_A_CELL = """() => {
  document.getElementById("zerolab-player").id = "cell";
  const { pair } = window.zerolabPlayers[0];
  pair.fills = false;
  pair.fit();
}"""

PAIR_BOXES = """() => {
  const one = (element) => { const { x, top, bottom } = element.getBoundingClientRect(); return { x, top, bottom }; };
  const all = (query) => [...document.querySelectorAll(query)].filter((each) => each.checkVisibility()).map(one);
  const [pair] = all(".zl-pair");
  const root = document.querySelector(".zl-pair");
  return { ...pair, banner: all(".zl-difference")[0], captions: all(".zl-caption"), controls: all(".zl-transport")[0],
           bodies: all(".zl-body"), rows: all(".zl-ownership canvas:first-child"),
           buttons: all(".zl-first .zl-head button:not([data-view=source])"), keys: all(".zl-bars .zl-legend"),
           scrolls: root.scrollHeight - root.clientHeight,
           tops: [...document.querySelectorAll(".zl-body")].map((body) => body.scrollTop) };
}"""


@pytest.mark.parametrize("cell", [False, True])
@pytest.mark.parametrize(("width", "height"), [(1440, 900), (1280, 768), (1024, 768)])
def test_of_two_recordings_sentences_and_controls_are_in_view_together(recordings, show, width, height, cell):
    tab = show(page(recordings["ddp"], recordings["zero1"]), width=width, height=height, story=True)
    if cell:
        tab.evaluate(PAIR_AS_IN_A_CELL)
    for view in "1235":
        tab.keyboard.press(view)
        tab.evaluate(DRAWN)
        seen = tab.evaluate(PAIR_BOXES)
        bottom = height - LAB if cell else height
        assert seen["scrolls"] == 0
        assert tab.evaluate("document.documentElement.scrollHeight") == height
        for one in (seen, seen["banner"], seen["controls"], *seen["captions"]):
            assert 0 <= one["top"] < one["bottom"] <= bottom
        assert seen["rows"][0]["top"] == pytest.approx(seen["rows"][1]["top"], abs=0.5)
        for body in seen["bodies"]:
            assert body["bottom"] <= seen["controls"]["top"] + 1
            assert body["bottom"] - body["top"] >= LEAST_PICTURE
        # Nothing takes room that it does not need: the buttons one line, the key to the bars two or three.
        assert len({button["top"] for button in seen["buttons"]}) == 1
        assert all(key["bottom"] - key["top"] <= 70 for key in seen["keys"])


def test_two_recordings_take_the_height_that_a_window_has_and_show_first_what_was_asked_for(recordings, show):
    tab = show(page(recordings["zero1"], recordings["zero3"]), width=1280, height=900, story=True)
    lines = []
    for height in (900, 700, 900):
        tab.set_viewport_size({"width": 1280, "height": height})
        # Both, or it is the picture of before, which is too small for the window or scrolls.
        until(tab, f"((bottom) => bottom <= {height} && bottom > {height - 50})(({PAIR_BOXES})().controls.bottom)")
        until(tab, "[...document.querySelectorAll('.zl-body')].every((one) => one.scrollHeight <= one.clientHeight)")
        lines.append(tab.evaluate("window.zerolabPlayers.map(({ panes }) => panes.ownership.rows.line)"))
    assert lines[0] == lines[2] > lines[1]
    assert all(len(set(line)) == 1 for line in lines)
    for view in ("timeline", "memory"):
        tab.get_by_role("button", name=view.title(), exact=True).click()
        tops = [tab.locator(f".zl-first .zl-{name} canvas").first.bounding_box()["y"] for name in (view, "ownership")]
        assert tops[0] < tops[1]


def test_two_pictures_that_are_too_high_scroll_as_one(recordings, show):
    tab = show(page(recordings["zero3"], recordings["ddp"]), "#view=all", width=1280, height=720, story=True)
    for leads in (0, 1):
        before = tab.evaluate(PAIR_BOXES)
        tab.locator(".zl-body").nth(leads).focus()
        tab.keyboard.press("PageDown" if leads == 0 else "PageUp")
        until(tab, f"((tops) => tops[0] === tops[1] && tops[0] !== {before['tops'][0]})(({PAIR_BOXES})().tops)")
        after = tab.evaluate(PAIR_BOXES)
        assert after["rows"][0]["top"] == pytest.approx(after["rows"][1]["top"], abs=0.5)
        assert after["controls"] == before["controls"]


@pytest.mark.parametrize(("width", "height"), [(700, 768), (390, 844)])
def test_of_two_recordings_below_each_other_the_controls_stay_in_view(recordings, show, width, height):
    tab = show(page(recordings["zero1"], recordings["zero3"]), width=width, height=height, story=True)
    for share in (0, 1):
        tab.locator(".zl-pair").evaluate(f"(pair) => {{ pair.scrollTop = {share} * 9999; }}")
        tab.evaluate(DRAWN)
        seen = tab.evaluate(PAIR_BOXES)
        assert seen["bottom"] <= height
        assert 0 <= seen["controls"]["top"] < seen["controls"]["bottom"] <= height
        assert 0 <= seen["captions"][share]["top"] < seen["captions"][share]["bottom"] <= height
    assert tab.evaluate("document.documentElement.scrollHeight") == height


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
