"""A notebook that is loaded again opens its players where they were left, and several do not disturb each other."""

import pytest
from showing import made_up, notebook, until

pytestmark = pytest.mark.browser
OPEN = "async () => { window.close_view = await window.open_view(); }"
CLOSE = "window.close_view()"
PLAYER = "window.zerolabPlayers.at(-1)"


@pytest.fixture
def tab(browser):
    page = browser.new_page()
    yield page
    page.close()


def again(tab):
    tab.evaluate(CLOSE)
    tab.evaluate(OPEN)


def test_event_view_and_the_way_of_telling_are_those_that_were_left(tab):
    notebook(tab, made_up(4, 5, 2))
    tab.evaluate(OPEN)
    assert tab.evaluate(f"[{PLAYER}.shown, {PLAYER}.byBeats]") == ["story", True]
    tab.evaluate(f"{PLAYER}.setView('memory'); {PLAYER}.tellEvents(true); {PLAYER}.goto(20)")
    until(tab, "window.values.event === 20 && window.values.state.shown === 'memory'")
    again(tab)
    assert tab.evaluate(f"[{PLAYER}.shown, {PLAYER}.byBeats, {PLAYER}.index]") == ["memory", False, 20]


def moment(tab):
    return tab.evaluate(f"(({{ story, beat, index, time }}) => [story, beat, index, time])({PLAYER}.state())")


@pytest.mark.parametrize("presses", [0, 3])
def test_the_story_opens_at_the_beat_that_was_left_and_not_at_the_one_before(recording, tab, presses):
    notebook(tab, recording)
    tab.evaluate(OPEN)
    for _ in range(presses):
        tab.evaluate(f"{PLAYER}.step(1)")
    left = moment(tab)
    until(tab, f"window.values.state.time === {left[-1]}")
    again(tab)
    assert moment(tab) == left


def test_an_event_that_a_cell_went_to_is_not_taken_for_the_one_that_was_left(recording, tab):
    notebook(tab, recording)
    tab.evaluate(OPEN)
    until(tab, "window.values.state.index >= 0")
    tab.evaluate(f"{CLOSE}; window.values.event = 700")
    tab.evaluate(OPEN)
    assert tab.evaluate(f"{PLAYER}.index") == 700


def test_a_walk_opens_at_its_chapter_without_playing_and_one_that_was_left_does_not_open(recording, tab):
    notebook(tab, recording)
    tab.evaluate("window.values.walk = 2")
    tab.evaluate(OPEN)
    assert tab.evaluate(f"{PLAYER}.walk.state().chapter") == 2
    tab.evaluate(f"{PLAYER}.walk.show(2); {PLAYER}.pause(); {PLAYER}.goto(700)")
    until(tab, "window.values.walk === 3 && window.values.event === 700")
    again(tab)
    assert tab.evaluate(f"{PLAYER}.walk.state().chapter") == 3
    assert tab.evaluate(f"[{PLAYER}.index, {PLAYER}.clock.playing]") == [700, False]
    tab.evaluate(f"{PLAYER}.walk.leave(); {PLAYER}.goto(500)")
    until(tab, "window.values.walk === 0 && window.values.event === 500")
    again(tab)
    assert tab.evaluate(f"[{PLAYER}.walk.state(), {PLAYER}.index]") == [None, 500]


def test_an_answer_in_one_players_walk_leaves_the_others_answer(recording, tab):
    notebook(tab, recording)
    names = set()
    for _ in range(2):
        tab.evaluate(OPEN)
        chapters = range(tab.evaluate(f"{PLAYER}.walk.chapters.length"))
        asking = next(k for k in chapters if tab.evaluate(f"Boolean({PLAYER}.walk.chapters[{k}].asks)"))
        tab.evaluate(f"{PLAYER}.walk.show({asking})")
        names.add(tab.evaluate(f"{PLAYER}.root.querySelector('input[type=radio]').name"))
    assert len(names) == 2


def test_a_player_that_plays_out_of_sight_comes_to_rest(tab):
    notebook(tab, made_up(4, 5, 2))
    tab.evaluate(OPEN)
    tab.evaluate(f"{PLAYER}.play()")
    until(tab, f"{PLAYER}.clock.playing")
    tab.evaluate("document.body.style.display = 'none'")
    until(tab, f"!{PLAYER}.clock.playing")
