"""What a player does with what is around it: a narrow window, paper, forced colours, less motion, no scripts."""

from contextlib import closing

import pytest
from showing import made_up, state, until

from zerolab.player.page import frame, page

pytestmark = pytest.mark.browser
PLAYER = "window.zerolabPlayers[0]"
PAPER = 718
"""Pixels across A4 at 96 an inch, between margins of a centimetre."""

BEYOND = """() => {
  const { left, right } = document.querySelector(".zl-player").getBoundingClientRect();
  return [...document.querySelectorAll(".zl-player :is(button, select, input, canvas)")]
    .filter((one) => one.checkVisibility())
    .map((one) => [one.title || one.className, one.getBoundingClientRect()])
    .filter(([, box]) => box.left < left - 1 || box.right > right + 1)
    .map(([name]) => name);
}"""


@pytest.fixture(scope="module")
def run():
    return made_up(4, 4, steps=2)


@pytest.mark.parametrize("width", [300, 330, 725, 800])
@pytest.mark.parametrize("view", ["story", "timeline"])
def test_no_control_lies_beside_the_player_in_a_narrow_window(run, show, width, view):
    assert show(run, f"#view={view}", width, story=True).evaluate(BEYOND) == []


def test_on_paper_it_is_light_as_wide_as_a_page_and_has_no_buttons(run, show):
    tab = show(run, "#view=all&theme=dark", story=True)
    tab.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    assert state(tab)["theme"] == "light"
    tab.set_viewport_size({"width": PAPER, "height": 1000})
    tab.emulate_media(media="print")
    assert tab.evaluate(BEYOND) == []
    assert tab.evaluate(f"{PLAYER}.root.offsetWidth") == PAPER
    assert tab.locator(".zl-player button:visible:not(.zl-toggle)").count() == 0
    assert tab.locator(".zl-toggle:visible").count() > 0  # the keys to the colours
    assert (
        tab.evaluate(f"(({{ clientHeight, scrollHeight }}) => scrollHeight - clientHeight)({PLAYER}.scene.body)") == 0
    )
    tab.emulate_media(media="null")
    tab.set_viewport_size({"width": 1280, "height": 800})
    tab.evaluate("window.dispatchEvent(new Event('afterprint'))")
    assert (state(tab)["theme"], tab.evaluate(f"{PLAYER}.width")) == ("dark", 1280)


@pytest.mark.parametrize("key", ["w", "?"])
def test_on_paper_neither_help_nor_the_walks_keys_lie_on_the_picture(run, show, key):
    tab = show(run, story=True)
    tab.keyboard.press(key)
    assert tab.locator(".zl-walk-keys:visible, .zl-help:visible").count() == 1
    tab.emulate_media(media="print")
    assert tab.locator(".zl-walk-keys:visible, .zl-help:visible").count() == 0


def test_on_paper_two_recordings_are_one_below_the_other_each_as_wide_as_the_page(run, show):
    tab = show(page(run, made_up(4, 4, steps=2)), width=1440, story=True)
    boxes = "[...document.querySelectorAll('.zl-player')].map((one) => one.getBoundingClientRect())"
    assert tab.evaluate(f"(([one, other]) => one.top === other.top)({boxes})")
    tab.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    assert tab.evaluate(f"(([one, other]) => one.bottom <= other.top && one.width === other.width)({boxes})")
    assert tab.evaluate("document.querySelector('.zl-first .zl-over').offsetWidth") > PAPER * 0.6
    tab.evaluate("window.dispatchEvent(new Event('afterprint'))")
    assert tab.evaluate(f"(([one, other]) => one.top === other.top)({boxes})")


@pytest.mark.parametrize("ranks", [4, 32])
@pytest.mark.parametrize("pair", [False, True])
def test_in_a_frame_which_cannot_grow_on_paper_all_of_it_is_printed_smaller(show, ranks, pair):
    runs = [made_up(ranks, 4, steps=2)] * (1 + pair)
    tab = show(f"<!doctype html>{frame(*runs, address='view=all')}", width=PAPER, story=True)
    inner = tab.frames[1]
    until(inner, "document.querySelector('.zl-player') !== null")
    inner.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    tab.emulate_media(media="print")
    bottom = inner.evaluate("window.zerolabPlayers.at(-1).root.getBoundingClientRect().bottom")
    height = inner.evaluate("window.innerHeight")
    assert 0.7 * height < bottom <= height
    tab.emulate_media(media="null")
    inner.evaluate("window.dispatchEvent(new Event('afterprint'))")
    assert inner.evaluate("document.body.currentCSSZoom") == 1


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_where_colours_are_forced_it_draws_in_its_own_with_the_strongest_contrast(run, browser, written, theme):
    with closing(browser.new_context(forced_colors="active", color_scheme="dark")) as context:
        tab = context.new_page()
        tab.goto(f"{written(run).as_uri()}#theme={theme}")
        shown = tab.evaluate("""() => {
          const style = (query) => getComputedStyle(document.querySelector(query));
          return { paper: style(".zl-player").backgroundColor, thumb: style(".zl-thumb").backgroundColor,
                   pressed: style(".zl-views [aria-pressed=true]").backgroundColor,
                   other: style(".zl-views [aria-pressed=false]").backgroundColor };
        }""")
        assert shown["paper"] == {"light": "rgb(255, 255, 255)", "dark": "rgb(0, 0, 0)"}[theme]
        assert shown["thumb"] != shown["paper"]
        assert shown["pressed"] != shown["other"]
        assert tab.evaluate(f"{PLAYER}.palette.contrast") is True


def test_less_motion_may_be_asked_for_at_any_time(run, show):
    tab = show(run, story=True)
    drawn = f"{PLAYER}.refresh(), {PLAYER}.frame.flights !== null"
    assert tab.evaluate(drawn)
    tab.emulate_media(reduced_motion="reduce")
    assert not tab.evaluate(drawn)


def test_a_page_without_scripts_says_what_it_is_and_what_it_needs(run, browser, written):
    with closing(browser.new_context(java_script_enabled=False, color_scheme="dark")) as context:
        tab = context.new_page()
        tab.goto(written(run).as_uri())
        said = tab.locator("noscript")
        assert said.inner_text().startswith("zerolab: zero3 on 4 ranks, simulated: 2 training steps")
        assert said.inner_text().endswith("it with JavaScript, which is switched off here: allow it to run.")
        assert said.evaluate("(one) => getComputedStyle(one).color") == "rgb(29, 36, 48)"


def test_a_frame_plays_in_a_page_that_does_not_say_how_it_is_encoded(run, show):
    tab = show(f"<!doctype html>{'<p>ASCII</p>' * 30_000}{frame(run)}", story=True)  # more than a browser guesses from
    tab.locator("iframe").scroll_into_view_if_needed()
    tab.frame_locator("iframe").locator(".zl-player canvas").first.wait_for()
