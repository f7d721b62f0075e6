"""How the player opens and plays: by beats, with pieces that fly, and with values that look like what they are."""

from dataclasses import replace

import pytest
from showing import changed, in_order, made_up, state, until

from zerolab.player import page

pytestmark = pytest.mark.browser
PLAYER = "window.zerolabPlayers[0]"


def beats_of(tab):
    return tab.evaluate(f"{PLAYER}.beats.list.map(({{ kind, op, step, t0, t1, caption }}) => "
                        "({ kind, op, step, t0, t1, caption }))")  # fmt: skip


def to(tab, place, share):
    """Shows the moment of a beat at a share of its time on the screen."""
    tab.evaluate(f"(() => {{ const p = {PLAYER}; "
                 f"p.showTime(p.pace.time({place}, {share} * p.pace.length({place}))); p.settle(); }})()")  # fmt: skip
    return state(tab)


def first_beat(tab, step, **wanted):
    beats = beats_of(tab)
    return next(
        place
        for place, beat in enumerate(beats)
        if beat["step"] == step and all(beat[key] == value for key, value in wanted.items())
    )


@pytest.mark.parametrize("stage", ["zero3", "zero1", "ddp", "fsdp2"])
def test_it_opens_at_the_beginning_of_the_second_step_with_the_story_alone(recordings, show, stage):
    tab = show(recordings[stage], story=True)
    now = state(tab)
    beats = beats_of(tab)
    assert (now["shown"], now["beat"]) == ("story", first_beat(tab, 2))
    assert now["story"] == beats[now["beat"]]["caption"]
    assert tab.locator(".zl-story").inner_text() == now["story"]
    shown = {pane: tab.locator(f".zl-{pane}").is_visible() for pane in ("ownership", "bars", "source", "timeline")}
    assert shown == {"ownership": True, "bars": True, "source": False, "timeline": False}
    # Everything that the lesson is about is there.
    for held in now["held"]:
        assert any(held["parameters"].values())
        assert any(held["optimizer_state"].values())
    assert 8 <= sum(beat["step"] == 2 for beat in beats) <= 40


def test_a_button_shows_one_pane_more_and_the_last_all_of_them(recording, show):
    tab = show(recording, story=True)
    for view, seen in (("Timeline", "timeline"), ("Memory", "memory"), ("Source", "source")):
        tab.get_by_role("button", name=view, exact=True).click()
        visible = [pane for pane in ("source", "timeline", "memory", "bars") if tab.locator(f".zl-{pane}").is_visible()]
        assert visible == [seen]
        assert tab.locator(".zl-ownership").is_visible()
    tab.get_by_role("button", name="All", exact=True).click()
    assert all(tab.locator(f".zl-{pane}").is_visible() for pane in ("ownership", "source", "timeline", "memory"))
    assert tab.get_by_role("button", name="All", exact=True).get_attribute("aria-pressed") == "true"


def test_next_and_previous_go_by_beats_and_the_caption_is_read_out(recording, show):
    tab = show(recording, story=True)
    first = state(tab)["beat"]
    tab.get_by_role("button", name="Next beat").click()
    tab.keyboard.press("ArrowRight")
    now = state(tab)
    assert now["beat"] == first + 2
    assert tab.locator(".zl-place").inner_text().startswith("beat 3 of ")
    assert tab.locator(".zl-caption").get_attribute("aria-live") == "polite"
    assert tab.locator(".zl-story").inner_text() == beats_of(tab)[first + 2]["caption"]
    tab.keyboard.press("Home")
    assert state(tab)["beat"] == first
    tab.keyboard.press("ArrowLeft")
    assert state(tab)["beat"] == first - 1


def test_a_switch_tells_events_instead_of_beats_and_back(recording, show):
    tab = show(recording, story=True)
    tab.keyboard.press("e")
    before = state(tab)
    assert before["beat"] is None
    tab.keyboard.press("ArrowRight")
    after = state(tab)
    assert after["index"] == before["index"] + 1
    assert f"event {after['index'] + 1:,} of" in tab.locator(".zl-place").inner_text()
    tab.get_by_role("button", name="events").click()
    assert state(tab)["beat"] is not None


def test_playing_reaches_the_next_beat_in_seconds_and_begins_the_step_again_at_its_end(recording, show):
    tab = show(recording, story=True)
    first = state(tab)["beat"]
    last = max(place for place, beat in enumerate(beats_of(tab)) if beat["step"] == 2)
    lengths = tab.evaluate(f"{PLAYER}.beats.list.map((_, place) => {PLAYER}.pace.length(place))")
    assert all(1.5 <= length <= 3.01 for length in lengths)
    to(tab, last, 0.99)
    tab.keyboard.press("Space")
    until(tab, f"{PLAYER}.state().beat === {first}")
    assert state(tab)["playing"]


@pytest.mark.parametrize("name", ["ddp", "zero1", "zero2", "zero3", "fsdp2"])
def test_every_recorded_moment_has_its_own_on_the_screen(recordings, show, name):
    """So what one of a pair shows is found again from the stop and the share of it that has passed."""
    tab = show(recordings[name], story=True)
    off = tab.evaluate(f"""{PLAYER}.model.columns.t_start.map((start) => {{
      const {{ beats, pace }} = {PLAYER};
      const place = beats.at(start);
      const {{ t0, t1 }} = beats.list[place];
      return t0 <= start && start < t1 ? Math.abs(pace.time(place, pace.seconds(place, start)) - start) : 0;
    }})""")
    assert len(off) > 100
    assert max(off) < 2  # nanoseconds


def test_pieces_fly_between_their_recorded_send_and_receive_for_half_a_second_at_least(recording, show):
    tab = show(recording, story=True)
    place = first_beat(tab, 2, op="all_gather")
    flights = tab.evaluate(f"{PLAYER}.pieces.of({PLAYER}.beats.list[{place}]).map(({{ unit, ...rest }}) => rest)")
    assert len(flights) == 12
    events = in_order(recording)
    sends = {event.t_start for event in events if event.op == "send"}
    receives = {event.t_end for event in events if event.op == "recv"}
    for flight in flights:
        assert flight["start"] in sends
        assert flight["end"] in receives
        assert flight["recorded"]
        assert tab.evaluate(f"{PLAYER}.pace.elapsed({flight['start']}, {flight['end']})") >= 0.499
        middle = (flight["start"] + flight["end"]) / 2
        moving = tab.evaluate(f"({PLAYER}.showTime({middle}), {PLAYER}.state().moving)")
        assert {"from": flight["from"], "to": flight["to"]}.items() <= next(
            one for one in moving if (one["from"], one["to"]) == (flight["from"], flight["to"])
        ).items()
        before = tab.evaluate(f"({PLAYER}.showTime({flight['start'] - 1}), {PLAYER}.state().moving)")
        # Of this unit and category: a slow rank may still wait for the same neighbour's gradients of the step before.
        name = tab.evaluate(f"{PLAYER}.beats.list[{place}].units[0].name")
        piece = {"from": flight["from"], "to": flight["to"], "unit": name, "category": flight["category"]}
        same = [one for one in before if piece.items() <= one.items()]
        assert same == [], (flight, before)


def test_a_sum_is_counted_while_its_parts_arrive(recording, show):
    tab = show(recording, story=True, width=1600)
    place = first_beat(tab, 2, op="reduce_scatter")
    seen = set()
    for share in range(0, 100, 2):
        to(tab, place, share / 100)
        seen |= {label["text"] for label in tab.evaluate(f"{PLAYER}.labels()")["ownership"]}
    assert "1/4" in seen
    assert seen & {"2/4", "3/4"}


def test_a_gradient_is_local_until_it_is_reduced_and_a_parameter_stale_until_its_news_have_come(recordings, show):
    tab = show(recordings["zero1"], story=True)

    def worths(category, unit, time):
        found = f"{PLAYER}.model.units.find(({{ name }}) => name === '{unit}')"
        ask = f"(rank, owner) => {PLAYER}.values.of(rank, '{category}', {found}, owner, {time})"
        return {(rank, owner): tab.evaluate(f"({ask})({rank}, {owner})") for rank in (0, 1) for owner in (0, 1)}

    events = in_order(recordings["zero1"])
    of = [event for event in events if event.unit == "blocks.1" and event.step == 2 and event.parent is None]
    reductions = [event for event in of if event.op == "reduce_scatter" and event.kind == "collective"]
    before, after = min(event.t_start for event in reductions) - 1, max(event.t_end for event in reductions) + 1
    mine = next(event for event in reductions if event.rank == 0)
    assert worths("gradients", "blocks.1", mine.t_start)[0, 0] == "local"
    assert set(worths("gradients", "blocks.1", after).values()) == {"plain", "local"}
    assert worths("gradients", "blocks.1", after)[0, 0] == "plain"
    assert worths("gradients", "blocks.1", after)[0, 1] == "local"
    updates = [event for event in events if event.kind == "optimizer" and event.step == 2]
    shares = [event for event in of if event.op == "all_gather" and event.kind == "collective"]
    updated, shared = max(event.t_end for event in updates), max(event.t_end for event in shares)
    assert set(worths("parameters", "blocks.1", before).values()) == {"plain"}
    if updated < min(event.t_end for event in shares):
        now = worths("parameters", "blocks.1", updated)
        assert now == {(0, 0): "fresh", (0, 1): "stale", (1, 0): "stale", (1, 1): "fresh"}
    assert set(worths("parameters", "blocks.1", shared).values()) == {"plain"}


def test_identical_copies_have_one_colour_and_the_legend_says_so(recordings, show):
    tab = show(recordings["ddp"], story=True)
    colours = tab.evaluate(f"""[0, 1, 2, 3].map((rank) => {{
      const {{ panes: {{ ownership }}, palette, model }} = {PLAYER};
      return ownership.fill(palette, model.units[1], rank);
    }})""")
    assert len(set(colours)) == 1
    assert "copy, the same on every rank" in tab.locator(".zl-ownership .zl-legend").inner_text()


def test_what_is_not_recorded_is_drawn_as_it_is_meant_and_the_legend_says_so(recordings, show):
    tab = show(recordings["fsdp2"], story=True)
    place = first_beat(tab, 2, op="reduce_scatter")
    flights = tab.evaluate(f"{PLAYER}.pieces.of({PLAYER}.beats.list[{place}])")
    assert not any(flight["recorded"] for flight in flights)
    # A rank's piece is all that it owns of the unit, a quarter of it, in however many stretches.
    for flight in flights:
        spans = flight["spans"]
        elements = sum(spans[1::2]) - sum(spans[::2])
        assert elements == pytest.approx(flight["unit"]["padded"] / 4, rel=0.1)
    assert "drawn as what the collective means" in tab.locator(".zl-ownership .zl-legend").inner_text()
    assert "means" not in show(recordings["zero3"], story=True).locator(".zl-ownership .zl-legend").inner_text()


def test_with_less_motion_asked_for_nothing_flies_and_arrows_stand_instead(recording, show):
    tab = show(recording, story=True, motion="reduce")
    place = first_beat(tab, 2, op="all_gather")
    to(tab, place, 0.6)
    assert tab.evaluate(f"{PLAYER}.frame.flights") is None
    assert state(tab)["beat"] == place


def test_a_filter_that_leaves_gradients_out_draws_none_of_their_arrows(recording, show):
    events = in_order(recording)
    place = next(k for k, e in enumerate(events) if e.op == "reduce_scatter" and e.kind == "collective" and e.step == 2)
    tab = show(recording, f"#event={place + 1}")
    assert state(tab)["moving"]
    tab.evaluate(f"{PLAYER}.setFilter({{ category: 'parameters' }})")
    assert state(tab)["moving"] == []


def test_a_hover_lights_its_event_and_draws_no_arrows_of_another_time(recording, show):
    tab = show(recording, "#view=all", story=True)
    place = first_beat(tab, 2, op="all_gather")
    before = to(tab, place, 0.6)
    assert before["moving"]
    other = next(k for k, e in enumerate(in_order(recording)) if e.op == "reduce_scatter" and e.kind == "collective")
    tab.evaluate(f"{PLAYER}.preview({other})")
    now = state(tab)
    assert (now["hover"], now["moving"], now["time"]) == (other, before["moving"], before["time"])


def test_without_units_the_timeline_comes_first_and_the_sentence_is_the_collectives_own(recording, show):
    silent = [
        replace(event, unit=None, step=0, category=None) for event in recording.events if event.number is not None
    ]
    ranks = [replace(rank, events=tuple(e for e in silent if e.rank == rank.rank)) for rank in recording.ranks]
    tab = show(changed(recording, ranks=ranks, units=[]), story=True)
    assert state(tab)["shown"] == "timeline"
    assert state(tab)["caption"].startswith("Rank ")


def one_is_late(recording, late):
    """The recording with a rank that makes its first update only once the others have begun to send gradients again."""

    def collectives(rank, step):
        of = [event for event in rank.events if event.kind == "collective" and event.step == step]
        return [event for event in of if event.parent is None], [event for event in of if event.op == "send"]

    since = {}
    for rank in recording.ranks:
        whole, sends = collectives(rank, 2)
        first = min(whole, key=lambda event: event.seq)
        since[rank.rank] = max(event.t_start for event in sends if event.parent == first.seq) + 1
    update = next(event for event in recording.ranks[late].events if event.kind == "optimizer" and event.step == 1)
    more = max(since.values()) - update.t_start + 1_000_000
    since[late] = update.t_start

    def when(rank, time):
        return time + more if time >= since[rank] else time

    def event(one):
        return replace(one, t_start=when(one.rank, one.t_start), t_end=when(one.rank, one.t_end))

    return changed(recording, ranks=[replace(rank, events=tuple(event(one) for one in rank.events))
                                     for rank in recording.ranks])  # fmt: skip


def test_where_one_rank_is_late_no_beat_shows_gradients_of_a_backward_after_it(recordings, show):
    tab = show(one_is_late(recordings["ddp"], 2), story=True)
    beats = beats_of(tab)
    opening = state(tab)
    forwards = [k for k, beat in enumerate(beats) if beat["step"] == 2 and beat["op"] == "forward"]
    assert opening["beat"] == forwards[0]
    tab.keyboard.press("ArrowLeft")
    update = state(tab)
    assert beats[update["beat"]]["kind"] == "update"
    for now in (opening, update, *(to(tab, place, share) for place in forwards for share in (0, 0.6))):
        assert (now["moving"], now["time"]) == ([], pytest.approx(opening["time"], abs=1_000_000))
        # The late one may have those of the step before.
        assert not any(any(now["held"][rank]["gradients"].values()) for rank in (0, 1, 3))
        assert all(now["live"][rank]["activations"] for rank in (0, 1, 3))
    # By events the others hold gradients at that moment, as they do; and once the backward is told.
    tab.keyboard.press("e")
    assert all(any(state(tab)["held"][rank]["gradients"].values()) for rank in (0, 1, 3))
    tab.keyboard.press("e")
    assert all(any(held["gradients"].values()) for held in to(tab, first_beat(tab, 2, op="all_reduce"), 0.99)["held"])


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_story_of_many_ranks_and_of_two_recordings_opens_without_a_complaint(recordings, show, theme):
    tab = show(made_up(64, 8, 2), story=True, scheme=theme)
    assert state(tab)["beats"] > 4
    tab.keyboard.press("ArrowRight")
    both = show(page(recordings["zero3"], recordings["ddp"]), story=True, width=1400, height=1200, scheme=theme)
    assert state(both)["shown"] == "story"


def test_by_events_too_a_hover_draws_no_arrows_over_what_is_held_at_another_time(recording, show):
    events = in_order(recording)
    sends = [k for k, e in enumerate(events) if e.kind == "collective" and e.parent is None and e.unit and e.step]
    tab = show(recording, f"#event={sends[0] + 1}")
    before = state(tab)
    assert before["moving"]
    tab.evaluate(f"{PLAYER}.preview({sends[-1]})")
    now = state(tab)
    assert (now["hover"], now["moving"]) == (sends[-1], before["moving"])
