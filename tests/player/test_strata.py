"""Memory shows what DDP would hold beside it, names the stratum under the pointer, and leaves out what it is to."""

import re
from itertools import pairwise

import pytest
from showing import DRAWN, changed, in_order, made_up, state, texts

from zerolab import theory

pytestmark = pytest.mark.browser
PLAYER = "window.zerolabPlayers[0]"
STATE = ("parameters", "gradients", "optimizer_state")
MINUS = "\N{MINUS SIGN}"


def at_the_update(recording, rank=0):
    """The player's place of the last event of a rank that ended before its last update began."""
    events = in_order(recording)
    update = max((e for e in events if e.rank == rank and e.kind == "optimizer"), key=lambda e: e.t_start)
    return max(place for place, e in enumerate(events) if e.rank == rank and e.t_end <= update.t_start)


def to_stratum(tab, category, share=0.6):
    """Points at the middle of a category of rank 0, and gives what the tooltip says."""
    place = tab.evaluate(
        f"""([category, share]) => {{
          const player = {PLAYER}, [memory] = player.panes.memories, {{ axis, model }} = player;
          const x = axis.left + share * (axis.right - axis.left);
          for (let y = 0; y < memory.rows.pitch; y += 0.5)
            if (memory.hit(model, axis, x, y)?.category === category) return [x, y + 0.5];
        }}""",
        [category, share],
    )
    box = tab.locator(".zl-memory .zl-layers").bounding_box()
    tab.mouse.move(box["x"] + place[0], box["y"] + place[1])
    tab.evaluate(DRAWN)
    return tab.locator(".zl-tip").inner_text().splitlines()


@pytest.mark.parametrize("stage", ["zero1", "zero2", "zero3", "fsdp2"])
def test_what_ddp_would_hold_more_is_what_the_formula_of_ddp_says(recordings, show, stage):
    recording = recordings[stage]
    tab = show(recording, f"#event={at_the_update(recording) + 1}", height=1100)
    held = sum(state(tab)["live"][0][category] for category in STATE)
    whole = sum(theory.state_bytes("ddp", recording.info.num_params, 4).values())
    saved = state(tab)["saved"][0]
    assert held + saved == pytest.approx(whole, rel=2e-3), "padding and step counters are not in the formula"
    assert tab.locator(".zl-mirror tr[data-rank='0'] td[data-of=saved]").text_content() == f"{round(saved):,}"
    said = f"{MINUS}{100 * saved / (held + saved):.0f} %, {saved / 1e6:.2f} MB less than DDP"
    tab.evaluate(f"{PLAYER}.setView('memory')")
    assert said in texts(tab, "memory")


def test_where_nothing_is_saved_or_known_there_is_no_such_outline(recordings, show):
    one_step = made_up(4, 3, steps=1)
    alone = changed(made_up(1, 2), simulated=False)
    for recording in (recordings["ddp"], one_step, alone):
        tab = show(recording)
        assert set(state(tab)["saved"]) == {None}
        assert not any("DDP" in text for text in texts(tab, "memory"))
        assert "DDP" not in tab.locator(".zl-memory .zl-legend").inner_text()
    assert "DDP would hold" in show(recordings["zero1"]).locator(".zl-memory .zl-legend").inner_text()


def test_the_outline_stands_on_the_stack_of_the_story_and_a_line_below_it_says_how_much(recording, show):
    tab = show(recording, story=True)
    bars = tab.evaluate(f"{PLAYER}.panes.bars.pen.labels.map((label) => label.text)")
    assert sum(bool(re.fullmatch(rf"{MINUS}7\d %(, 1\.\d\d MB less than DDP)?", text)) for text in bars) == 4
    most = max(event.live and sum(event.live.values()) for rank in recording.ranks for event in rank.events)
    assert tab.evaluate(f"{PLAYER}.panes.bars.top") > most, "one scale, and room for what DDP would hold"


@pytest.mark.parametrize("how", ["key", "button"])
def test_state_alone_fills_the_axis_until_it_is_asked_for_again(recording, show, how):
    tab = show(recording)
    alone = tab.locator(".zl-memory .zl-alone")

    def ask():
        if how == "key":
            tab.keyboard.press("s")
        else:
            alone.click()

    before = tab.evaluate(f"{PLAYER}.panes.memories[0].top")
    whole = sum(theory.state_bytes("ddp", recording.info.num_params, 4).values())
    ask()
    # As high as DDP's state and the units that are gathered: activations have no part in it.
    assert whole <= tab.evaluate(f"{PLAYER}.panes.memories[0].top") < 1.2 * whole < before
    assert alone.get_attribute("aria-pressed") == "true"
    assert tab.locator(".zl-only").inner_text() == "state alone"
    assert not any(text.startswith("peak") for text in texts(tab, "memory")), "the peak is of everything"
    assert any(text.startswith("formula") for text in texts(tab, "memory"))
    ask()
    assert alone.get_attribute("aria-pressed") == "false"
    assert tab.evaluate(f"{PLAYER}.panes.memories[0].top") == before


def test_a_category_is_left_out_by_a_click_on_its_key_or_by_keyboard_and_keeps_the_focus(recording, show):
    tab = show(recording)
    key = tab.locator(".zl-memory [data-off=activations]")
    key.click()
    assert state(tab)["filter"]["off"] == ["activations"]
    assert key.get_attribute("aria-pressed") == "false"
    assert tab.locator(".zl-only").inner_text() == "without activations"
    other = tab.locator(".zl-memory [data-off=other]")
    other.focus()
    tab.keyboard.press("Enter")
    assert state(tab)["filter"]["off"] == ["activations", "other"]
    assert other.evaluate("one => one === document.activeElement")
    key.click()
    tab.keyboard.press("f")
    tab.get_by_role("button", name="show all").click()
    assert state(tab)["filter"]["off"] is None
    assert other.get_attribute("aria-pressed") == "true"


def test_hovering_over_memory_names_the_stratum_its_bytes_and_who_allocated_it(recording, show):
    tab = show(recording, "#event=400")
    head, text, *_ = to_stratum(tab, "activations")
    hovered = in_order(recording)[state(tab)["hover"]]
    assert hovered.rank == 0
    assert head == f"activations {shown(hovered.live['activations'])} · rank 0"
    assert re.search(r"last \+[\d.]+ [kM]?B", text)
    forward = next(e for e in of_rank_0(recording) if e.op == "forward" and e.unit == "blocks.1" and e.step == 2)
    told = tell(tab, in_order(recording).index(forward), "activations")
    assert re.search(rf"in forward of blocks\.1 \(line {forward.source.line} of \w+\.py\)", told["text"])
    assert to_stratum(tab, "parameters")[0].startswith("parameters ")
    head, text, _ = to_stratum(tab, "ghost")
    assert head.startswith("DDP would hold ")
    assert re.search(rf"state .* instead of .*: {MINUS}\d+ %", text)


def of_rank_0(recording):
    """Rank 0's events as the player goes through them."""
    return [event for event in in_order(recording) if event.rank == 0]


def tell(tab, index, category):
    """What is said of a stratum of rank 0 just after an event."""
    asked = f"(asked) => {PLAYER}.panes.memories[0].tell({PLAYER}.model, asked)"
    return tab.evaluate(asked, {"rank": 0, "index": index, "category": category})


def shown(number):
    """As the player writes bytes."""
    value, unit = (number / 1e6, "MB") if number >= 1e6 else (number / 1e3, "kB")
    return (
        f"{value:.0f} {unit}" if value >= 99.95 else f"{value:.1f} {unit}" if value >= 9.995 else f"{value:.2f} {unit}"
    )


def test_the_stratum_under_the_pointer_lights_up_and_goes_out(recording, show):
    tab = show(recording, "#event=400")
    lit = f"""(() => {{
      const {{ canvas }} = {PLAYER}.panes.memories[0].over;
      const copy = new OffscreenCanvas(canvas.width, canvas.height).getContext("2d", {{ willReadFrequently: true }});
      copy.drawImage(canvas, 0, 0);
      const {{ data }} = copy.getImageData(0, 0, canvas.width, canvas.height);
      let found = 0;
      for (let k = 0; k < data.length; k += 4) found += data[k + 3] > 60;
      return found;
    }})()"""
    before = tab.evaluate(lit)
    to_stratum(tab, "activations")
    assert tab.evaluate(lit) > before + 500
    tab.mouse.move(2, 2)
    tab.evaluate(DRAWN)
    assert tab.evaluate(lit) == before


def test_a_unit_that_is_whole_beside_a_ranks_own_part_is_named_with_its_bytes(recording, show):
    events = in_order(recording)
    padded = {unit.name: unit.padded for unit in recording.units}
    place = next(
        i for i, e in enumerate(events)
        if e.op == "hold" and e.step == 2 and e.rank == 0 and e.category == "parameters"
        and e.unit == "blocks.2" and e.spans == ((0, padded["blocks.2"]),)
    )  # fmt: skip
    tab = show(recording)
    told = tell(tab, place, "parameters")
    assert f"blocks.2 whole +{shown(3 * padded['blocks.2'])}" in told["text"]


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_categories_of_state_go_from_dark_to_light_in_both_themes_and_apart(recording, show, theme):
    tab = show(recording, scheme=theme)
    colours = tab.evaluate(
        f"['parameters', 'gradients', 'optimizer_state'].map((c) => {PLAYER}.palette.look(c).colour)"
    )
    ground = tab.evaluate(f"{PLAYER}.palette.paper")
    levels = [luminance(colour) for colour in colours]
    assert levels == sorted(levels)
    for darker, lighter in pairwise(levels):
        assert (lighter + 0.05) / (darker + 0.05) > 1.6
    low, high = sorted((luminance(ground), levels[0]))
    assert (high + 0.05) / (low + 0.05) > 3, "parameters, the lowest, against the ground"


def luminance(colour):
    """As WCAG defines it."""
    parts = [int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
