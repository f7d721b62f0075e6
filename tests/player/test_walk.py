"""The guided walk: chapters that follow from the recording, questions whose answers do, and that it never blocks."""

from dataclasses import replace

import pytest
from showing import changed, in_order, made_up, renamed, state, until
from test_scale import part

from zerolab import Cluster
from zerolab.player import page, payload
from zerolab.player.holdings import held_at_update
from zerolab.player.owners import whole_of

pytestmark = pytest.mark.browser
PLAYER = "window.zerolabPlayers[0]"
STAGES = ["zero3", "zero2", "zero1", "ddp", "fsdp2"]
OTHERS = ["torch-ddp", "torch-zero1", "fsdp1", "hsdp"]
MUON = ["muon-replicated", "muon-owners", "muon-rows"]
UNIT = "blocks.1"


def chapters(tab):
    return tab.evaluate(f"{PLAYER}.walk.chapters")


def captions_of(tab):
    return tab.evaluate(f"{PLAYER}.beats.list.map(({{ caption }}) => caption)")


FAST = 10
"""A speed at which no frame passes over the second that a step rests at its end: a chapter is still seen to end."""


def to_chapter(tab, place):
    """Opens a chapter, counted from 0, lets it play and waits for its end."""
    tab.evaluate(f"({PLAYER}.setSpeed({FAST}), {PLAYER}.walk.show({place}))")
    until(tab, f"{PLAYER}.walk.rested")
    return tab.evaluate(f"{PLAYER}.walk.state()")


def asked(told, text):
    """The question with `text` in it, as `(right answer, all answers)`; None if no chapter asks it."""
    for chapter in told:
        if chapter["asks"] and text in chapter["asks"]["text"]:
            answers = chapter["asks"]["answers"]
            return next(answer["text"] for answer in answers if answer["right"]), answers
    return None


def logical(recording, **wanted):
    """Bytes that rank 0 had to send for what fits, in the second step."""
    events = [e for e in recording.ranks[0].events if e.kind == "collective" and e.parent is None and e.step == 2]
    return sum(e.logical_bytes for e in events if all(getattr(e, key) == value for key, value in wanted.items()))


@pytest.fixture(scope="module")
def others(train):
    """The same two steps in torch's own systems."""
    with Cluster(world_size=4, device="cpu") as cluster:
        return {stage: cluster.record(train, stage) for stage in [*OTHERS, *MUON]}


@pytest.mark.parametrize("stage", STAGES)
def test_the_chapters_are_what_a_step_of_this_recording_has(recordings, show, stage):
    tab = show(recordings[stage], story=True)
    told = chapters(tab)
    titles = [chapter["title"] for chapter in told]
    has = {
        f"{UNIT} is gathered": stage in ("zero3", "fsdp2"),
        f"{UNIT} is computed, and freed": stage in ("zero3", "fsdp2"),
        f"{UNIT} is computed": stage in ("zero2", "zero1", "ddp"),
        "New parameters travel back": stage in ("zero2", "zero1"),
        "Who holds what": True,
        f"{UNIT}'s gradients are computed": True,
        f"{UNIT}'s gradients are added up": True,
        "The update": True,
        "Where memory was highest": True,
        "What it came to": True,
    }
    assert {title for title, there in has.items() if there} <= set(titles)
    assert not {title for title, there in has.items() if not there} & set(titles)
    assert titles[-1] == "Your turn"
    assert 8 <= len(titles) <= 11
    assert sum(chapter["asks"] is not None for chapter in told) >= len(told) // 2
    steps = tab.evaluate(f"{PLAYER}.beats.list.map(({{ step }}) => step)")
    for chapter in told:
        assert chapter["from"] <= chapter["rest"]
        assert chapter["first"] <= chapter["last"] <= chapter["first"] + 2
        assert "undefined" not in str(chapter)
        assert "NaN" not in str(chapter)
    assert steps[told[0]["first"]] == 2
    assert "Root is what lies in no block." in told[0]["says"]
    assert ("their parameters travel together" in told[0]["says"]) is (stage in ("zero3", "fsdp2"))


def test_a_unit_that_is_called_by_a_number_is_told_of_as_a_unit_and_no_root_where_none_is_drawn(recordings, show):
    numbered = renamed(recordings["ddp"], UNIT, "2")
    empty = [replace(unit, numel=0, padded=0) if unit.name == "root" else unit for unit in numbered.units]
    tab = show(changed(numbered, units=empty), "#walk", story=True)
    told = chapters(tab)
    assert told[0]["says"].startswith("The model is shown in units, such as unit 2, one column each. Each of 4 ranks")
    assert told[0]["asks"]["text"] == "How much of unit 2's optimizer state does rank 0 hold now?"
    assert {"Unit 2 is computed", "Unit 2's gradients are computed"} <= {chapter["title"] for chapter in told}
    assert "Unit 2: gradients are added up, and all ranks get the sum." in captions_of(tab)
    assert "2" in told[1]["units"]
    passed = next(n for n, e in enumerate(in_order(numbered)) if (e.unit, e.op, e.step) == ("2", "backward", 2))
    tab.evaluate(f"{PLAYER}.walk.leave(); {PLAYER}.tellEvents(true); {PLAYER}.goto({passed})")
    assert " computed the backward of unit 2 in " in state(tab)["caption"]


_FILLED = """([unit, category]) => {
  const { model, panes: { ownership: pane } } = window.zerolabPlayers[0];
  const { width: wide, height: high } = pane.pen.canvas;
  const drawn = new OffscreenCanvas(wide, high).getContext("2d", { willReadFrequently: true });
  for (const { canvas } of [pane.pen, pane.over]) drawn.drawImage(canvas, 0, 0);
  return model.whole.filter((_, row) => {
    const { x, y, width, height } = pane.cell(row, category, unit);
    return Array.from({ length: 64 }, (_, k) => x + ((k + 0.5) * width) / 64).every((at) =>
      drawn.getImageData(at * pane.pen.scale, (y + height / 2) * pane.pen.scale, 1, 1).data[3] > 0);
  }).length;
}"""
"""In how many rows a unit's cell of a category is filled from end to end."""


@pytest.mark.parametrize("stage", STAGES)
def test_as_many_rows_are_filled_from_end_to_end_as_the_right_answer_says(recordings, show, stage):
    tab = show(recordings[stage], story=True)
    asks = [chapter["asks"]["text"] if chapter["asks"] else "" for chapter in chapters(tab)]
    place = next(k for k, text in enumerate(asks) if f"hold all of {UNIT}'s parameters now" in text)
    asked_here = to_chapter(tab, place)["asks"]
    right = next(answer["text"] for answer in asked_here["answers"] if answer["right"])
    assert tab.evaluate(_FILLED, [UNIT, "parameters"]) == int(right)


@pytest.mark.parametrize("stage", STAGES + OTHERS)
def test_what_is_right_is_what_was_recorded(recordings, others, show, stage):
    recording = {**recordings, **others}[stage]
    tab = show(recording, story=True)
    told = chapters(tab)
    assert len(told) >= 7
    for chapter in told:
        answers = chapter["asks"]["answers"] if chapter["asks"] else []
        assert [answer["right"] for answer in answers].count(True) == (1 if answers else 0)
        assert len({answer["text"] for answer in answers}) == len(answers) != 1
        assert all(answer["says"].endswith(".") for answer in answers)
    whole = asked(told, f"hold all of {UNIT}'s parameters now")
    freed = stage in ("zero3", "fsdp1", "fsdp2", "hsdp")
    assert whole[0] == ("0" if freed else "4")
    sent = asked(told, "How many bytes did rank 0 send")
    if sent and stage in ("zero3", "zero2", "zero1", "ddp"):
        op = {"zero3": "all_gather", "ddp": "all_reduce"}.get(stage, "reduce_scatter")
        phase = {"phase": "forward"} if stage == "zero3" else {}
        bytes_ = logical(recording, op=op, unit=UNIT, **phase) or logical(recording, op=op, unit=UNIT) // 2
        assert sent[0] == f"{bytes_:,} bytes"
    share = asked(told, "What share of all state")
    parts = {"zero1": 2.5, "torch-zero1": 2.5, "zero2": 1.75, "ddp": 4, "torch-ddp": 4}.get(stage, 1)
    if stage != "hsdp":  # a half is none of the ways in which the stages divide
        assert int(share[0].split()[0]) == pytest.approx(25 * parts, abs=1)
    updates = asked(told, "Which ranks update")
    if stage in ("zero3", "zero2", "zero1"):
        assert updates[0] == "rank 3 alone"
    if stage in ("ddp", "torch-ddp"):
        assert updates[0] == "all 4 ranks"


def test_hybrid_sharding_is_two_wholes_and_a_rank_is_drawn_in_the_colours_of_its_own(others, show):
    for unit in payload(others["hsdp"])["units"]:
        for rank in range(4):
            mine = whole_of(rank, unit["owners"])
            assert {owner for *_, owner in mine} == ({0, 1} if rank < 2 else {2, 3})
            assert sum(stop - start for start, stop, _ in mine) == unit["numel"]
    tab = show(others["hsdp"])
    assert "2 replicas, each a whole" in tab.locator(".zl-ownership .zl-legend").inner_text()
    held = held_at_update(others["hsdp"])
    for rank, parts in enumerate(held):
        assert [bool(nbytes) for nbytes in parts["parameters"]] == [owner == rank for owner in range(4)]


def test_owners_of_whole_matrices_update_what_they_own_and_nobody_is_asked_for_an_nth(others, show):
    tab = show(others["muon-owners"], story=True)
    told = chapters(tab)
    assert "Each rank updates only what it owns" in str(told)
    assert asked(told, "How many bytes did rank 0 send") is None  # all of one unit, and less of another
    assert "Update: each rank changes only what it owns." in captions_of(tab)


@pytest.mark.parametrize("stage", MUON)
def test_a_step_with_muon_is_told_from_its_forward_to_its_update(others, show, stage):
    tab = show(others[stage], story=True)
    titles = [chapter["title"] for chapter in chapters(tab)]
    unit = UNIT if stage == "muon-rows" else f"{UNIT} matrices"
    possessive = f"{unit}'s" if stage == "muon-rows" else f"{unit}'"
    assert f"{UNIT} is computed{', and freed' * (stage == 'muon-rows')}" in titles
    assert {f"{possessive} gradients are computed", f"{possessive} gradients are added up", "The update"} <= {*titles}
    assert "matrices's" not in str(chapters(tab))
    travels = [each for each in captions_of(tab) if "rows of whole matrices travel" in each]
    assert bool(travels) is (stage == "muon-rows")
    for place in range(len(titles)):
        to_chapter(tab, place)


def test_a_chapter_plays_and_rests_on_its_question_and_every_answer_is_told_what_it_means(recording, show):
    tab = show(recording, story=True)
    tab.keyboard.press("w")
    card = tab.get_by_role("region", name="Guided walk")
    assert card.is_visible()
    assert not tab.locator(".zl-caption").is_visible()
    tab.keyboard.press("ArrowRight")
    now = state(tab)
    assert (now["walk"]["chapter"], now["playing"], now["walk"]["rested"]) == (2, True, False)
    assert not card.get_by_role("radio").first.is_visible()
    until(tab, f"{PLAYER}.state().walk.rested")
    now = state(tab)
    assert not now["playing"]
    assert now["time"] == now["walk"]["rest"]
    # What was gathered is there when the question is put; a fast rank may have computed with it, and freed it.
    assert any(held["parameters"][UNIT] == [0, 49984] for held in now["held"])
    for answer in now["walk"]["asks"]["answers"]:
        card.get_by_label(answer["text"], exact=True).check()
        said = card.get_by_role("status").inner_text()
        assert said == f"{'Right.' if answer['right'] else 'Not this.'} {answer['says']}"
    # After a click the arrow keys lead on, and an unanswered question does not keep anybody.
    card.get_by_label(answer["text"], exact=True).click()
    tab.keyboard.press("ArrowRight")
    tab.keyboard.press("ArrowRight")
    assert state(tab)["walk"]["chapter"] == 4
    card.get_by_role("button", name="Previous chapter").click()
    assert state(tab)["walk"]["chapter"] == 3
    tab.keyboard.press("Escape")
    assert state(tab)["walk"] is None
    assert not card.is_visible()
    assert tab.locator(".zl-caption").is_visible()


def test_the_walk_ends_where_it_was_opened_from(recording, show):
    tab = show(recording)  # all panes, event by event
    tab.keyboard.press("w")
    assert (state(tab)["shown"], state(tab)["beat"] is None) == ("story", False)
    tab.keyboard.press("w")
    assert (state(tab)["shown"], state(tab)["beat"]) == ("all", None)


def test_play_plays_a_chapter_again_and_after_the_last_the_walk_begins_again(recording, show):
    tab = show(recording, "#walk=2", story=True)
    until(tab, f"{PLAYER}.state().walk.rested")
    tab.keyboard.press("Space")
    until(tab, f"{PLAYER}.state().time < {PLAYER}.state().walk.rest")
    assert state(tab)["playing"]
    until(tab, f"{PLAYER}.state().walk.rested")
    last = to_chapter(tab, len(chapters(tab)) - 1)
    assert last["title"] == "Your turn"
    assert "Escape" in last["says"]
    tab.locator(".zl-walk-next").click()
    assert state(tab)["walk"]["chapter"] == 1


def test_by_keyboard_alone_an_answer_is_chosen_without_leaving_the_chapter(recording, show):
    tab = show(recording, story=True)
    tab.get_by_role("button", name="Walk", exact=True).focus()
    tab.keyboard.press("Enter")
    assert state(tab)["walk"]["chapter"] == 1
    for _ in range(30):
        tab.keyboard.press("Tab")
        if tab.evaluate("document.activeElement.type") == "radio":
            break
    tab.keyboard.press("Space")
    tab.keyboard.press("ArrowRight")
    assert state(tab)["walk"]["chapter"] == 1
    assert tab.locator(".zl-walk input:checked").count() == 1
    assert tab.locator(".zl-walk-answer").inner_text().startswith("Right.")
    assert tab.get_by_role("group", name="How much of").get_by_role("radio").count() == 3


def test_all_but_the_units_of_a_chapter_are_dimmed(recording, show):
    tab = show(recording, story=True)
    for place, chapter in enumerate(chapters(tab)):
        to_chapter(tab, place)
        tab.evaluate("document.getAnimations().forEach((each) => each.finish())")  # the sheets move
        for unit in ("blocks.0", UNIT, "blocks.3"):
            cell = tab.evaluate(f"""(() => {{
              const {{ panes: {{ ownership }} }} = {PLAYER};
              const {{ x, width }} = ownership.cell(0, null, "{unit}");
              return x + width / 2 + ownership.pen.canvas.getBoundingClientRect().left;
            }})()""")
            sheets = [sheet.bounding_box() for sheet in tab.locator(".zl-veil").all()]
            dimmed = any(box and box["x"] < cell < box["x"] + box["width"] for box in sheets)
            units = chapter["units"]
            assert dimmed == (units is None or (bool(units) and unit not in units)), (chapter["title"], unit)


@pytest.mark.parametrize("width", [1440, 390])
def test_nothing_jumps_from_chapter_to_chapter(recordings, show, width):
    tab = show(recordings["zero1"], "#walk", width=width, height=900, story=True)
    places, buttons = set(), set()
    for place, chapter in enumerate(chapters(tab)):
        tab.evaluate(f"{PLAYER}.walk.show({place})")  # it plays, and its question is not put yet
        buttons.add(tuple(tab.locator(".zl-walk-next").bounding_box().values()))
        to_chapter(tab, place)
        buttons.add(tuple(tab.locator(".zl-walk-next").bounding_box().values()))
        for k in range(len(chapter["asks"]["answers"]) if chapter["asks"] else 0):
            tab.locator(".zl-walk label").nth(k).click()
            places.add(tab.locator(".zl-now").evaluate("(now) => now.offsetTop"))
        places.add(tab.locator(".zl-now").evaluate("(now) => now.offsetTop"))
    assert len(places) == len(buttons) == 1


def test_the_address_opens_a_chapter_and_follows_the_walk(recording, show):
    tab = show(recording, "#walk=3", story=True)
    assert state(tab)["walk"]["chapter"] == 3
    tab.keyboard.press("ArrowRight")
    until(tab, "window.location.hash.includes('walk=4')")
    tab.keyboard.press("Escape")
    until(tab, "!window.location.hash.includes('walk')")


def test_with_less_motion_asked_for_a_chapter_is_at_its_end_at_once(recording, show):
    tab = show(recording, "#walk=2", story=True, motion="reduce")
    now = state(tab)
    assert (now["playing"], now["walk"]["rested"]) == (False, True)
    assert now["time"] == now["walk"]["rest"]
    assert tab.locator(".zl-veil").first.evaluate("(sheet) => getComputedStyle(sheet).transitionDuration") == "0s"


def test_a_recording_that_has_nothing_to_lead_through_has_no_walk(recording, show):
    silent = [replace(rank, events=tuple(e for e in rank.events if e.step == 0)) for rank in recording.ranks]
    for nothing in (
        changed(recording, times_only=True),
        changed(recording, units=[]),
        changed(recording, ranks=silent),
    ):
        tab = show(nothing, "#walk=2", story=True)
        tab.keyboard.press("w")
        assert state(tab)["walk"] is None
        assert tab.get_by_role("button", name="Walk", exact=True).count() == 0
    both = show(page(recording, recording), width=1400, height=1000, story=True)
    assert both.get_by_role("button", name="Walk", exact=True).count() == 0


def test_one_rank_is_led_through_what_it_computes_and_sends_nothing(show):
    def alone():
        import torch

        from zerolab import Zero3, models

        engine = Zero3(models.build("gpt-tiny"), torch.optim.AdamW, lr=1e-3)
        for inputs, targets in models.batches("gpt-tiny", 1, 0, 2):
            engine.training_step(inputs, targets, models.loss)

    with Cluster(world_size=1, device="cpu") as cluster:
        tab = show(cluster.record(alone), "#walk", story=True)
    told = chapters(tab)
    assert [chapter["title"] for chapter in told if "gathered" in chapter["title"] or "added" in chapter["title"]] == []
    assert "There is nobody else." in " ".join(chapter["says"] for chapter in told)
    assert not any("rank 1" in str(chapter) or "hatching" in str(chapter) for chapter in told)


def test_of_many_ranks_and_of_a_run_that_broke_off_only_what_there_is_is_told(recording, show):
    tab = show(made_up(64, 8, 2), "#walk", story=True)
    titles = [chapter["title"] for chapter in chapters(tab)]
    assert "blocks.1 is gathered" in titles
    assert not any("gradients" in title or "update" in title for title in titles)
    until_here = [replace(rank, complete=False, events=rank.events[: len(rank.events) * 3 // 4])
                  for rank in recording.ranks]  # fmt: skip
    tab = show(changed(recording, ranks=until_here), story=True)
    for place in range(len(chapters(tab))):
        to_chapter(tab, place)


@pytest.mark.parametrize(("width", "scheme"), [(390, "light"), (1280, "dark")])
def test_axe_finds_nothing_in_the_walk(recording, show, width, scheme, require):
    axe = part(require, "axe_playwright_python.sync_playwright", "axe-playwright-python")
    tab = show(recording, "#walk=2", width=width, height=1000, scheme=scheme, story=True)
    until(tab, f"{PLAYER}.state().walk.rested")
    tab.locator(".zl-walk label").first.click()
    found = axe.Axe().run(tab)
    assert found.violations_count == 0, found.generate_report()


def test_from_a_cell_the_player_opens_with_the_walk(recording):
    assert recording.play(walk=True).walk == 1
    assert recording.play().walk == 0


def test_a_page_without_an_address_of_its_own_opens_as_it_was_asked_to(show, recording):
    tab = show(page(recording, address="walk=3"), story=True)
    assert state(tab)["walk"]["chapter"] == 3
    tab = show(page(recording, address="event=12&view=all"), story=True)
    assert (state(tab)["event"]["index"], tab.get_attribute(".zl-player", "data-view")) == (11, "all")
