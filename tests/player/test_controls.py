"""Linked panes, steps, zoom, filter and links of the player, in a real browser."""

import pytest
from showing import in_order, made_up, state, until

pytestmark = pytest.mark.browser
PLAYER = "window.zerolabPlayers[0]"


def box_of(tab, pane):
    return tab.locator(f".zl-{pane} .zl-layers").bounding_box()


def widest_bar(tab, kind):
    """The widest bar of a kind of event over whose middle no other lies, and the point of its middle."""
    bars = tab.evaluate(
        f"""(kind) => {{
          const {{ panes: {{ timeline }}, model }} = {PLAYER};
          const on_top = (b) => timeline.hit(b.x + b.width / 2, b.y + 5) === b.index;
          return timeline.bars.filter((b) => model.event(b.index).kind === kind && on_top(b));
        }}""",
        kind,
    )
    bar = max(bars, key=lambda bar: bar["width"])
    box = box_of(tab, "timeline")
    return bar, (box["x"] + bar["x"] + bar["width"] / 2, box["y"] + bar["y"] + 5)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_hovering_a_collective_lights_its_source_and_says_its_bytes_and_a_click_goes_there(recording, show, scheme):
    tab = show(recording, scheme=scheme)
    before = state(tab)["index"]
    bar, point = widest_bar(tab, "collective")
    tab.mouse.move(*point)
    now = state(tab)
    assert now["hover"] == bar["index"]
    assert now["index"] == before
    event = in_order(recording)[bar["index"]]
    tip = tab.get_by_role("tooltip").inner_text()
    assert f"it sent {event.logical_bytes:,} bytes" in tip
    assert "to each of the other ranks" in tip
    line = recording.sources[event.source.id].text.splitlines()[event.source.line - 1]
    assert tab.locator(".zl-lit").inner_text().strip() == line.strip()
    tab.mouse.move(5, 5)
    assert state(tab)["hover"] is None
    assert not tab.get_by_role("tooltip").is_visible()
    tab.mouse.click(*point)
    assert state(tab)["index"] == bar["index"]


def test_hovering_a_shard_tells_the_event_that_made_it_so(recording, show):
    tab = show(recording, "#event=400")
    place = tab.evaluate(f"{PLAYER}.panes.ownership.cell(1, 'parameters', 'blocks.1')")
    box = box_of(tab, "ownership")
    tab.mouse.move(box["x"] + place["x"] + place["width"] / 2, box["y"] + place["y"] + 4)
    event = in_order(recording)[state(tab)["hover"]]
    assert (event.rank, event.op, event.unit, event.category) == (1, "hold", "blocks.1", "parameters")
    assert state(tab)["hover"] <= 399


def test_hovering_memory_and_a_line_of_source_tells_an_event(recording, show):
    tab = show(recording, "#event=400")
    box = box_of(tab, "memory")
    tab.mouse.move(box["x"] + 500, box["y"] + 60)
    assert in_order(recording)[state(tab)["hover"]].rank == 1
    tab.mouse.move(5, 5)
    lit = tab.evaluate(f"({PLAYER}.goto(400), document.querySelector('.zl-lit')?.dataset.line)")
    tab.locator(".zl-lit").click()
    now = state(tab)
    assert str(now["source"]["line"]) == lit
    assert now["index"] != 400


def arrows(tab, place):
    tab.evaluate(f"{PLAYER}.goto({place})")
    now = state(tab)
    labels = [label["text"] for label in tab.evaluate(f"{PLAYER}.labels()")["ownership"]]
    return [(arrow["from"], arrow["to"], arrow["piece"]) for arrow in now["moving"]], labels


def test_a_gather_shows_its_part_going_to_all_and_waiting_for_it_the_parts_of_all_coming(recording, show):
    tab = show(recording)
    events = in_order(recording)
    gather = next(e for e in events if e.op == "all_gather" and e.kind == "collective" and e.unit and e.rank == 2)
    found, labels = arrows(tab, events.index(gather))
    assert sorted(found) == [(2, 0, 2), (2, 1, 2), (2, 3, 2)]
    assert f"{gather.logical_bytes / 3 / 1000:.1f} kB to each" in labels
    wait = next(e for e in events if e.kind == "wait" and e.rank == 2 and e.parent == gather.seq)
    assert sorted(arrows(tab, events.index(wait))[0]) == [(0, 2, 0), (1, 2, 1), (3, 2, 3)]
    whole = next(
        e for e in events[events.index(gather) :] if e.op == "hold" and e.rank == 2 and e.spans == ((0, e.spans[0][1]),)
    )
    assert sorted(arrows(tab, events.index(whole))[0]) == [(0, 2, 0), (1, 2, 1), (3, 2, 3)]
    assert "and the rest from the others" in state(tab)["caption"]


def test_a_reduction_shows_each_part_going_to_its_owner(recording, show):
    events = in_order(recording)
    reduction = next(e for e in events if e.op == "reduce_scatter" and e.kind == "collective" and e.rank == 1)
    tab = show(recording)
    assert sorted(arrows(tab, events.index(reduction))[0]) == [(1, 0, 0), (1, 2, 2), (1, 3, 3)]
    receive = next(e for e in events if e.op == "recv" and e.parent == reduction.seq and e.rank == 1 and e.peer == 3)
    found, labels = arrows(tab, events.index(receive))
    assert found == [(3, 1, 1)]
    assert f"{reduction.logical_bytes / 3 / 1000:.1f} kB" in labels
    assert f"received rank 3's gradients for its own part of {reduction.unit}" in state(tab)["caption"]


def test_an_all_reduce_is_shown_as_its_two_halves(recordings, show):
    recording = recordings["ddp"]
    tab = show(recording)
    events = in_order(recording)
    whole = next(e for e in events if e.op == "all_reduce" and e.kind == "collective" and e.rank == 0 and e.unit)
    sends = [e for e in events if e.op == "send" and e.rank == 0 and e.parent == whole.seq and e.peer == 3]
    first, second = sorted(sends, key=lambda e: e.seq)
    assert arrows(tab, events.index(first))[0] == [(0, 3, 3)]
    assert "sent rank 3 the gradients of the part" in state(tab)["caption"]
    assert arrows(tab, events.index(second))[0] == [(0, 3, 0)]
    assert "sent the sums of its own part" in state(tab)["caption"]


@pytest.mark.parametrize(
    ("stage", "told"),
    [
        ("zero3", {"forward": "gathered just before its turn and released after it", "backward": "gathered once more"}),
        ("zero1", {"forward": "so nothing is sent", "backward": "whole ones stay", "share": "sends the 1/4"}),
        (
            "ddp",
            {"forward": "so nothing is sent", "backward": "all of them make the same", "update": "the same update"},
        ),
        ("fsdp2", {"forward": "gathered just before its turn and released after it", "update": "only the 1/4"}),
    ],
)
def test_each_act_of_a_step_has_a_sentence_that_follows_from_the_recording(recordings, show, stage, told):
    tab = show(recordings[stage])
    acts = tab.evaluate(f"Object.fromEntries({PLAYER}.story.acts.map((act, i) => [act, {PLAYER}.story.tell(i)]))")
    for act, words in told.items():
        assert words in acts[act]
    assert set(acts) - {"aside"} == {"setup", "forward", "backward", "update"} | (
        {"share"} if stage == "zero1" else set()
    )
    now = state(tab)
    assert tab.locator(".zl-story").inner_text() == now["story"]
    # It opens where something moves: a gather of the first forward, or where nothing is gathered, a reduction.
    assert now["story"] == acts["forward" if stage in ("zero3", "fsdp2") else "backward"]


def test_while_it_plays_the_story_stays_with_one_rank(recording, show):
    tab = show(recording, "#event=700")
    rank = state(tab)["event"]["rank"]
    tab.keyboard.press("Space")
    seen = []
    for _ in range(30):
        seen.append(tab.evaluate(f"[{PLAYER}.index, {PLAYER}.scene.why.textContent]"))
        tab.wait_for_timeout(20)
    events = in_order(recording)
    for index, story in seen:
        own = max(place for place in range(index + 1) if events[place].rank == rank)
        assert story == tab.evaluate(f"{PLAYER}.story.tell({own})")


def test_it_steps_by_unit(recording, show):
    tab = show(recording, "#event=400")
    first = state(tab)["event"]
    tab.keyboard.press("u")
    second = state(tab)["event"]
    assert second["rank"] == first["rank"]
    assert second["unit"] not in (None, first["unit"])
    tab.keyboard.press("Shift+U")
    assert state(tab)["index"] < second["index"]


def test_keys_wheel_and_buttons_zoom_and_pan_and_the_cursor_stays_in_view(recording, show):
    tab = show(recording, "#event=400")
    start, end = state(tab)["view"]
    tab.keyboard.press("i")
    zoomed = state(tab)["view"]
    assert zoomed[1] - zoomed[0] == pytest.approx((end - start) / 2)
    assert zoomed[0] <= state(tab)["time"] <= zoomed[1]
    tab.keyboard.press("d")
    assert state(tab)["view"][0] == pytest.approx(zoomed[0] + (zoomed[1] - zoomed[0]) / 4)
    tab.get_by_role("button", name="No zoom").click()
    assert state(tab)["view"] == [start, end]
    box = box_of(tab, "timeline")
    # Beside the current event: where zooming takes that out of view, the view follows it instead.
    x = round(tab.evaluate(f"{PLAYER}.axis.x({PLAYER}.state().time)")) + 2
    tab.mouse.move(box["x"] + x, box["y"] + 30)
    under = tab.evaluate(f"{PLAYER}.axis.t({x})")
    tab.keyboard.down("Control")
    tab.mouse.wheel(0, -300)
    tab.keyboard.up("Control")
    until(tab, f"{PLAYER}.state().view[1] - {PLAYER}.state().view[0] < {(end - start) * 0.6}")
    assert tab.evaluate(f"{PLAYER}.axis.t({x})") == pytest.approx(under, rel=1e-6)
    before = state(tab)["view"]
    tab.keyboard.down("Shift")
    tab.mouse.down()
    tab.mouse.move(box["x"] + x - 100, box["y"] + 30, steps=3)
    tab.mouse.up()
    tab.keyboard.up("Shift")
    assert state(tab)["view"][0] > before[0]
    tab.get_by_role("button", name="Zoom out").click()
    assert state(tab)["view"][1] - state(tab)["view"][0] > (before[1] - before[0]) * 1.5


def test_the_filter_leaves_one_rank_category_and_unit_and_steps_stop_only_there(recording, show):
    tab = show(recording, "#event=400")
    tab.keyboard.press("f")
    tab.get_by_label("Rank", exact=True).select_option("2-2")
    tab.get_by_label("Unit", exact=True).select_option("blocks.1")
    tab.get_by_label("Category", exact=True).select_option("gradients")
    tab.keyboard.press("Escape")
    assert not tab.locator(".zl-filter").is_visible()
    assert tab.locator(".zl-only").inner_text() == "only rank 2, gradients, blocks.1"
    tab.keyboard.press("ArrowRight")
    event = state(tab)["event"]
    assert (event["rank"], event["unit"]) == (2, "blocks.1")
    labels = [label["text"] for label in tab.evaluate(f"{PLAYER}.labels()")["ownership"]]
    assert "rank 2" in labels
    assert "rank 1" not in labels
    tab.evaluate(f"{PLAYER}.setFilter({{ranks: null, category: null, unit: null}})")
    assert not tab.locator(".zl-only").is_visible()


def test_a_click_on_a_ranks_name_shows_it_alone_and_again_all(recording, show):
    tab = show(recording)
    box = box_of(tab, "ownership")
    tab.mouse.click(box["x"] + 40, box["y"] + 90)
    assert state(tab)["filter"]["ranks"] == [1, 1]
    tab.mouse.click(box["x"] + 40, box["y"] + 30)
    assert state(tab)["filter"]["ranks"] is None


def test_the_address_is_a_link_to_the_event(recording, show):
    tab = show(recording)
    tab.evaluate(f"{PLAYER}.goto(321)")
    until(tab, "location.hash.includes('event=322')")
    again = show(recording, tab.evaluate("location.hash"))
    assert state(again)["index"] == 321


def test_the_address_also_names_the_beat_where_the_event_that_is_shown_ended_in_the_one_before(recordings, show):
    tab = show(recordings["ddp"], story=True)
    told = f"{PLAYER}.beats.at({PLAYER}.clock.time)"
    place = tab.evaluate(f"""() => {{
      const {{ beats, model }} = {PLAYER};
      return beats.list.findIndex(({{ t0 }}, k) => beats.at(model.columns.t_end[model.at(t0)]) !== k);
    }}""")
    tab.evaluate(f"{PLAYER}.showTime({PLAYER}.beats.list[{place}].t0)")
    assert tab.evaluate(told) == place > 0
    until(tab, f"location.hash.endsWith('&beat={place + 1}')")
    assert show(recordings["ddp"], tab.evaluate("location.hash"), story=True).evaluate(told) == place
    tab.evaluate(f"{PLAYER}.goto(0)")
    until(tab, "location.hash === '#event=1'")


def test_while_a_hand_drags_the_address_waits(recording, show):
    tab = show(recording)
    written = tab.evaluate(f"""() => {{
      const before = location.hash;
      for (let k = 0; k < 500; k++) {PLAYER}.scrub(k);
      return location.hash !== before;
    }}""")
    assert not written
    until(tab, "location.hash.includes('event=500')")


def test_two_fingers_zoom(recording, browser, show):
    tab = show(recording, "#event=400")
    width = state(tab)["view"][1] - state(tab)["view"][0]
    tab.evaluate("""() => {
      const box = document.querySelector('.zl-timeline .zl-layers');
      const { left, top } = box.getBoundingClientRect();
      const send = (type, id, x) => box.dispatchEvent(new PointerEvent(type, {
        pointerId: id, pointerType: 'touch', clientX: left + x, clientY: top + 20, bubbles: true, button: 0 }));
      box.setPointerCapture = () => {};
      send('pointerdown', 1, 400); send('pointerdown', 2, 500);
      send('pointermove', 1, 395); send('pointermove', 1, 300); send('pointermove', 2, 600);
      send('pointerup', 1, 300); send('pointerup', 2, 600);
    }""")
    assert state(tab)["view"][1] - state(tab)["view"][0] < width / 2


def test_a_finger_that_scrolls_the_page_over_the_timeline_moves_no_event_and_one_that_goes_sideways_scrubs(show):
    tab = show(made_up(4, 5, 2), "#view=timeline", story=True)
    tab.evaluate("document.body.style.paddingBottom = '2000px'")
    box = tab.locator(".zl-timeline .zl-layers").bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + 20
    session = tab.context.new_cdp_session(tab)
    session.send("Emulation.setTouchEmulationEnabled", {"enabled": True})

    def touch(kind, *points):
        points = [{"x": x + dx, "y": y + dy} for dx, dy in points]
        session.send("Input.dispatchTouchEvent", {"type": f"touch{kind}", "touchPoints": points})

    before = state(tab)["index"]
    touch("Start", (0, 0))
    for far in range(5, 120, 15):
        touch("Move", (0, -far))
    touch("End")
    until(tab, "window.scrollY > 50")
    assert state(tab)["index"] == before
    tab.evaluate("window.scrollTo(0, 0)")
    touch("Start", (0, 0))
    for far in range(5, 120, 15):
        touch("Move", (far, 0))
    touch("End")
    scrubbed = state(tab)["index"]
    assert scrubbed != before
    touch("Start", (-200, 0))
    touch("End")
    assert state(tab)["index"] not in (before, scrubbed), "a tap goes there"
    session.send("Emulation.setTouchEmulationEnabled", {"enabled": False})


def test_a_text_that_has_the_focus_scrolls_by_the_keys_that_elsewhere_move_the_player(show):
    tab = show(made_up(4, 5, 2), height=420)
    before = state(tab)["index"]
    tab.keyboard.press("?")
    tab.locator(".zl-help").focus()
    for key in ("ArrowDown", "PageDown", "End", "Space"):
        tab.keyboard.press(key)
    assert state(tab)["index"] == before
    assert not state(tab)["playing"]
    until(tab, "document.querySelector('.zl-help').scrollTop > 0")
    tab.keyboard.press("ArrowRight")
    assert state(tab)["index"] == before + 1


def test_where_the_timeline_stands_without_memory_its_axis_has_numbers(show):
    tab = show(made_up(4, 5, 2), "#view=timeline", story=True)
    texts = [label["text"] for label in tab.evaluate("window.zerolabPlayers[0].labels()")["timeline"]]
    assert any(text.startswith("+") and text.endswith("µs") for text in texts)
    tab = show(made_up(4, 5, 2))
    assert not any(label["text"].startswith("+") for label in tab.evaluate("zerolabPlayers[0].labels()")["timeline"])
