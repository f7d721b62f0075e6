"""For whoever reads with large letters, on a phone, by keyboard or from right to left: all is seen, and all reached."""

import pytest
from showing import DRAWN, changed, made_up, notebook, state, until

from zerolab.player import page

pytestmark = pytest.mark.browser
PLAYER = "window.zerolabPlayers[0]"
LEAST_PICTURE = 160
"""Pixels of the picture that are seen at once where almost no room is left for it."""
LEAST_TARGET = 24
"""Pixels across a circle about a target in which lies no other one, nor its circle: WCAG 2.2, 2.5.8."""

CROWDED = """(least) => {
  const seen = [...document.querySelectorAll(".zl-player :is(button, select, input)")].filter((one) =>
    one.checkVisibility({ visibilityProperty: true }));
  const boxes = seen.map((one) => one.getBoundingClientRect());
  const small = boxes.map(({ width, height }) => Math.min(width, height) < least);
  const middle = ({ x, y, width, height }) => [x + width / 2, y + height / 2];
  const far = (at, { left, right, top, bottom }) =>
    Math.hypot(Math.max(left - at[0], 0, at[0] - right), Math.max(top - at[1], 0, at[1] - bottom));
  const between = (a, b) => Math.hypot(a[0] - b[0], a[1] - b[1]);
  return seen.filter((_, k) => small[k] && boxes.some((other, m) => m !== k &&
    (far(middle(boxes[k]), other) < least / 2 || (small[m] && between(middle(boxes[k]), middle(other)) < least))))
    .map((one) => one.title);
}"""

# What has the focus and is covered by something else where its middle is.
COVERED = """() => {
  const one = document.activeElement;
  const { x, y, width, height } = one.getBoundingClientRect();
  const top = document.elementFromPoint(x + width / 2, Math.min(innerHeight - 1, y + height / 2));
  return one === document.body || one.contains(top) || top?.contains(one) ? null : `${one.title} by ${top?.className}`;
}"""


@pytest.mark.parametrize("size", [(320, 256), (320, 640), (360, 640), (480, 320)])
def test_however_little_room_there_is_some_of_the_picture_is_seen_in_the_walk_too(recording, show, size):
    tab = show(recording, width=size[0], height=size[1], story=True)
    for shown in ("setView('all')", "setView('story')", "walk.show(3, false)"):
        tab.evaluate(f"{PLAYER}.{shown}")
        tab.evaluate(DRAWN)
        assert tab.locator(".zl-body").evaluate("(body) => body.clientHeight") >= LEAST_PICTURE
        controls = tab.locator(".zl-transport").bounding_box()
        assert controls["y"] + controls["height"] <= tab.evaluate("document.documentElement.scrollHeight")
    assert tab.evaluate("document.documentElement.scrollWidth") == size[0]


@pytest.mark.parametrize("size", [(320, 640), (390, 844), (600, 500)])
def test_in_a_narrow_notebook_nothing_of_the_player_lies_over_the_next_cell(tabs, recording, size):
    tab = tabs.take(*size)
    notebook(tab, recording)
    tab.evaluate("window.open_view()")
    for shown in ("setView('all')", "setView('story')", "walk.show(2, false)"):
        tab.evaluate(f"{PLAYER}.{shown}")
        tab.evaluate(DRAWN)
        assert tab.locator(".zl-body").evaluate("(body) => body.clientHeight") >= LEAST_PICTURE
        ends = [tab.locator(f".zl-player{part}").bounding_box() for part in (" .zl-transport", "")]
        assert ends[0]["y"] + ends[0]["height"] <= ends[1]["y"] + ends[1]["height"]
    tabs.give_back(tab)


@pytest.mark.parametrize("size", [(320, 640), (390, 844), (1280, 800)])
@pytest.mark.parametrize(("title", "panel"), [("How to read this", ".zl-help"), ("Show only", ".zl-filter")])
def test_what_opens_over_the_picture_can_be_closed_without_a_keyboard(recordings, show, size, title, panel):
    tab = show(page(recordings["zero3"], recordings["ddp"]), width=size[0], height=size[1], story=True)
    opens = tab.locator(f'.zl-first button[title^="{title}"]')
    opens.click()
    tab.locator(f".zl-first {panel} button", has_text="✕").click()
    assert not tab.locator(f".zl-first {panel}").is_visible()
    opens.click()
    assert tab.locator(f".zl-first {panel}").is_visible()
    heading = tab.locator(f".zl-first {panel} h3").first.bounding_box()
    assert heading["y"] < tab.locator(f".zl-first {panel}").bounding_box()["y"] + 24
    tab.locator(f".zl-first {panel}").evaluate("(one) => one.scrollTo(0, one.scrollHeight)")
    over, close = (tab.locator(f".zl-first {part}").bounding_box() for part in (panel, f"{panel} .zl-close"))
    assert over["y"] <= close["y"] < over["y"] + 24
    assert over["x"] + over["width"] - 24 < close["x"] + close["width"] <= over["x"] + over["width"]


@pytest.mark.parametrize("width", [320, 390, 1280])
def test_what_another_tools_files_lack_is_read_within_the_window_and_closed_by_escape(show, width):
    lacks = ["who owns which part of the parameters, so the picture shows none of it", "the sizes of messages"]
    tab = show(changed(made_up(4, 4), lacks=lacks), width=width, height=800, story=True)
    tab.locator(".zl-lacks summary").click()
    box = tab.locator(".zl-lacks ul").bounding_box()
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= width
    assert tab.evaluate("document.documentElement.scrollWidth") == width
    tab.keyboard.press("Escape")
    assert not tab.locator(".zl-lacks ul").is_visible()


def test_escape_takes_the_words_at_the_pointer_away(recordings, show):
    for what in (recordings["zero3"], page(recordings["zero3"], recordings["ddp"])):
        tab = show(what)
        tab.locator(".zl-timeline .zl-layers").last.hover(position={"x": 400, "y": 8})
        until(tab, "[...document.querySelectorAll('.zl-tip')].some((one) => one.checkVisibility())")
        tab.keyboard.press("Escape")
        assert not tab.locator(".zl-tip").last.is_visible()
        assert tab.evaluate("window.zerolabPlayers.every(({ hovered }) => hovered === null)")


@pytest.mark.parametrize("size", [(320, 256), (480, 320)])
def test_in_a_low_window_the_controls_of_two_recordings_cover_nothing_that_has_the_focus(recordings, show, size):
    tab = show(page(recordings["zero3"], recordings["ddp"]), width=size[0], height=size[1], story=True)
    for way in ("Tab", "Shift+Tab"):
        covered = []
        for _ in range(40):
            tab.keyboard.press(way)
            covered.append(tab.evaluate(COVERED))
        assert [one for one in covered if one] == []


def test_a_button_is_called_what_is_written_on_it(recording, show):
    tab = show(recording, "#walk=3", story=True)
    named = "[...document.querySelectorAll('.zl-player button')].map((one) => [one.textContent, one.ariaLabel])"
    words = [(text, name) for text, name in tab.evaluate(named) if name and text.isalpha()]
    assert [(text, name) for text, name in words if text.lower() not in name.lower()] == []


@pytest.mark.parametrize("width", [390, 1280])
def test_no_target_is_so_small_and_so_close_to_another_that_a_finger_hits_both(recordings, show, width):
    for what in (recordings["zero3"], page(recordings["zero3"], recordings["ddp"])):
        tab = show(what, width=width, height=900)
        for view in "1235":
            tab.keyboard.press(view)
            tab.evaluate(DRAWN)
            assert tab.evaluate(CROWDED, LEAST_TARGET) == []


def test_from_right_to_left_and_with_letters_far_apart_the_picture_is_the_same(tabs, recording):
    tab = tabs.take(1280, 800)
    notebook(tab, recording)
    tab.evaluate("window.open_view()")
    tab.evaluate(f"{PLAYER}.setView('all')")
    pictures = "[...document.querySelectorAll('canvas')].map((one) => one.toDataURL())"
    drawn = f"({PLAYER}.redraw(), {pictures})"
    before, picture = tab.evaluate(drawn), tab.locator(".zl-player").screenshot()
    tab.evaluate("document.documentElement.dir = 'rtl'")
    assert tab.evaluate(drawn) == before
    assert tab.locator(".zl-player").screenshot() == picture
    tab.evaluate("document.documentElement.dir = ''")
    tab.add_style_tag(content="* { letter-spacing: 0.12em !important; word-spacing: 0.16em !important }")
    assert tab.evaluate(drawn) == before
    tabs.give_back(tab)


@pytest.mark.parametrize("width", [1001, 1024, 1280])
def test_what_two_recordings_hold_differently_is_said_to_its_end_and_nothing_moves(recordings, show, width):
    tab = show(page(recordings["zero3"], recordings["ddp"]), width=width, height=800, story=True)
    tab.keyboard.press("Home")
    tops = set()
    for _ in range(state(tab)["beats"]):
        moment = tab.locator(".zl-moment")
        assert moment.evaluate("(one) => one.scrollWidth <= one.clientWidth"), moment.inner_text()
        tops.add(tab.locator(".zl-first .zl-head").evaluate("(one) => one.getBoundingClientRect().top"))
        tab.keyboard.press("ArrowRight")
    assert len(tops) == 1


@pytest.mark.parametrize("size", [(1440, 810), (1920, 1200), (1024, 768)])
def test_two_recordings_fill_a_slide_and_everything_on_it_is_seen(recordings, show, size):
    tab = show(page(recordings["zero3"], recordings["ddp"]), "#slides", width=size[0], height=size[1], story=True)
    box = tab.locator(".zl-pair").bounding_box()
    assert box["height"] > 0.9 * min(size[1], size[0] * 9 / 16)
    assert box["y"] >= -1
    assert box["y"] + box["height"] <= size[1] + 1
    beyond = "(all) => all.map((one) => one.scrollHeight - one.clientHeight)"
    assert tab.locator(".zl-body").evaluate_all(beyond) == [0, 0]


@pytest.mark.parametrize("width", [820, 1000])
def test_the_key_to_memory_costs_two_recordings_one_above_the_other_no_picture(recordings, show, width):
    tab = show(page(recordings["zero3"], recordings["ddp"]), width=width, height=1180, story=True)
    beyond = "(all) => all.map((one) => one.scrollHeight - one.clientHeight)"
    assert tab.locator(".zl-body").evaluate_all(beyond) == [0, 0]


def test_in_a_still_which_nobody_presses_the_key_to_memory_has_no_gaps(recording, show):
    for still, gap in (("&still", "0px"), ("", "7px")):
        legend = show(recording, f"#view=story{still}", story=True).locator(".zl-bars .zl-legend")
        assert legend.evaluate("(one) => getComputedStyle(one).rowGap") == gap


def test_on_paper_no_page_ends_between_a_sentence_and_its_picture(recordings, show):
    tab = show(page(recordings["zero3"], recordings["ddp"]), "#view=memory", story=True)
    tab.emulate_media(media="print")
    for part in (".zl-head", ".zl-caption"):
        ends = tab.locator(part).evaluate_all("(all) => all.map((one) => getComputedStyle(one).breakAfter)")
        assert ends == ["avoid", "avoid"]
    tab.emulate_media(media="screen")
