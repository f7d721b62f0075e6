"""More than eight ranks: one drawn whole, all of them as a heat map, and what they hold together."""

from dataclasses import replace
from statistics import median_low

import pytest
from on_cpus import CPU
from showing import changed, in_order, made_up, state, texts, until
from test_page import overlaps

from zerolab import simulate
from zerolab.player import page

pytestmark = pytest.mark.browser
PLAYER = "window.zerolabPlayers[0]"
PANE = f"{PLAYER}.panes.ownership"
SHARD = 1024
"""Elements of a unit that a rank owns in a recording that is made up."""

# The colour of a rank's line in the map of a category, at a place within a unit between 0 and 1, as red, green, blue.
PIXEL = f"""([rank, category, unit, at]) => {{
  const {{ pen, heat }} = {PANE};
  const {{ x, y, width, height }} = heat.box(rank, category, unit);
  const dot = [x + at * width, y + height / 2].map((one) => Math.floor(one * pen.scale));
  const copy = new OffscreenCanvas(1, 1).getContext("2d");
  copy.drawImage(pen.canvas, ...dot, 1, 1, 0, 0, 1, 1);
  return [...copy.getImageData(0, 0, 1, 1).data].slice(0, 3);
}}"""
# All maps, as one text.
MAPS = f"""() => {{
  const {{ pen, heat }} = {PANE};
  const copy = document.createElement("canvas");
  [copy.width, copy.height] = [pen.canvas.width, pen.canvas.height];
  copy.getContext("2d").drawImage(pen.canvas, 0, -heat.top * pen.scale);
  return copy.toDataURL();
}}"""


@pytest.fixture(scope="module")
def sixteen():
    return made_up(16, 4, 2)


@pytest.fixture(scope="module")
def simulated():
    # Over NCCL a shard has a multiple of 8 elements, and the last of so many ranks would have none of a small unit.
    return simulate("zero2", world_size=1024, model="gpt-tiny", hardware=CPU).recordings["zero2"]


def recorded_peaks(tab):
    return tab.evaluate(f"{PLAYER}.model.peaks.map((peak) => peak.bytes)")


def colour(tab, rank, unit, at, category="parameters"):
    return tuple(tab.evaluate(PIXEL, [rank, category, unit, at]))


def share(tab, part, ranks):
    """The colour of a share; of 0 that of nothing."""
    if not part:
        text = tab.evaluate(f"{PLAYER}.palette.ghost")
        return tuple(int(text[k : k + 2], 16) for k in (1, 3, 5))
    text = tab.evaluate(f"{PLAYER}.palette.share({part}, {ranks})")
    return tuple(int(channel) for channel in text[4:-1].split(","))


def bars(tab):
    return [label["text"] for label in tab.evaluate(f"{PLAYER}.panes.bars.pen.labels")]


def place(recording, rank, op, unit, step):
    """The place among all events of one of them."""
    return next(
        k for k, e in enumerate(in_order(recording)) if (e.rank, e.op, e.unit, e.step) == (rank, op, unit, step)
    )


def click(tab, rank, category="parameters", unit="blocks.2"):
    box = tab.locator(".zl-ownership .zl-layers").bounding_box()
    at = tab.evaluate(f"{PANE}.heat.box({rank}, '{category}', '{unit}')")
    tab.mouse.click(box["x"] + at["x"] + at["width"] / 2, box["y"] + at["y"] + at["height"] / 2)


def test_one_rank_is_drawn_whole_and_all_as_a_heat_map_whose_colour_is_the_share_of_a_unit(sixteen, show):
    tab = show(sixteen, f"#event={place(sixteen, 15, 'hold', 'blocks.3', 1)}", story=True)
    assert state(tab)["focus"] == 0
    assert {"rank 0", "0", "15"} <= set(texts(tab, "ownership"))
    assert "rank 5" not in texts(tab, "ownership")
    held = state(tab)["held"]
    for rank in range(16):
        for unit in ("blocks.0", "blocks.2", "blocks.3"):
            spans = held[rank]["parameters"][unit]
            part = sum(stop - start for start, stop in zip(spans[::2], spans[1::2], strict=True)) / (16 * SHARD)
            for other in range(16):
                at = (other + 0.5) * SHARD
                here = any(start <= at < stop for start, stop in zip(spans[::2], spans[1::2], strict=True))
                assert colour(tab, rank, unit, (other + 0.5) / 16) == share(tab, part if here else 0, 16)


def test_while_it_plays_on_the_heat_map_is_what_it_would_be_after_a_jump(sixteen, show):
    tab = show(sixteen, "#event=300", story=True)
    seen = set()
    for event in (301, 340, 420, 330, 290):
        tab.evaluate(f"{PLAYER}.goto({event})")
        moved = tab.evaluate(MAPS)
        tab.evaluate(f"{PLAYER}.redraw()")
        assert tab.evaluate(MAPS) == moved
        seen.add(moved)
    assert len(seen) > 2


def test_a_click_on_the_heat_map_and_up_and_down_choose_the_rank_in_focus(sixteen, show):
    tab = show(sixteen, story=True)
    click(tab, 11)
    assert state(tab)["focus"] == 11
    assert "rank 11" in texts(tab, "ownership")
    for key, wanted in (("ArrowDown", 12), ("ArrowUp", 11), ("Shift+ArrowUp", 3), ("Shift+ArrowUp", 0),
                        ("Shift+ArrowDown", 8), ("Shift+ArrowDown", 15), ("ArrowDown", 15)):  # fmt: skip
        tab.keyboard.press(key)
        assert state(tab)["focus"] == wanted


def test_the_mirror_says_which_rank_is_in_focus_and_what_it_holds(sixteen, show):
    tab = show(sixteen, story=True)
    tab.keyboard.press("ArrowDown")
    said = tab.locator(".zl-mirror > p").all_inner_texts()
    assert said[0] == "Rank 1 is in focus: up and down lead to others."
    cells = tab.locator(".zl-mirror tr[data-rank='1'] td").all_inner_texts()
    assert f"{cells[0]} of parameters, {cells[1]} of gradients, {cells[2]} of optimizer state" in said[1]
    few = show(made_up(8, 2), story=True)
    assert few.locator(".zl-mirror > p").all_inner_texts() == ["", ""]
    assert state(few)["focus"] is None


def test_the_address_keeps_the_rank_in_focus(sixteen, show):
    tab = show(sixteen, "#rank=9", story=True)
    assert state(tab)["focus"] == 9
    tab.keyboard.press("ArrowDown")
    until(tab, "location.hash.includes('rank=10')")
    tab.keyboard.press("Shift+ArrowUp")
    tab.keyboard.press("ArrowUp")
    tab.keyboard.press("ArrowUp")
    until(tab, "!location.hash.includes('rank')")
    tab.evaluate("void (location.hash = '#rank=12')")
    until(tab, f"{PLAYER}.state().focus === 12")


def test_pieces_fly_to_and_from_the_rank_in_focus_alone_and_the_others_are_one_band(sixteen, show):
    tab = show(sixteen, story=True)
    for rank in (0, 7):
        tab.evaluate(f"{PLAYER}.goto({place(sixteen, 0, 'all_gather', 'blocks.2', 2)})")
        tab.evaluate(f"{PLAYER}.steps.beat({PLAYER}.beats.at({PLAYER}.clock.time))")
        now = state(tab)
        assert {piece["unit"] for piece in now["moving"]} == {"blocks.2"}
        assert {piece["from"] for piece in now["moving"] if piece["to"] == rank} == set(range(16)) - {rank}
        assert all(rank in (piece["from"], piece["to"]) for piece in now["moving"])
        ends = [e.t_end for e in in_order(sixteen) if (e.op, e.unit, e.step) == ("all_gather", "blocks.2", 2)]
        over = sum(end <= now["time"] for end in ends)
        assert {str(over), "of 16"} <= set(texts(tab, "ownership"))
        tab.keyboard.press("Shift+ArrowDown")
        tab.keyboard.press("ArrowUp")


def test_the_bar_and_the_memory_of_the_rank_in_focus_have_formula_and_peak(sixteen, show):
    tab = show(sixteen, "#rank=3&view=memory", story=True)
    said = texts(tab, "memory")
    assert {"rank 3", "all 16 ranks", "lowest to highest"} <= set(said)
    assert any(text.startswith("formula ") for text in said)
    assert any(text.startswith("peak ") for text in said)
    assert overlaps(tab.evaluate(f"{PLAYER}.labels()")["memory"]) == []


def test_lowest_median_and_highest_are_those_of_all_ranks_at_this_moment(sixteen, show):
    tab = show(sixteen, f"#event={place(sixteen, 9, 'all_gather', 'blocks.1', 2)}", story=True)
    live = [sum(one.values()) for one in state(tab)["live"]]
    assert min(live) < max(live)
    three = tab.evaluate(
        f"{PLAYER}.panes.bars.pen.labels.map((one) => one.text).filter((one) => /^(lowest|median|highest)/.test(one))"
    )
    wanted = [live.index(one) for one in (min(live), median_low(live), max(live))]
    assert [int(text.rsplit(" ", 1)[1]) for text in three] == wanted
    assert "all 16 ranks" in bars(tab)


def test_the_bar_of_the_rank_in_focus_stays_as_high_where_the_filter_leaves_one_line(sixteen, show):
    tab = show(sixteen, story=True)
    height = f"{PLAYER}.panes.bars.row(0).height"
    before = tab.evaluate(height)
    assert before >= 46, "the bar and its number"
    tab.evaluate(f"{PLAYER}.setFilter({{ category: 'optimizer_state' }})")
    assert tab.evaluate(height) >= 46
    assert overlaps(tab.evaluate(f"{PLAYER}.panes.bars.pen.labels")) == []


def test_another_rank_comes_into_focus_while_it_plays(sixteen, show):
    tab = show(sixteen, story=True)
    tab.keyboard.press("Space")
    until(tab, f"{PLAYER}.state().moving.length > 0")
    before = state(tab)
    tab.keyboard.press("ArrowDown")
    until(tab, f"{PLAYER}.state().time > {before['time']}")
    now = state(tab)
    assert now["playing"]
    assert now["focus"] == 1
    assert all(1 in (piece["from"], piece["to"]) for piece in now["moving"])


def test_several_ranks_in_a_line_are_combined_as_a_share(show):
    recording = made_up(1024, 2, 2)
    tab = show(recording, f"#event={place(recording, 900, 'hold', 'blocks.1', 1)}", story=True)
    per = tab.evaluate(f"{PANE}.heat.per")
    assert per > 1
    index = state(tab)["index"]
    line = tab.evaluate(f"{PANE}.heat.ranks.slice(Math.floor(900 / {per}) * {per}).slice(0, {per})")
    held = tab.evaluate(
        f"""(line) => line.map((rank) => {{
          const spans = {PLAYER}.model.held(rank, "parameters", "blocks.1", {index});
          return spans.reduce((sum, one, k) => sum + (k % 2 ? one : -one), 0);
        }})""",
        line,
    )
    part = sum(held) / (len(line) * 1024 * SHARD)
    assert 1 / 1024 <= part <= 1
    assert colour(tab, line[0], "blocks.1", (line[0] + 0.5) / 1024) == share(tab, part, 1024)


def test_ranks_that_a_simulation_did_not_write_out_lie_in_the_map_each_with_its_own_shard(simulated, show):
    tab = show(simulated, story=True)
    assert "8\N{EN DASH}1,023 like 7" in texts(tab, "ownership")
    for rank in (40, 700, 1000):
        assert colour(tab, rank, "blocks.1", (rank + 0.5) / 1024, "optimizer_state") == share(tab, 1 / 1024, 1024)
        assert colour(tab, rank, "blocks.1", 0.5 if rank != 512 else 0, "parameters") == share(tab, 1, 1024)
    click(tab, 700)
    assert state(tab)["focus"] == 7, "the last one that was recorded"


def test_the_row_in_focus_is_filled_where_owners_were_not_written_out(simulated, show):
    tab = show(simulated, story=True)
    pixel = tab.evaluate(
        f"""() => {{
          const {{ pen }} = {PANE};
          const cell = {PANE}.cell(0, "parameters", "blocks.1");
          const at = [cell.x + cell.width * 0.7, cell.y + cell.height / 2].map((one) => Math.floor(one * pen.scale));
          return pen.context.getImageData(...at, 1, 1).data[3];
        }}"""
    )
    assert pixel > 128


def test_a_collective_counts_the_ranks_that_a_simulation_did_not_write_out(simulated, show):
    tab = show(simulated, story=True)
    last = "(beats) => beats.findLastIndex((beat) => beat.op === 'reduce_scatter')"
    tab.evaluate(f"{PLAYER}.steps.beat(({last})({PLAYER}.beats.list))")
    assert {"0", "of 1,024"} <= set(texts(tab, "ownership"))


def test_over_the_heat_map_the_pointer_is_told_whose_line_it_is_and_what_a_click_does(sixteen, show):
    tab = show(sixteen, f"#event={place(sixteen, 3, 'hold', 'blocks.3', 2)}", story=True)
    before = state(tab)
    box = tab.locator(".zl-ownership .zl-layers").bounding_box()
    at = tab.evaluate(f"{PANE}.heat.box(9, 'optimizer_state', 'blocks.2')")
    tab.mouse.move(box["x"] + at["x"] + 5, box["y"] + at["y"] + 2)
    said = tab.locator(".zl-tip").inner_text()
    assert "rank 9" in said
    assert "optimizer state of blocks.2: 1,024 of 16,384 elements" in said
    assert "Click to draw rank 9 whole." in said
    assert state(tab)["hover"] is None
    tab.mouse.move(box["x"] + 3, box["y"] - 60)
    assert tab.locator(".zl-tip").is_hidden()
    assert state(tab)["index"] == before["index"]


def test_of_ranks_whose_recordings_did_not_arrive_the_map_says_so(show):
    whole = made_up(40, 2)
    there = [rank for rank in whole.ranks if rank.rank < 12 or rank.rank >= 36]
    tab = show(changed(whole, ranks=there, simulated=False), "#event=40", story=True)
    assert "No recording of ranks 12 to 35 arrived." in texts(tab, "ownership")
    place = tab.evaluate(f"{PANE}.heat.box(13, 'parameters', 'blocks.1')")
    assert place is not None
    assert colour(tab, 13, "blocks.1", 0.9) == (0, 0, 0), "nothing is painted"
    tab.evaluate(f"{PLAYER}.goto(200)")
    for _ in range(12):
        tab.keyboard.press("ArrowDown")
    assert state(tab)["focus"] == 36


def test_a_rank_alone_and_eight_ranks_are_drawn_as_ever(sixteen, show):
    tab = show(sixteen, story=True)
    box = tab.locator(".zl-ownership .zl-layers").bounding_box()
    tab.keyboard.press("ArrowDown")
    tab.mouse.click(box["x"] + 40, box["y"] + 28)
    assert state(tab)["filter"]["ranks"] == [1, 1]
    assert state(tab)["focus"] is None
    tab.mouse.click(box["x"] + 40, box["y"] + 28)
    assert state(tab)["filter"]["ranks"] is None
    assert state(tab)["focus"] == 1


@pytest.mark.parametrize("width", [390, 1280])
def test_no_text_overlaps_and_none_is_cut_off(sixteen, simulated, show, width):
    for recording, address in ((sixteen, ""), (simulated, ""), (made_up(200, 30), "#rank=137")):
        tab = show(recording, address, story=True, width=width, height=844)
        for by_events in ("true", "false"):
            tab.evaluate(f"{PLAYER}.tellEvents({by_events})")
            labels = tab.evaluate(f"{PLAYER}.labels()")["ownership"]
            assert overlaps(labels) == []
            room = tab.evaluate(f"{PANE}.pen.width")
            assert all(one["x"] >= 0 and one["x"] + one["width"] <= room for one in labels)


def test_on_a_phone_what_all_ranks_hold_is_told_in_whole_words(sixteen, show):
    tab = show(sixteen, "#view=memory", story=True, width=390, height=844)
    texts = [one["text"] for one in tab.evaluate(f"{PLAYER}.labels()")["memory"]]
    highest = f"{max(recorded_peaks(tab)) / 1000:.0f} kB"
    said = texts.index("all 16")
    assert texts[said : said + 3] == ["all 16", "ranks", f"≤ {highest}"]
    assert overlaps(tab.evaluate(f"{PLAYER}.labels()")["memory"]) == []


@pytest.mark.parametrize(("view", "pane"), [("timeline", ".zl-timeline"), ("memory", ".zl-memory")])
def test_on_a_phone_the_pane_that_was_asked_for_is_in_view(sixteen, show, view, pane):
    tab = show(sixteen, f"#view={view}", story=True, width=390, height=844)
    asked = tab.locator(f"{pane} .zl-layers").first.bounding_box()
    body = tab.locator(".zl-body").bounding_box()
    assert body["y"] <= asked["y"]
    assert asked["y"] + min(asked["height"], 200) <= body["y"] + body["height"]
    assert asked["y"] < tab.locator(".zl-ownership").bounding_box()["y"]


def test_two_recordings_have_the_same_rank_in_focus(sixteen, show):
    later = [replace(rank, events=rank.events[:-2]) for rank in sixteen.ranks]
    tab = show(page(sixteen, changed(sixteen, ranks=later)), story=True, width=1400, height=1000)
    tab.keyboard.press("ArrowDown")
    assert tab.evaluate("window.zerolabPlayers.map((one) => one.state().focus)") == [1, 1]
    assert tab.evaluate("window.zerolabPlayers.every((one) => one.labels().ownership.some((l) => l.text === 'rank 1'))")


def test_the_walk_brings_the_rank_that_it_speaks_of_into_focus(sixteen, show):
    tab = show(sixteen, "#rank=9", story=True)
    tab.keyboard.press("w")
    assert state(tab)["focus"] == 0
    chapters = tab.evaluate(f"{PLAYER}.walk.chapters.length")
    for chapter in range(chapters):
        tab.evaluate(f"{PLAYER}.walk.show({chapter})")
    tab.keyboard.press("Escape")


def test_axe_finds_nothing_in_the_picture_of_many_ranks(sixteen, show, require):
    from test_scale import part

    axe = part(require, "axe_playwright_python.sync_playwright", "axe-playwright-python")
    for scheme in ("light", "dark"):
        tab = show(sixteen, story=True, scheme=scheme)
        found = axe.Axe().run(tab)
        assert found.violations_count == 0, found.generate_report()


def test_the_picture_opens_as_it_is_drawn_again(sixteen, show):
    tab = show(sixteen, story=True)
    height = f"{PANE}.pen.height"
    opened = tab.evaluate(height)
    tab.evaluate(f"{PLAYER}.redraw()")
    assert tab.evaluate(height) == opened
