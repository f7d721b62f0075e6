"""Two recordings beside each other: stop by stop, with one row of controls, and their difference drawn and said."""

from dataclasses import replace
from itertools import combinations

import pytest
from showing import changed, in_order, made_up, state, until

from zerolab import Cluster
from zerolab.player import first_difference, page

pytestmark = pytest.mark.browser
PLAYERS = "window.zerolabPlayers"
TOGETHER = f"{PLAYERS}[0].pair.together"


def times(tab):
    return tab.evaluate(f"{PLAYERS}.map((p) => p.clock.time)")


def stops(tab):
    """Of each stop its step, and what both sides do: act and units; None for the one that rests."""
    return tab.evaluate(f"""{TOGETHER}.list.map(({{ step, beats }}) => [step, ...beats.map((place, k) => {{
      const beat = {PLAYERS}[k].beats.list[place];
      return beat ? [beat.act, beat.op, beat.units.map(({{ name }}) => name).join()] : null;
    }})])""")


def test_a_pair_opens_with_the_story_of_both_in_step_two_and_no_source(recordings, show):
    tab = show(page(recordings["ddp"], recordings["zero1"]), width=1440, height=900, story=True)
    assert tab.evaluate(f"{PLAYERS}.map((p) => [p.shown, p.byBeats])") == [["story", True]] * 2
    assert state(tab)["caption"]
    assert tab.locator(".zl-place").first.inner_text().startswith("beat 1 of ")
    assert [tab.locator(".zl-source").nth(k).is_visible() for k in (0, 1)] == [False, False]
    tab.keyboard.press("4")  # a line of code alone has no room
    assert tab.evaluate(f"{PLAYERS}.map((p) => p.shown)") == ["all", "all"]


def test_next_leads_both_to_the_same_act_and_unit_and_one_rests_where_it_has_nothing_to_do(recordings, show):
    tab = show(page(recordings["zero2"], recordings["zero3"]), width=1440, height=900, story=True)
    told = []
    for _ in range(30):
        tab.keyboard.press("ArrowRight")
        told.append(tab.locator(".zl-story").all_inner_texts())
        resting = [tab.locator(f".zl-{one}.zl-rests").count() for one in ("first", "second")]
        assert sum(resting) < 2
        for rests, sentence in zip(resting, told[-1], strict=True):
            assert rests == sentence.startswith(("zero2 ", "zero3 "))
    assert any(left == "zero2 has nothing to do here: it kept the parameters." for left, _ in told)
    assert any("owners keep their new parameters" in right for _, right in told)
    # Home leads to the first stop of the step, also where the first recording rests there.
    tab.keyboard.press("Home")
    assert tab.locator(".zl-place").first.inner_text().startswith("beat 1 of ")


@pytest.mark.parametrize(("one", "other"), list(combinations(("ddp", "zero1", "zero2", "zero3", "fsdp2"), 2)))
def test_of_any_two_stages_every_beat_is_in_one_stop_and_updates_are_one(recordings, show, one, other):
    tab = show(page(recordings[one], recordings[other]), width=1440, height=900, story=True)
    places = tab.evaluate(f"{TOGETHER}.list.map(({{ beats }}) => beats)")
    for side in (0, 1):
        own = [pair[side] for pair in places if pair[side] >= 0]
        assert own == list(range(tab.evaluate(f"{PLAYERS}[{side}].beats.list.length")))
    both = [(left, right) for _, left, right in stops(tab) if left and right]
    assert all((left[0], left[2]) == (right[0], right[2]) for left, right in both)
    assert sum(left[1] == right[1] == "step" for left, right in both) == 2
    for rests in tab.evaluate(f"[0, 1].map((k) => {TOGETHER}.list.map((_, place) => {TOGETHER}.why(k, place)))"):
        assert not any("undefined" in said for said in rests)


def test_both_play_at_once_and_a_stop_lasts_as_long_as_the_longer_beat(recordings, show):
    tab = show(page(recordings["zero1"], recordings["zero2"]), width=1440, height=900, story=True)
    lengths = tab.evaluate(f"""{TOGETHER}.list.map(({{ beats }}, place) => [{TOGETHER}.length(place),
      ...beats.map((beat, k) => beat < 0 ? 0 : {PLAYERS}[k].pace.length(beat))])""")
    assert all(together == max(own) for together, *own in lengths)
    before = times(tab)
    tab.get_by_role("button", name="Play").click()
    until(tab, f"{TOGETHER}.place > {tab.evaluate(f'{TOGETHER}.place')} + 1")
    assert all(now > then for now, then in zip(times(tab), before, strict=True))
    tab.keyboard.press("k")
    assert not state(tab)["playing"]
    shown = tab.evaluate(f"[{TOGETHER}.time(0), {TOGETHER}.time(1)]")
    assert times(tab) == pytest.approx(shown)


def test_by_events_both_show_the_same_time_and_back_by_beats_the_same_stop(recordings, show):
    tab = show(page(recordings["zero1"], recordings["zero2"]), width=1440, height=900, story=True)
    tab.keyboard.press("e")
    assert tab.evaluate(f"{PLAYERS}.map((p) => p.byBeats)") == [False, False]
    tab.keyboard.press("e")
    assert tab.evaluate(f"{PLAYERS}.map((p) => p.byBeats)") == [True, True]
    assert times(tab) == pytest.approx(tab.evaluate(f"[{TOGETHER}.time(0), {TOGETHER}.time(1)]"))
    # What is done on the second's side leads, too.
    tab.evaluate(f"{PLAYERS}[1].goto({PLAYERS}[1].model.count - 40)")
    assert times(tab) == pytest.approx(tab.evaluate(f"[{TOGETHER}.time(0), {TOGETHER}.time(1)]"))


@pytest.mark.parametrize(("width", "height"), [(1440, 900), (1100, 780)])
@pytest.mark.parametrize("view", ["Story", "Timeline", "Memory", "All"])
def test_rows_of_both_are_on_one_line_at_every_stop_and_controls_are_in_view(recordings, show, view, width, height):
    tab = show(page(recordings["zero3"], recordings["fsdp2"]), width=width, height=height, story=True)
    tab.get_by_role("button", name=view, exact=True).click()
    seen = set()
    for _ in range(12):
        tab.keyboard.press("ArrowRight")
        for name in (
            "caption",
            "ownership canvas:first-child",
            "timeline canvas:first-child",
            "memory canvas:first-child",
        ):
            tops = [tab.locator(f".zl-{one} .zl-{name}").first.bounding_box() for one in ("first", "second")]
            if tops[0]:
                assert tops[0]["y"] == pytest.approx(tops[1]["y"], abs=0.5)
                seen.add((name, tops[0]["y"]))
    assert len({name for name, _ in seen}) == len(seen)  # and nothing jumps
    controls = tab.locator(".zl-transport").first.bounding_box()
    assert controls["y"] + controls["height"] <= height
    assert tab.evaluate("document.documentElement.scrollWidth") == width
    if view == "Story":
        for box in tab.locator(".zl-ownership .zl-layers").all():
            place = box.bounding_box()
            assert place["y"] + place["height"] <= controls["y"]


def test_on_a_phone_one_stands_above_the_other(recordings, show):
    tab = show(page(recordings["zero1"], recordings["zero2"]), width=390, height=844, story=True)
    first, second = (tab.locator(f".zl-{one}").bounding_box() for one in ("first", "second"))
    assert first["y"] + first["height"] <= second["y"]
    assert first["width"] == second["width"] == 390
    assert tab.evaluate("document.documentElement.scrollWidth") == 390


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_what_the_other_holds_is_outlined_where_this_one_lacks_it(recordings, show, scheme):
    tab = show(page(recordings["ddp"], recordings["zero1"]), width=1440, height=900, scheme=scheme, story=True)
    # Dotted frames over optimizer state: three quarters of every unit, on the side of zero1 alone.
    drawn = tab.evaluate(f"""{PLAYERS}.map((player) => {{
      const {{ over }} = player.panes.ownership;
      const cells = [];
      const frame = over.frame.bind(over);
      over.frame = (x, y, width, height, stroke, lineWidth, dash) => {{
        if (dash) cells.push([x, y, width]);
        frame(x, y, width, height, stroke, lineWidth, dash);
      }};
      player.refresh();
      over.frame = frame;
      const rows = player.panes.ownership;
      return cells.filter(([, y]) => {{
        const cell = rows.cell(0, "optimizer_state", "blocks.1");
        return Math.abs(y - cell.y) < 3;
      }}).map(([, , width]) => width / rows.cell(0, "optimizer_state", "blocks.1").width);
    }})""")
    assert drawn[0] == []
    assert max(drawn[1]) == pytest.approx(0.75, abs=0.06)
    assert "the other holds it" in tab.locator(".zl-ownership .zl-legend").first.inner_text()
    said = tab.locator(".zl-moment").inner_text()
    assert "on rank 0, activations apart: zero1 holds " in said
    assert "optimizer state \N{MINUS SIGN}1.27 MB" in said


def test_two_that_hold_as_much_of_other_elements_lack_nothing(recordings, show):
    tab = show(page(recordings["zero3"], recordings["zero3"]), width=1440, height=900, story=True)
    assert "Both did the same" in tab.locator(".zl-difference").inner_text()
    assert tab.evaluate(f"{TOGETHER}.list.every(({{ beats }}) => beats[0] === beats[1])")
    tab.keyboard.press("ArrowRight")
    assert len(set(times(tab))) == 1


@pytest.mark.parametrize("what", ["nothing", "times"])
def test_beside_a_recording_of_times_or_of_nothing_the_other_still_plays(recordings, show, what):
    one = recordings["zero1"]
    times_alone = [replace(rank, info=replace(rank.info, times_only=True)) for rank in one.ranks]
    other = changed(one, ranks=[] if what == "nothing" else times_alone)
    for pair in ((recordings["zero2"], other), (other, recordings["zero2"])):
        tab = show(page(*pair), width=1440, height=900, story=True)
        for key in ("ArrowRight", "e", "ArrowRight", "3", "5"):
            tab.keyboard.press(key)
        assert max(tab.evaluate(f"{PLAYERS}.map((p) => p.index)")) > 0


@pytest.mark.parametrize("width", [1440, 1010])  # the narrower is as wide as Lab's cells in a window of 1440
def test_no_number_beside_a_bar_lies_over_another_and_no_legend_or_title_is_cut_off(recordings, show, width):
    tab = show(page(recordings["zero3"], recordings["fsdp2"]), width=width, height=900, story=True)
    cut = "(all) => all.filter(({ scrollWidth, clientWidth }) => scrollWidth > clientWidth).length"
    assert tab.locator(".zl-bars .zl-legend").evaluate_all(cut) == 0
    assert tab.locator(".zl-facts").first.bounding_box()["width"] > 200
    seen = 0
    for _ in range(8):
        tab.keyboard.press("ArrowRight")
        for labels in tab.evaluate(f"{PLAYERS}.map((player) => player.panes.bars.pen.labels)"):
            seen += any(label["text"].startswith(("+", "\N{MINUS SIGN}")) for label in labels)
            for one, other in combinations(labels, 2):
                beside = one["x"] + one["width"] <= other["x"] or other["x"] + other["width"] <= one["x"]
                assert beside or abs(one["y"] - other["y"]) >= 12, (one, other)
    assert seen


@pytest.mark.parametrize("fewer", ["first", "second"])
def test_beside_a_run_on_more_ranks_those_that_both_have_are_compared(show, fewer):
    few, many = made_up(2, 4, 2), made_up(4, 4, 2)
    both = (few, many) if fewer == "first" else (many, few)
    tab = show(page(*both), width=1400, height=1000, story=True)
    tab.keyboard.press("ArrowRight")
    tab.keyboard.press("5")
    assert "on rank 0" in tab.locator(".zl-pair").inner_text()


def test_of_collectives_without_a_training_step_it_is_said_where_they_differ(show):
    def collectives(op):
        import torch
        import torch.distributed as dist

        whole, part = torch.ones(8), torch.ones(4)
        dist.all_reduce(whole)
        dist.all_gather(list(whole.chunk(2)), part) if op == "all_gather" else dist.broadcast(whole, 0)

    with Cluster(world_size=2, device="cpu") as cluster:
        first, second = (cluster.record(collectives, op) for op in ("all_gather", "broadcast"))
    places = first_difference(first, second)["events"]
    assert [in_order(one)[place].op for one, place in zip((first, second), places, strict=True)] == [
        "all_gather", "broadcast"
    ]  # fmt: skip
    assert first_difference(first, first) is None
    assert "Both did the same" not in show(page(first, second), story=True).locator(".zl-pair").inner_text()
