"""What whoever sees the player for the first time has to find: legends, names, arrows, and a window that is filled."""

import dataclasses

import pytest
import torch
import torch.distributed as dist
from every_control import try_every_control
from showing import DRAWN, changed, in_order, made_up, renamed, state, texts, until
from test_page import overlaps

from zerolab import Cluster
from zerolab.player import page

pytestmark = pytest.mark.browser
PLAYER = "window.zerolabPlayers[0]"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_control_does_something(recording, show, scheme):
    tab = show(recording, scheme=scheme)
    assert state(tab)["theme"] == scheme
    try_every_control(tab.locator(".zl-player"))


def test_it_opens_where_pieces_of_the_largest_unit_are_on_their_way(recording, show):
    tab = show(recording)
    now = state(tab)
    assert now["event"]["step"] == 1
    assert now["event"]["unit"] == "blocks.0"
    assert {arrow["category"] for arrow in now["moving"]} == {"parameters"}
    assert len(now["moving"]) == 3


def test_ranks_that_a_simulation_did_not_write_out_share_a_row_that_says_so(show):
    whole = made_up(16, 2)
    tab = show(changed(whole, ranks=whole.ranks[:3]), "#event=40")
    assert tab.locator(".zl-badge").all_inner_texts() == ["simulated: 3 of 16 ranks drawn"]
    for pane in ("ownership", "timeline", "memory"):
        assert "3\N{EN DASH}15" in texts(tab, pane)
        assert "Ranks 3 to 15 do the same, each on its own shards." in texts(tab, pane)
    assert all(arrow["to"] < 3 for arrow in state(tab)["moving"])


def test_what_is_simulated_names_its_card_and_not_torchs_fake_group(show):
    for info in ({"simulated": True, "backend": "fake_nccl"}, {"simulated": False, "backend": "nccl"}):
        head = show(changed(made_up(2, 2), device="h100", **info)).inner_text(".zl-head")
        assert f"\N{MIDDLE DOT} fp32 \N{MIDDLE DOT} {'' if info['simulated'] else 'nccl on '}h100" in head


def test_many_ranks_whose_recordings_did_not_arrive_share_a_row(show):
    whole = made_up(16, 2)
    tab = show(changed(whole, ranks=[whole.ranks[0], whole.ranks[15]], simulated=False), "#event=20")
    assert tab.locator(".zl-badge").all_inner_texts() == ["14 ranks missing or ended early"]
    assert "No recording of ranks 1 to 14 arrived." in texts(tab, "memory")
    assert "rank 15" in texts(tab, "memory")


def test_narrow_columns_are_numbered_and_the_gutter_says_of_what(show):
    tab = show(made_up(4, 24), "#event=300")
    names = texts(tab, "ownership")
    assert "blocks." in names
    assert {"0", "11", "23"} <= set(names)
    assert "blocks." not in texts(show(made_up(4, 4), "#event=50"), "ownership")


def test_of_a_hundred_units_some_numbers_stand_and_the_current_ones_name(show):
    tab = show(made_up(8, 100), "#event=2000")
    names = texts(tab, "ownership")
    assert {"blocks.", "0", "90", state(tab)["event"]["unit"]} <= set(names)
    assert overlaps(tab.evaluate(f"{PLAYER}.labels()")["ownership"]) == []


@pytest.mark.parametrize("width", [320, 1280])
def test_a_name_longer_than_a_line_is_broken_in_sentences_and_shortened_above_its_column(recording, show, width):
    run = recording
    for k in range(4):
        run = renamed(run, f"blocks.{k}", f"{'a_very_long_name_' * 10}{k}")
    tab = show(run, "#walk=3", width=width, story=True)
    until(tab, f"{PLAYER}.state().walk.rested")
    told = "[...document.querySelectorAll('.zl-player :is(.zl-walk, .zl-caption) :is(h3, p, legend, .zl-story)')]"
    beyond = f"{told}.filter((one) => one.scrollWidth > one.clientWidth).map((one) => one.textContent)"
    assert tab.evaluate(beyond) == []
    tab.keyboard.press("Escape")
    assert "a_very_long" in tab.inner_text(".zl-story")
    assert tab.evaluate(beyond) == []
    room = tab.evaluate(f"{PLAYER}.panes.ownership.over.width")
    names = [label for label in tab.evaluate(f"{PLAYER}.labels()")["ownership"] if "a_very" in label["text"]]
    assert names
    assert all(label["x"] >= 0 and label["x"] + label["width"] <= room for label in names)


def test_where_steps_are_many_each_keeps_its_number(show):
    tab = show(made_up(2, 2, 28), width=1600)
    parts = tab.locator(".zl-part > span")
    assert parts.nth(14).inner_text() == "14"
    assert parts.nth(14).is_visible()


def test_a_shard_among_very_many_ranks_can_still_be_seen(show):
    tab = show(made_up(64, 24), "#event=3500", height=2400)
    place = tab.evaluate(f"{PLAYER}.panes.ownership.cell(0, 'parameters', 'blocks.5')")
    assert place["width"] / 64 < 1
    pixel = tab.evaluate(
        f"""(place) => {{
          const {{ pen }} = {PLAYER}.panes.ownership;
          return [...pen.context.getImageData((place.x + 1) * pen.scale, (place.y + 1) * pen.scale, 1, 1).data];
        }}""",
        place,
    )
    assert pixel[:3] == [0x00, 0x72, 0xB2], "rank 0's colour at rank 0's shard"


def test_gathering_and_reducing_look_different_and_the_legends_name_them_the_formula_and_the_peak(recording, show):
    tab = show(recording)
    said = [tab.locator(f".zl-{pane} .zl-legend").inner_text() for pane in ("timeline", "memory", "ownership")]
    assert "gather, broadcast" in said[0]
    assert "reduce" in said[0]
    assert "formula" in said[1]
    assert "▾ peak" in said[1]
    assert "colour: its owner" in said[2]
    fills = tab.evaluate(f"[{PLAYER}.palette.communicationColour, {PLAYER}.palette.reduction]")
    assert len(set(fills)) == 2


def test_a_reduction_to_one_rank_has_the_colour_of_reductions(show):
    def to_rank_0():
        dist.reduce(torch.ones(1_000_000), dst=0)

    with Cluster(world_size=2, device="cpu") as cluster:
        tab = show(cluster.record(to_rank_0), "#view=timeline")
    drawn, meant = tab.evaluate(
        f"""(() => {{
          const {{ model, palette, panes: {{ timeline: {{ bars, pen }} }} }} = {PLAYER};
          const bar = bars.find(({{ index }}) => model.event(index).op === "reduce");
          const at = [(bar.x + bar.width / 2) * pen.scale, (bar.y + 2) * pen.scale];
          const drawn = [...pen.context.getImageData(...at, 1, 1).data];
          pen.context.fillStyle = palette.reduction;
          return [drawn, pen.context.fillStyle];
        }})()"""
    )
    assert f"#{bytes(drawn[:3]).hex()}" == meant


def test_where_lines_are_too_low_for_names_the_legend_gives_their_order(show):
    tab = show(made_up(8, 3), "#event=100")
    assert "lines: parameters, gradients, optimizer state" in tab.locator(".zl-ownership .zl-legend").inner_text()
    tab.evaluate(f"{PLAYER}.setFilter({{ ranks: [0, 3] }})")
    assert "lines:" not in tab.locator(".zl-ownership .zl-legend").inner_text()


def test_the_size_of_a_piece_stands_beside_the_arrows_not_on_their_heads(recording, show):
    tab = show(recording)
    boxes = tab.evaluate(f"{PLAYER}.labels()")["ownership"]
    label = next(box for box in boxes if box["text"].endswith("from each"))
    now = state(tab)
    cell = tab.evaluate(f"{PLAYER}.panes.ownership.cell({now['event']['rank']}, 'parameters', 'blocks.0')")
    heads = [cell["x"] + cell["width"] * (arrow["piece"] + 0.5) / 4 for arrow in now["moving"]]
    assert label["x"] > max(heads) or label["x"] + label["width"] < min(heads)


@pytest.mark.parametrize(("width", "height"), [(1280, 1000), (1920, 1080), (768, 1024)])
def test_rows_grow_until_the_window_is_full_and_never_beyond(recording, show, width, height):
    tab = show(recording, width=width, height=height)
    assert tab.evaluate("document.documentElement.scrollHeight") == height
    assert tab.locator(".zl-player").bounding_box()["height"] > 0.9 * height
    line = tab.evaluate(f"{PLAYER}.panes.ownership.rows.line")
    tab.set_viewport_size({"width": width, "height": height + 150})
    tab.evaluate(DRAWN)
    assert tab.evaluate(f"{PLAYER}.panes.ownership.rows.line") >= line
    assert tab.evaluate("document.documentElement.scrollHeight") == height + 150


@pytest.mark.parametrize("width", [320, 1280])
def test_the_help_says_how_to_read_the_picture_and_fits_the_screen(recording, show, width):
    tab = show(recording, width=width, height=900)
    tab.keyboard.press("?")
    help_ = tab.locator(".zl-help")
    assert "the rank that owns a part" in help_.inner_text()
    box = help_.bounding_box()
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= width
    assert tab.evaluate("document.documentElement.scrollWidth") == width


@pytest.mark.parametrize("width", [1200, 1260, 1440])
def test_the_controls_end_where_the_picture_does_and_no_word_of_a_key_is_left_alone(recording, show, width):
    tab = show(recording, width=width, height=900, story=True)
    controls = tab.locator(".zl-transport :is(button, select):visible")
    end = controls.evaluate_all("(all) => Math.max(...all.map((one) => one.getBoundingClientRect().right))")
    assert end == pytest.approx(width - 16, abs=1)
    lines = """(legend) => {
      const tops = [], range = document.createRange(), texts = document.createTreeWalker(legend, NodeFilter.SHOW_TEXT);
      while (texts.nextNode()) {
        range.selectNodeContents(texts.currentNode);
        tops.push([texts.currentNode.data, range.getBoundingClientRect().top]);
      }
      return tops;
    }"""
    tops = dict(tab.locator(".zl-bars .zl-legend").evaluate(lines))
    assert next(top for text, top in tops.items() if text.endswith("peak")) == pytest.approx(tops["formula"], abs=1)


def test_no_mark_on_the_track_strikes_through_a_name(recordings, show):
    for tab in (
        show(recordings["zero3"], width=1440, height=900, story=True),
        show(page(recordings["zero3"], recordings["fsdp2"]), width=1100, height=900, story=True),
    ):
        boxes = "(all) => all.map((one) => one.getBoundingClientRect())"
        marks = tab.locator(".zl-track > i:visible").evaluate_all(boxes)
        names = tab.locator(".zl-part > span:visible").evaluate_all(boxes)
        assert marks
        assert max(mark["bottom"] for mark in marks) <= min(name["top"] for name in names) + 3  # above the letters


def test_the_help_explains_what_is_seen_by_beats_and_needs_no_scrolling(recordings, show):
    stages = {
        "zero3": ["a moving box", "1/4, 2/4", "lines, filled"],
        "zero1": ["a moving box", "1/4, 2/4", "lines, filled", "faint, dotted"],
        "ddp": ["a moving box", "1/4, 2/4", "lines, filled", "grey, two sheets"],
    }
    for stage, said in stages.items():
        tab = show(recordings[stage], width=1240, height=620, story=True)
        tab.keyboard.press("?")
        help_ = tab.locator(".zl-help")
        terms = help_.locator("dt").all_inner_texts()
        assert [term for term in said if term not in terms] == []
        assert "dotted outline" not in terms
        assert ("grey, two sheets" in terms, "faint, dotted" in terms) == (stage == "ddp", stage == "zero1")
        assert help_.evaluate("(one) => one.scrollHeight - one.clientHeight") == 0
        columns = help_.locator("dl").evaluate_all("(all) => all.map((one) => one.getBoundingClientRect().x)")
        assert len(set(columns)) == 3
    tab = show(page(recordings["zero3"], recordings["ddp"]), width=1240, height=800, story=True)
    tab.keyboard.press("?")
    assert "dotted outline" in tab.locator(".zl-first .zl-help dt").all_inner_texts()
    box = tab.locator(".zl-first .zl-help").bounding_box()
    assert box["x"] + box["width"] > 1200  # below its button


def test_the_controls_reach_below_both_of_two_recordings(recordings, show):
    tab = show(page(recordings["zero3"], recordings["ddp"]), width=1400, height=1200)
    box = tab.locator(".zl-first .zl-transport").bounding_box()
    second = tab.locator(".zl-second .zl-memory").bounding_box()
    assert box["x"] + box["width"] > second["x"] + second["width"] - 20
    assert box["y"] >= second["y"] + second["height"] - 1
    for lit in tab.locator(".zl-lit").all():
        line, code = lit.bounding_box(), lit.locator("xpath=ancestor::pre").bounding_box()
        assert code["y"] <= line["y"]
        assert line["y"] + line["height"] <= code["y"] + code["height"]


def test_at_the_peak_the_sentence_says_which_unit_is_whole(recording, show):
    tab = show(recording, "#event=400")
    tab.keyboard.press("p")
    now = state(tab)
    rank = now["event"]["rank"]
    held = now["held"][rank]["parameters"]
    padded = {unit.name: unit.padded for unit in recording.units}
    whole = [name for name, spans in held.items() if spans == [0, padded[name]]]
    wanted = f"({whole[0]} whole)" if len(whole) == 1 else f"({len(whole)} units whole)"
    assert wanted in now["caption"]


def test_what_is_held_is_told_in_elements_and_bytes(recording, show):
    events = in_order(recording)
    hold = next(e for e in events if e.op == "hold" and e.step == 1 and e.category == "gradients" and e.spans)
    tab = show(recording, f"#event={events.index(hold) + 1}")
    elements = sum(stop - start for start, stop in hold.spans)
    assert f"{elements:,} " in state(tab)["caption"]
    assert "kB)" in state(tab)["caption"]


def test_alone_nothing_is_said_to_be_sent(show):
    alone = changed(made_up(1, 2), simulated=False)
    events = in_order(alone)
    place = next(place for place, event in enumerate(events) if event.op == "all_gather")
    tab = show(alone, f"#event={place + 1}")
    assert state(tab)["caption"].endswith("it is alone, so nothing was sent.")


def on_gpu(recording):
    """The recording as if each rank's GPU had done everything a millisecond after it was asked to."""

    def later(event):
        stream = {"module": "compute", "optimizer": "compute", "wait": "compute", "collective": "communication"}
        if event.kind not in stream or (event.kind == "collective" and event.parent is not None):
            return event
        times = {"device_start": event.t_start + 10**6, "device_end": event.t_end + 10**6}
        return dataclasses.replace(event, stream=stream[event.kind], **times)

    ranks = [dataclasses.replace(rank, events=tuple(map(later, rank.events))) for rank in recording.ranks]
    return changed(recording, ranks=ranks, device="cuda")


def test_a_gpus_recording_has_a_lane_for_the_host_and_one_for_each_stream_and_says_whose_time_it_is(recording, show):
    tab = show(on_gpu(recording), "#event=300")
    names = texts(tab, "timeline")
    assert [names.count(lane) for lane in ("host", "compute", "communication", "computing")] == [4, 4, 4, 0]
    assert "GPU time" in tab.locator(".zl-timeline, section").filter(has_text="Timeline").first.inner_text()
    assert overlaps(tab.evaluate(f"{PLAYER}.labels()")["timeline"]) == []


def test_a_gpus_recording_with_host_times_only_says_so(recording, show):
    tab = show(changed(recording, device="cuda"), "#event=300")
    assert "computing" in texts(tab, "timeline")
    assert "host time" in tab.locator("body").inner_text()


def test_sentences_tell_gpu_time_where_there_is_some(recording, show):
    tab = show(on_gpu(recording))
    place = next(i for i, event in enumerate(in_order(recording)) if event.kind == "optimizer")
    tab.evaluate(f"{PLAYER}.goto({place})")
    assert "of GPU time" in tab.locator(".zl-sentence").inner_text()


def test_a_recording_of_times_only_shows_no_bytes_as_zero(recording, show):
    def timed(event):
        return dataclasses.replace(event, live={})

    ranks = [
        dataclasses.replace(rank, events=tuple(timed(event) for event in rank.events if event.kind != "memory"))
        for rank in recording.ranks
    ]
    ranks = [in_places(rank) for rank in ranks]
    light = changed(recording, ranks=ranks, times_only=True, formula=None)
    tab = show(light)
    assert tab.locator("header", has_text="not recorded: this recording has times only").count() == 2
    assert not tab.locator(".zl-memory canvas").first.is_visible()
    assert not tab.locator(".zl-story").is_visible()
    assert tab.locator(".zl-timeline canvas").first.is_visible()
    for kind in ("optimizer", "module", "collective"):
        place = next(i for i, event in enumerate(in_order(light)) if event.kind == kind and event.parent is None)
        tab.evaluate(f"{PLAYER}.goto({place})")
        assert "state" not in tab.locator(".zl-sentence").inner_text()
        assert "0 B" not in tab.locator(".zl-sentence").inner_text()
    assert set(tab.locator(".zl-mirror td").all_inner_texts()) == {"not recorded"}


def in_places(rank):
    """The rank's events numbered anew, and their parents."""
    places = {event.seq: place for place, event in enumerate(rank.events)}
    events = [
        dataclasses.replace(event, seq=place, parent=places.get(event.parent))
        for place, event in enumerate(rank.events)
    ]
    return dataclasses.replace(rank, events=tuple(events))
