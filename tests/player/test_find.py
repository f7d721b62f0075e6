"""The timeline's tools: events found by words, a stretch of time measured, by keyboard and by pointer."""

import pytest
from showing import state

pytestmark = pytest.mark.browser


def test_slash_finds_events_by_all_words_and_enter_goes_through_them(recording, show):
    tab = show(recording)
    tab.locator(".zl-player").focus()
    tab.keyboard.press("/")
    tab.keyboard.type("blocks.2 collective reduce_scatter")
    tab.keyboard.press("Enter")
    shown = state(tab)
    assert shown["event"]["op"] == "reduce_scatter"
    assert shown["event"]["unit"] == "blocks.2"
    count, first = shown["found"]["matches"], shown["found"]["place"]
    assert tab.locator(".zl-found").inner_text() == f"{first} of {count}"
    tab.keyboard.press("Enter")
    assert state(tab)["found"]["place"] == first % count + 1
    tab.keyboard.press("Shift+Enter")
    assert state(tab)["found"]["place"] == first
    tab.keyboard.press("Escape")
    tab.keyboard.press("ArrowRight")
    assert state(tab)["index"] == shown["index"] + 1


def test_words_that_nothing_has_are_said_to_match_nothing(recording, show):
    tab = show(recording)
    before = state(tab)["index"]
    tab.locator(".zl-tools input").fill("blocks.99 reduce")
    tab.locator(".zl-tools input").press("Enter")
    assert tab.locator(".zl-found").inner_text() == "no match"
    assert state(tab)["index"] == before


def test_a_drag_over_the_timeline_says_the_sums_of_its_stretch(recording, show):
    tab = show(recording)
    tab.get_by_role("button", name="Measure a stretch of time").click()
    box = tab.locator(".zl-timeline .zl-layers").bounding_box()
    tab.mouse.move(box["x"] + 300, box["y"] + 30)
    tab.mouse.down()
    tab.mouse.move(box["x"] + 600, box["y"] + 30, steps=5)
    tab.mouse.up()
    measured = state(tab)["measured"]
    view = state(tab)["view"]
    assert 0.2 < (measured["t1"] - measured["t0"]) / (view[1] - view[0]) < 0.4
    said = tab.locator(".zl-sums").inner_text()
    assert said == measured["text"]
    assert "4 ranks" in said
    tab.locator(".zl-player").focus()
    tab.keyboard.press("m")
    assert state(tab)["measured"] is None
    assert tab.locator(".zl-sums").is_hidden()


def test_by_keyboard_a_stretch_goes_from_the_mark_to_the_cursor(recording, show):
    tab = show(recording, "#event=700")
    tab.locator(".zl-player").focus()
    tab.keyboard.press("m")
    begun = state(tab)["time"]
    for _ in range(5):
        tab.keyboard.press("ArrowRight")
    measured = state(tab)["measured"]
    assert (measured["t0"], measured["t1"]) == (begun, state(tab)["time"])


def test_lines_lead_from_each_send_to_its_receive_for_the_current_collective(recording, show):
    tab = show(recording)
    drawn = """() => {
        const [player] = window.zerolabPlayers, { over } = player.panes.timeline, lines = [], line = over.line;
        over.line = (...given) => { lines.push(given); line.apply(over, given); };
        const gather = player.events.find((e) => e.op === "all_gather" && e.parent === null && e.step === 2);
        player.goto(gather.index);
        over.line = line;
        return new Set(lines.filter(([x0, y0, x1, y1]) => y0 !== y1 && x0 < x1).map(String)).size;
    }"""
    assert tab.evaluate(drawn) == 24, "twelve messages among four ranks, each on an edge of paper"
