"""Linked panes, steps, zoom, filter and links of the player, in a real browser."""

import pytest
from showing import in_order, state, until

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


def test_arrows_go_from_the_sender_of_a_collective_to_all_others(recording, show):
    tab = show(recording)
    flows = tab.evaluate(f"""() => {{
      const {{ model }} = {PLAYER};
      const found = {PLAYER}.events.find((e) => e.kind === 'collective' && e.parent === null && e.unit && e.rank === 2);
      {PLAYER}.goto(found.index);
      return [found.rank, found.op];
    }}""")
    assert flows == [2, "all_gather"]


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
    tab.mouse.move(box["x"] + 400, box["y"] + 30)
    under = tab.evaluate(f"{PLAYER}.axis.t(400)")
    tab.keyboard.down("Control")
    tab.mouse.wheel(0, -300)
    tab.keyboard.up("Control")
    until(tab, f"{PLAYER}.state().view[1] - {PLAYER}.state().view[0] < {(end - start) * 0.6}")
    assert tab.evaluate(f"{PLAYER}.axis.t(400)") == pytest.approx(under, rel=1e-6)
    before = state(tab)["view"]
    tab.keyboard.down("Shift")
    tab.mouse.down()
    tab.mouse.move(box["x"] + 300, box["y"] + 30, steps=3)
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
