"""By keyboard alone: the focus is never lost, and what a button says is what it does."""

import pytest
from showing import notebook, state

pytestmark = pytest.mark.browser
PLAYER = "window.zerolabPlayers[0]"
LOST = "document.activeElement === document.body || document.activeElement.getClientRects().length === 0"


@pytest.fixture
def cell(tabs, recording):
    """A notebook's tab with a player, whose keys reach it only while it has the focus."""
    tab = tabs.take()
    notebook(tab, recording)
    tab.evaluate("window.open_view()")
    yield tab
    tabs.give_back(tab)


@pytest.mark.parametrize(
    ("before", "focused", "keys"),
    [
        ("walk.show(1)", "Previous chapter (←)", ["Enter"]),
        ("walk.show(1)", "End the walk (escape)", ["Enter"]),
        ("(player.setView('all'), player.zoom.by(0.5))", "No zoom (0)", ["Enter"]),
        ("setView('timeline')", "Measure a stretch of time (m)", ["1"]),
        ("setView('memory')", "Only what the formula counts (s)", ["4"]),
        ("setView('story')", "Only what the formula counts (s)", ["w"]),
        ("setView('story')", "Only what the formula counts (s)", ["t"]),
        ("setView('story')", "Only what the formula counts (s)", ["e"]),
    ],
)
def test_what_takes_a_button_away_leaves_the_focus_in_the_player(cell, before, focused, keys):
    cell.evaluate(f"(() => {{ const player = {PLAYER}; {before if before[0] == '(' else f'player.{before}'}; }})()")
    button = cell.locator(f'.zl-player button[title="{focused}"]:visible').first
    button.focus()
    for key in keys:
        cell.keyboard.press(key)
    cell.wait_for_timeout(50)  # Chromium notices with the next frame
    assert not cell.evaluate(LOST)
    assert cell.evaluate(f"{PLAYER}.root.contains(document.activeElement)")
    cell.keyboard.press("5")
    assert state(cell)["shown"] == "all", "its keys still work"


@pytest.mark.parametrize("key", ["Escape", "?"])
def test_the_list_of_keys_gives_the_focus_back_to_its_button(cell, key):
    cell.locator(".zl-play").focus()
    cell.keyboard.press("?")
    cell.locator(".zl-help").focus()
    cell.keyboard.press(key)
    assert not cell.locator(".zl-help").is_visible()
    assert cell.evaluate("document.activeElement.title").startswith("How to read this")


def phases(tab, direction, times):
    told = []
    for _ in range(times):
        tab.get_by_role("button", name=f"{direction} phase").click()
        told.append((tab.locator(".zl-where").inner_text(), state(tab)["beat"]))
    return told


@pytest.mark.parametrize("stage", ["zero3", "zero1"])
def test_by_beats_the_phase_that_is_told_is_the_one_that_the_buttons_lead_to(recordings, show, stage):
    tab = show(recordings[stage], story=True)
    start = state(tab)["beat"]
    assert tab.locator(".zl-where").inner_text() == "step 2 · forward"
    there = phases(tab, "Next", 2)
    assert [place for place, _ in there] == ["step 2 · backward", "step 2 · update"]
    tab.keyboard.press("ArrowRight" if stage == "zero1" else "ArrowLeft")
    back = phases(tab, "Previous", 4 if stage == "zero1" else 3)
    names = [place for place, _ in back]
    assert names[-3:] == ["step 2 · backward", "step 2 · forward", "step 1 · update"]
    assert back[-2][1] == start
    first = [beat for _, beat in back]
    assert first == sorted(first, reverse=True)
