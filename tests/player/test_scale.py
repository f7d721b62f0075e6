"""The player at the ends of its range: many ranks, units and events, small and large screens, and help for all eyes."""

import io
import os
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import pytest
from showing import DRAWN, changed, in_order, made_up, state, until
from test_page import overlaps

from zerolab.player import first_difference, page
from zerolab.player.difference import in_one_line
from zerolab.tables import show_bytes

pytestmark = pytest.mark.browser
PLAYER = "window.zerolabPlayers[0]"
EXPECTED = Path(__file__).parent / "expected"


def part(require, module, what):
    """A module that only some tests need; a skip without it, or a failure where everything is required."""
    try:
        return import_module(module)
    except ImportError:
        require(found=None, what=what, remedy="pip install 'zerolab[test]'")


def test_64_ranks_have_a_row_each_over_time_and_no_text_overlaps(show):
    recording = made_up(64, 100)
    assert len(recording.events) > 20_000
    assert len(page(recording).encode()) <= 2_000_000
    tab = show(recording, "#event=15000", height=2400)
    labels = tab.evaluate(f"{PLAYER}.labels()")
    names = [label["text"] for label in labels["ownership"]]
    assert "rank 0" in names
    assert tab.evaluate(f"{PLAYER}.model.rows.length") == 64
    for pane, boxes in labels.items():
        assert overlaps(boxes) == [], pane


def test_1024_ranks_are_summed_up_in_rows_over_time(show):
    tab = show(made_up(1024, 2), "#event=9000", height=1400)
    assert tab.evaluate(f"{PLAYER}.model.rows.length") == 32
    for pane, boxes in tab.evaluate(f"{PLAYER}.labels()").items():
        assert overlaps(boxes) == [], pane
    legend = tab.locator(".zl-timeline .zl-legend").first
    assert "a row: one of 32 ranks, that in focus or of the highest peak" in legend.inner_text()
    tab.evaluate(f"{PLAYER}.setFilter({{ ranks: [0, 31] }})")
    assert tab.evaluate(f"{PLAYER}.model.rows.length") == 32
    assert tab.evaluate(f"{PLAYER}.model.rows[5].from") == 5
    assert "a row:" not in legend.inner_text()


def test_of_many_ranks_the_one_in_focus_has_the_row_over_time(show):
    tab = show(made_up(128, 2), "#event=900&rank=70&view=timeline", height=1400, story=True)
    drawn = f"{PLAYER}.model.rows.map(({{ rank }}) => rank)"
    names = f"{PLAYER}.labels().timeline.map(({{ text }}) => text)"
    bars = f"""() => {{
      const {{ model, panes }} = {PLAYER};
      const row = (y) => model.rows[Math.floor(y / panes.timeline.rows.pitch)];
      const of = ({{ index, y }}) => [model.columns.rank[index], row(y).rank];
      return panes.timeline.bars.map(of);
    }}"""
    ranks = tab.evaluate(drawn)
    assert len(ranks) == 32
    assert ranks[17] == 70
    assert "rank 70" in tab.evaluate(names)
    tab.keyboard.press("ArrowDown")
    assert tab.evaluate(drawn)[17] == 71
    assert "rank 71" in tab.evaluate(names)
    assert "rank 70" not in tab.evaluate(names)
    seen = tab.evaluate(bars)
    assert {"71"} == {str(rank) for rank, row in seen if row == 71}
    assert all(rank == row for rank, row in seen)
    tab.evaluate(f"{PLAYER}.setFilter({{ ranks: null }})")
    tab.keyboard.press("Shift+ArrowUp")
    assert tab.evaluate(drawn)[15] == 63
    assert tab.evaluate(drawn)[17] == ranks[18] - 4


@pytest.mark.parametrize("size", [(320, 1400), (900, 1000), (1280, 800), (3840, 2160)])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing(recording, show, size, scheme, require):
    axe = part(require, "axe_playwright_python.sync_playwright", "axe-playwright-python")
    tab = show(recording, "#event=400", width=size[0], height=size[1], scheme=scheme)
    tab.keyboard.press("f")
    found = axe.Axe().run(tab)
    assert found.violations_count == 0, found.generate_report()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_in_two_recordings_with_the_keys_open(recordings, show, scheme, require):
    axe = part(require, "axe_playwright_python.sync_playwright", "axe-playwright-python")
    tab = show(page(recordings["zero3"], recordings["ddp"]), "#event=400", width=1400, height=1200, scheme=scheme)
    tab.keyboard.press("?")
    found = axe.Axe().run(tab)
    assert found.violations_count == 0, found.generate_report()


@pytest.mark.parametrize("width", [320, 480])
def test_on_a_phone_nothing_overlaps_and_nothing_is_cut_off(recording, show, width):
    tab = show(recording, "#event=400", width=width, height=1500)
    assert tab.evaluate("document.documentElement.scrollWidth") == width
    for pane, boxes in tab.evaluate(f"{PLAYER}.labels()").items():
        assert overlaps(boxes) == [], pane


def test_with_less_motion_asked_for_playing_goes_from_event_to_event(recording, browser, tmp_path):
    tab = browser.new_page(reduced_motion="reduce")
    file = tmp_path / "calm.html"
    file.write_text(page(recording), encoding="utf-8")
    tab.goto(file.as_uri())
    before = state(tab)["index"]
    tab.keyboard.press("Space")
    until(tab, f"{PLAYER}.state().index > {before}")
    events = in_order(recording)
    assert tab.evaluate(f"{PLAYER}.frame.time") in {event.t_end for event in events}
    tab.close()


def test_high_contrast_has_no_grey_words(recording, browser, tmp_path):
    tab = browser.new_page(contrast="more", color_scheme="dark")
    file = tmp_path / "contrast.html"
    file.write_text(page(recording), encoding="utf-8")
    tab.goto(file.as_uri())
    assert tab.evaluate(f"{PLAYER}.palette.contrast")
    assert tab.evaluate("getComputedStyle(document.querySelector('.zl-facts')).color") == "rgb(255, 255, 255)"
    tab.close()


def test_slides_fill_a_screen_of_16_to_9(recording, show):
    tab = show(recording, "#slides&event=400", width=1920, height=1080)
    box = tab.locator(".zl-player").bounding_box()
    assert [round(box[key]) for key in ("width", "height")] == [1920, 1080]
    assert tab.evaluate("document.documentElement.scrollHeight") == 1080


def test_a_slide_fills_the_window_that_grew_or_shrank_around_it(recording, show):
    tab = show(recording, "#slides&event=400", width=1280, height=720)
    for width, height in ((1920, 1080), (960, 540)):
        tab.set_viewport_size({"width": width, "height": height})
        tab.evaluate(DRAWN)
        assert tab.evaluate("window.zerolabScale") == pytest.approx(width / 1440)
        assert tab.locator("canvas").first.evaluate("(one) => one.width / one.clientWidth") == pytest.approx(
            tab.evaluate("window.zerolabScale * window.devicePixelRatio"), rel=0.02
        )


def test_the_caption_at_the_peak_gives_its_terms(recording, show):
    tab = show(recording, "#event=400")
    tab.keyboard.press("p")
    now = state(tab)
    rank = now["event"]["rank"]
    assert f"is at its peak, {now['peak'][rank]:,} bytes: activations " in now["caption"]
    assert "; formula 849 kB." in now["caption"]
    assert tab.locator(".zl-caption").evaluate("(e) => e.offsetHeight") == 54


def test_two_recordings_have_common_axes_and_the_first_difference_is_marked(recordings, show):
    first, second = recordings["zero3"], recordings["ddp"]
    tab = show(page(first, second), width=1400, height=1200)
    tops = tab.evaluate("window.zerolabPlayers.map((p) => p.top)")
    assert tops[0] == tops[1]
    lengths = [view[1] - view[0] for view in tab.evaluate("window.zerolabPlayers.map((p) => p.state().view)")]
    assert lengths[0] == pytest.approx(lengths[1])
    found = first_difference(first, second)
    event = in_order(first)[found["events"][0]]
    assert (event.op, event.category, event.rank) == ("hold", "parameters", found["rank"])
    assert tab.locator(".zl-mark").count() == 2
    tab.get_by_role("button", name="first difference").click()
    assert f"First difference, on rank {found['rank']}" in tab.locator(".zl-difference").inner_text()
    assert tab.evaluate("window.zerolabPlayers.map((p) => p.index)") == found["events"]
    mark, thumb = (tab.locator(f".zl-{name}").first.bounding_box() for name in ("mark", "thumb"))
    assert abs(mark["x"] + mark["width"] / 2 - thumb["x"] - thumb["width"] / 2) < 3
    middle = tab.evaluate("""() => {
      const steps = window.zerolabPlayers.map((p) => p.model.windows.find((w) => w.step === 1));
      const half = Math.min(...steps.map((w) => w.t1 - w.t0)) / 2; // well before the shorter step ends, where it waits
      const model = window.zerolabPlayers[0].model;
      let index = model.at(steps[0].t0 + half);
      while (model.windowOf(index).step !== 1) index -= 1; // a slower rank may still be before its step
      return index;
    }""")
    tab.evaluate(f"{PLAYER}.goto({middle})")
    since = "window.zerolabPlayers.map((p) => p.clock.time - p.model.windows.find((w) => w.step === 1).t0)"
    times = tab.evaluate(since)
    assert times[0] == pytest.approx(times[1])
    tab.keyboard.press("t")
    assert len(set(tab.evaluate("window.zerolabPlayers.map((p) => p.palette.theme)"))) == 1
    assert first_difference(first, first) is None


def test_what_the_second_keeps_and_sends_beside_the_first_is_said_in_one_line(recordings, show):
    one, other = recordings["zero1"], recordings["zero2"]
    less = one.state["gradients"] - other.state["gradients"]
    assert less == 637_056
    said = in_one_line(one, other)
    assert said.startswith(
        "zero2 keeps 637 kB less than zero1 at the update (gradients \N{MINUS SIGN}637 kB), its peak is "
    )
    assert said.endswith(", and it sends as much.")
    assert " 637 kB more than zero2 at the update (gradients +637 kB)" in in_one_line(other, one)
    sent = recordings["zero3"].sent - one.sent
    assert in_one_line(one, recordings["zero3"]).endswith(f"sends {show_bytes(sent)} more.")
    tab = show(page(one, other), width=1400, height=1200)
    assert tab.locator(".zl-difference strong").inner_text() == said
    loop = changed(one, ranks=[replace(rank, info=replace(rank.info, state=None)) for rank in one.ranks])
    assert in_one_line(loop, other) is None
    assert in_one_line(one, one).startswith("The second keeps as much as the first at the update")
    own = changed(one, ranks=[replace(rank, info=replace(rank.info, stage=None)) for rank in one.ranks])
    assert in_one_line(other, own).startswith("Your loop keeps 637 kB more than zero2 at the update")


def test_zero3_and_fsdp2_part_where_fsdp2_keeps_the_root_for_backward(recordings, show):
    first, second = recordings["zero3"], recordings["fsdp2"]
    found = first_difference(first, second)
    event = in_order(first)[found["events"][0]]
    assert (event.step, event.phase, event.unit, event.category) == (1, "forward", "root", "parameters")
    assert sum(stop - start for start, stop in event.spans) == 3104
    tab = show(page(first, second), width=1400, height=1200)
    tab.get_by_role("button", name="first difference").click()
    assert "zero3: Rank" in tab.locator(".zl-difference").inner_text()
    assert "released the parameters of root" in tab.locator(".zl-difference").inner_text()
    assert tab.evaluate("window.zerolabPlayers.map((p) => p.index)") == found["events"]


def test_the_same_amount_of_other_elements_is_a_difference_too(recording):
    def moved(event):
        return replace(event, spans=((1, 3105),)) if event.spans == ((0, 3104),) else event

    ranks = [replace(rank, events=tuple(map(moved, rank.events))) for rank in recording.ranks]
    found = first_difference(recording, changed(recording, ranks=ranks))
    assert in_order(recording)[found["events"][0]].spans == ((0, 3104),)


def test_on_the_widest_screens_everything_grows_and_stays_sharp(recording, show):
    tab = show(recording, "#event=400", width=3840, height=2160)
    assert tab.evaluate(f"{PLAYER}.panes.timeline.pen.scale") == 2
    assert tab.locator(".zl-player").bounding_box()["width"] == 3200
    place = tab.locator(".zl-timeline .zl-layers").bounding_box()
    # Everything is drawn twice as large, so this is the player's own point (500, 10).
    meant = tab.evaluate(f"{PLAYER}.panes.timeline.hit(500, 10) ?? {PLAYER}.model.at({PLAYER}.axis.t(500))")
    tab.mouse.click(place["x"] + 2 * 500, place["y"] + 2 * 10)
    assert state(tab)["event"]["index"] == meant != 400


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_picture_is_the_expected_one(show, tmp_path, theme, require):
    image = part(require, "PIL.Image", "Pillow")
    compare = part(require, "pixelmatch.contrib.PIL", "pixelmatch").pixelmatch
    tab = show(made_up(4, 5, 2), f"#event=150&text=off&theme={theme}")
    shot = tab.screenshot(animations="disabled")
    expected = EXPECTED / f"{theme}.png"
    if os.environ.get("ZEROLAB_NEW_PICTURES") == "1":  # after a change of the design that is meant
        image.open(io.BytesIO(shot)).convert("RGB").save(expected, optimize=True)
    actual, wanted = image.open(io.BytesIO(shot)).convert("RGBA"), image.open(expected).convert("RGBA")
    difference = image.new("RGBA", wanted.size)
    assert actual.size == wanted.size
    different = compare(actual, wanted, difference, threshold=0.1)
    if different > 0.01 * wanted.size[0] * wanted.size[1]:
        for name, picture in (("expected", wanted), ("actual", actual), ("difference", difference)):
            picture.save(tmp_path / f"{theme}-{name}.png")
        pytest.fail(f"{different} pixels differ from {expected.name}; all three pictures are in {tmp_path}")
