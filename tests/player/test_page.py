"""The standalone page in a real browser: it draws, plays and steps, and shows what the recording says."""

import re
from dataclasses import replace

import pytest
from showing import changed, in_order, made_up, renamed, state, until

from zerolab.player import page
from zerolab.recording.events import CATEGORIES

pytestmark = pytest.mark.browser
STATE = CATEGORIES[:3]
PLAYER = "window.zerolabPlayers[0]"


def test_the_page_is_small_and_names_no_foreign_address(recording):
    text = page(recording)
    assert len(text.encode()) <= 500_000
    assert set(re.findall(r"https?://[^\"'\s]+", text)) == {"http://www.w3.org/2000/svg"}
    assert "default-src 'none'" in text


def test_the_panes_agree_with_the_recording(recording, show):
    tab = show(recording)
    events = in_order(recording)
    held = {}
    chosen = set(range(0, len(events), 61)) | {len(events) - 1}
    for place, event in enumerate(events):
        if event.op == "hold":
            held[event.rank, event.category, event.unit] = [edge for span in event.spans for edge in span]
        if place not in chosen:
            continue
        tab.evaluate(f"window.zerolabPlayers[0].goto({place})")
        now = state(tab)
        assert now["index"] == place
        assert (now["event"]["rank"], now["event"]["seq"], now["event"]["op"]) == (event.rank, event.seq, event.op)
        assert (now["event"]["start"], now["event"]["end"]) == (event.t_start, event.t_end)
        assert now["live"][event.rank] == event.live
        for rank in range(4):
            for category in STATE:
                for unit in recording.units:
                    assert now["held"][rank][category][unit.name] == held.get((rank, category, unit.name), [])
        is_message = event.kind == "collective" and event.parent is not None  # it shows the line of its collective
        if at := recording.ranks[event.rank].events[event.parent].source if is_message else event.source:
            source = recording.sources[at.id]
            line = source.text.splitlines()[at.line - 1]
            assert now["source"] == {"label": source.label, "line": at.line, "text": line}
            assert tab.locator(".zl-lit").inner_text().strip() == line.strip()
        assert now["caption"].startswith(f"Rank {event.rank}")
        assert tab.locator(".zl-sentence").inner_text() == now["caption"]
        total = tab.locator(f".zl-mirror tr[data-rank='{event.rank}'] td[data-of=live]").text_content()
        assert total == f"{sum(event.live.values()):,}"


def test_peak_and_formula_are_the_recordings_own(recording, show):
    now = state(show(recording))
    assert now["formula"] == recording.info.formula
    for rank in recording.ranks:
        assert now["peak"][rank.rank] == max(sum(event.live.values()) for event in rank.events)


def test_a_collective_is_told_in_words_and_numbers(recording, show):
    events = in_order(recording)
    gathers = [e for e in events if (e.kind, e.op, e.rank) == ("collective", "all_gather", 1) and e.unit]
    place, event = events.index(gathers[0]), gathers[0]
    now = state(show(recording, f"#event={place + 1}"))
    assert f"gathered {event.unit} (all gather #{event.number})" in now["caption"]
    assert f"it sent {event.logical_bytes:,} bytes" in now["caption"]
    assert f"its {event.numel // 4:,} of {event.numel:,} elements to each of the other 3" in now["caption"]


def test_it_opens_at_the_first_training_step_and_the_address_chooses_another_event(recording, show):
    assert state(show(recording))["event"]["step"] == 1
    tab = show(recording, "#event=100")
    assert state(tab)["index"] == 99
    tab.evaluate("location.hash = '#event=7'")
    until(tab, "window.zerolabPlayers[0].state().index === 6")


def test_it_opens_where_a_line_of_source_moves_something(recording, show):
    tab = show(recording)
    now = state(tab)
    event = in_order(recording)[now["index"]]
    assert event.step == 1
    assert event.kind in ("collective", "module") or event.op == "hold"
    assert "checks.py" not in now["source"]["label"]
    assert tab.locator(".zl-lit").inner_text().strip() == now["source"]["text"].strip()


def test_an_event_without_a_line_shows_the_last_one_of_its_rank_or_says_that_there_is_none(show):
    made = made_up(2, 2)
    ranks = [
        replace(rank, events=tuple(replace(e, source=e.source if 1 < e.seq < 5 else None) for e in rank.events))
        for rank in made.ranks
    ]
    bare = changed(made, ranks=ranks)
    events = in_order(bare)
    tab = show(bare, f"#event={events.index(bare.ranks[1].events[0]) + 1}")
    assert "no line of source recorded yet on rank 1" in tab.content()
    assert not tab.locator(".zl-lit").count()
    tab.evaluate(f"window.zerolabPlayers[0].goto({events.index(bare.ranks[1].events[6])})")
    before = made.ranks[1].events[4].source.line
    assert f"zerolab/engines/zero3.py:{before} (last line before it)" in tab.content()
    assert tab.locator(".zl-lit").get_attribute("data-line") == str(before)


def test_space_plays_after_a_click_on_another_button_and_presses_one_that_the_keyboard_came_to(recording, show):
    tab = show(recording)
    whole = tab.get_by_role("button", name="whole run")
    whole.click()
    shown = whole.get_attribute("aria-pressed")
    tab.keyboard.press("Space")
    until(tab, "window.zerolabPlayers[0].state().playing")
    assert whole.get_attribute("aria-pressed") == shown
    tab.keyboard.press("Space")
    until(tab, "!window.zerolabPlayers[0].state().playing")
    whole.focus()
    tab.keyboard.press("Space")
    assert whole.get_attribute("aria-pressed") != shown
    assert not state(tab)["playing"]


def test_it_plays_pauses_and_stops_at_the_end(recording, show):
    tab = show(recording)
    before = state(tab)
    tab.keyboard.press("Space")
    until(tab, f"window.zerolabPlayers[0].state().index > {before['index'] + 5}")
    assert state(tab)["playing"]
    tab.get_by_role("button", name="Pause").click()
    stopped = state(tab)
    assert not stopped["playing"]
    assert stopped["time"] > before["time"]
    tab.wait_for_timeout(100)
    assert state(tab)["index"] == stopped["index"]
    tab.evaluate(f"window.zerolabPlayers[0].goto({stopped['events'] - 20})")
    tab.keyboard.press("+")
    tab.keyboard.press("+")
    assert state(tab)["speed"] == 4
    tab.keyboard.press("Space")
    until(tab, "!window.zerolabPlayers[0].state().playing")
    assert state(tab)["index"] == stopped["events"] - 1


def test_it_steps_by_event_with_keys_and_buttons(recording, show):
    tab = show(recording, "#event=50")
    tab.keyboard.press("ArrowRight")
    assert state(tab)["index"] == 50
    tab.keyboard.press("ArrowLeft")
    tab.keyboard.press("ArrowLeft")
    assert state(tab)["index"] == 48
    tab.get_by_role("button", name="Next event").click()
    assert state(tab)["index"] == 49
    tab.keyboard.press("End")
    tab.keyboard.press("ArrowRight")
    assert state(tab)["index"] == len(recording.events) - 1
    tab.keyboard.press("Home")
    tab.get_by_role("button", name="Previous event").click()
    assert state(tab)["index"] == 0
    assert f"event 1 of {len(recording.events):,}" in tab.locator(".zl-place").inner_text()


def test_it_steps_by_phase_and_by_training_step(recording, show):
    tab = show(recording)
    first = state(tab)["event"]
    seen = [(first["step"], first["phase"])]
    for _ in range(6):
        tab.keyboard.press("ArrowDown")
        event = state(tab)["event"]
        assert event["rank"] == first["rank"]
        assert (event["step"], event["phase"]) != seen[-1]
        seen.append((event["step"], event["phase"]))
    tab.keyboard.press("Shift+ArrowLeft")
    event = state(tab)["event"]
    assert (event["step"], event["phase"]) == seen[-2]
    tab.keyboard.press("PageDown")
    assert state(tab)["event"]["step"] == 2
    tab.keyboard.press("PageUp")
    assert state(tab)["event"]["step"] == 1


def test_the_picture_of_a_moment_is_the_same_whatever_was_shown_before_it(recording, show):
    tab = show(recording)
    picture = "['pen', 'over'].map((one) => panes.ownership[one].canvas.toDataURL())"
    first = next(k for k, event in enumerate(in_order(recording)) if event.step == 2)
    places = [*range(first, first + 300, 7)]
    seen = [
        tab.evaluate(f"((player, {{ panes }} = player) => (player.goto({place}), {picture}))({PLAYER})")
        for place in places + places[::-1]
    ]
    assert [place for place, one, other in zip(places, seen, seen[::-1], strict=False) if one != other] == []


def test_an_arrow_leaves_the_dashes_that_are_drawn_after_it_as_they_are(recording, show):
    places = [
        k for k, e in enumerate(in_order(recording)) if e.op == "all_gather" and e.kind == "collective" and e.step
    ]
    tab = show(recording, f"#event={places[0] + 1}")
    assert state(tab)["moving"]
    assert tab.evaluate(f"{PLAYER}.panes.ownership.over.context.lineCap") == "butt"


def test_dragging_the_scrubber_goes_through_all_events(recording, show):
    tab = show(recording)
    track = tab.get_by_role("slider", name="Event")
    box = track.bounding_box()
    tab.mouse.move(box["x"] + 4, box["y"] + 8)
    tab.mouse.down()
    tab.mouse.move(box["x"] + box["width"] / 2, box["y"] + 8, steps=4)
    middle = state(tab)["index"]
    assert abs(middle - len(recording.events) / 2) < 10
    tab.mouse.move(box["x"] + box["width"] + 50, box["y"] + 8)
    tab.mouse.up()
    assert state(tab)["index"] == len(recording.events) - 1
    assert track.get_attribute("aria-valuenow") == str(len(recording.events))
    tab.mouse.move(box["x"], box["y"])
    assert state(tab)["index"] == len(recording.events) - 1


@pytest.mark.parametrize("pane", ["timeline", "memory"])
def test_dragging_over_the_time_axis_moves_the_time(recording, show, pane):
    tab = show(recording)
    box = tab.locator(f".zl-{pane} .zl-layers").bounding_box()
    start, end = state(tab)["view"]
    left, right = box["x"] + 152, box["x"] + box["width"] - 104
    tab.mouse.move(left + 10, box["y"] + 30)
    tab.mouse.down()
    tab.mouse.move((left + right) / 2, box["y"] + 30, steps=3)
    assert state(tab)["time"] == pytest.approx((start + end) / 2, abs=(end - start) / 100)
    tab.mouse.up()


def test_a_click_on_a_bar_chooses_its_event(recording, show):
    tab = show(recording)
    bars = tab.evaluate("window.zerolabPlayers[0].panes.timeline.bars")
    left, right = (tab.evaluate(f"window.zerolabPlayers[0].axis.{side}") for side in ("left", "right"))
    seen = [bar for bar in bars[1:] if bar["x"] >= left and bar["x"] + bar["width"] <= right]  # others are cut off
    bar = max(seen, key=lambda bar: bar["width"])
    box = tab.locator(".zl-timeline .zl-layers").bounding_box()
    tab.mouse.click(box["x"] + bar["x"] + bar["width"] / 2, box["y"] + bar["y"] + 5)
    index = state(tab)["index"]
    middle = bar["x"] + bar["width"] / 2  # a bar is hit a pixel beside it, too
    assert any(b["index"] == index and b["x"] - 1 <= middle <= b["x"] + b["width"] + 1 for b in bars)


def test_the_whole_run_or_one_step_is_in_view(recording, show):
    tab = show(recording)
    one = state(tab)["view"]
    tab.keyboard.press("z")
    every = state(tab)["view"]
    assert every[0] < one[0]
    assert every[1] > one[1]
    tab.get_by_role("button", name="whole run").click()
    assert state(tab)["view"] == one


@pytest.mark.parametrize("many", [False, True])
def test_the_keys_are_listed_under_the_question_mark_and_those_to_other_ranks_where_many_are(recording, show, many):
    tab = show(made_up(64, 8) if many else recording)
    assert not tab.locator(".zl-help").is_visible()
    tab.keyboard.press("?")
    listed = tab.locator(".zl-help").inner_text()
    assert "next phase of this rank" in listed
    assert [words in listed for words in ("focus on", "shift ↓", "many ranks", "as shift →")] == [many] * 3 + [not many]
    tab.keyboard.press("Escape")
    assert not tab.locator(".zl-help").is_visible()


def test_the_theme_follows_lab_vs_code_the_system_and_the_switch(recording, show):
    tab = show(recording, scheme="dark")
    theme = "window.zerolabPlayers[0].state().theme"
    assert tab.evaluate(theme) == "dark"
    for change, wanted in [
        ("document.body.dataset.jpThemeLight = 'true'", "light"),
        ("document.body.dataset.jpThemeLight = 'false'", "dark"),
        ("delete document.body.dataset.jpThemeLight; document.body.className = 'vscode-light'", "light"),
        ("document.body.className = 'vscode-high-contrast'", "dark"),
    ]:
        tab.evaluate(change)
        until(tab, f"{theme} === '{wanted}'")
    tab.get_by_role("button", name="Light or dark").click()
    assert tab.evaluate(theme) == "light"
    tab.evaluate("document.body.className = 'vscode-dark changed'")
    tab.wait_for_timeout(50)
    assert tab.evaluate(theme) == "light"


def overlaps(boxes):
    def apart(a, b):
        return (
            a["x"] + a["width"] <= b["x"] + 0.5
            or b["x"] + b["width"] <= a["x"] + 0.5
            or a["y"] + a["height"] <= b["y"] + 0.5
            or b["y"] + b["height"] <= a["y"] + 0.5
        )

    pairs = [(a, b) for place, a in enumerate(boxes) for b in boxes[:place]]
    return [f"{a['text']} / {b['text']}" for a, b in pairs if not apart(a, b)]


TEXTS = """() => [...document.querySelectorAll(
  ':is(.zl-head, .zl-menu) > *, .zl-caption > *, .zl-pane h3, .zl-legend > *, .zl-transport > *')]
  .filter((e) => e.offsetWidth).map((e) => {
    const { x, y, width, height } = e.getBoundingClientRect();
    return { text: e.textContent, x, y, width, height };
  })"""


@pytest.mark.parametrize(("width", "height"), [(1280, 800), (900, 850), (600, 1200)])
def test_no_text_overlaps_another_and_everything_is_in_view(recording, show, width, height):
    tab = show(recording, width=width, height=height)
    size = tab.evaluate("[document.documentElement.scrollWidth, document.documentElement.scrollHeight]")
    assert size == [width, height]
    heights = set()
    for place in range(0, len(recording.events), 199):
        tab.evaluate(f"window.zerolabPlayers[0].goto({place})")
        for pane, boxes in tab.evaluate("window.zerolabPlayers[0].labels()").items():
            assert overlaps(boxes) == [], (pane, place)
        assert overlaps(tab.evaluate(TEXTS)) == [], place
        heights.add(tab.locator(".zl-caption").evaluate("(e) => e.offsetHeight"))
    assert len(heights) == 1, "the panes below jump"


def test_a_name_of_endless_length_overlaps_nothing_and_is_told_whole(recording, show):
    name = ".".join(["a_module_with_a_rather_long_name"] * 8) + ".3"
    long = renamed(recording, "blocks.2", name)
    place = next(place for place, event in enumerate(in_order(long)) if event.unit == name and event.step == 1)
    tab = show(long, f"#event={place + 1}")
    assert tab.evaluate("document.documentElement.scrollWidth") == 1280
    for pane, boxes in tab.evaluate("window.zerolabPlayers[0].labels()").items():
        assert overlaps(boxes) == [], pane
    assert overlaps(tab.evaluate(TEXTS)) == []
    assert name in tab.locator(".zl-sentence").inner_text()


def test_a_name_with_html_in_it_is_shown_as_text(recording, show):
    name = "<img src=x onerror=alert(1)></script><script>alert(2)</script>"
    tab = show(renamed(recording, "blocks.2", name))
    assert tab.locator("img").count() == 0
    events = in_order(renamed(recording, "blocks.2", name))
    place = next(place for place, event in enumerate(events) if event.unit == name)
    tab.evaluate(f"window.zerolabPlayers[0].goto({place})")
    assert name in state(tab)["caption"]
    assert name in tab.locator(".zl-sentence").inner_text()


def test_a_recording_without_events_says_so(recording, show):
    tab = show(changed(recording, ranks=[]))
    assert "This recording has no events" in tab.locator(".zl-sentence").inner_text()
    tab.keyboard.press("Space")
    tab.keyboard.press("ArrowRight")
    assert state(tab)["events"] == 0


def test_a_missing_and_an_incomplete_rank_are_told_and_the_others_drawn(recording, show):
    from dataclasses import replace

    ranks = [rank for rank in recording.ranks if rank.rank != 2]
    ranks[1] = replace(ranks[1], events=ranks[1].events[:200], complete=False)
    tab = show(changed(recording, ranks=ranks), "#event=150")
    labels = tab.evaluate("window.zerolabPlayers[0].labels()")
    for pane in ("ownership", "timeline", "memory"):
        assert "No recording of rank 2 arrived." in [label["text"] for label in labels[pane]]
    tab.keyboard.press("z")
    labels = tab.evaluate("window.zerolabPlayers[0].labels()")
    assert "ended early" in [label["text"] for label in labels["timeline"]]
    assert tab.locator(".zl-badge").all_inner_texts() == ["rank 1 ended early", "rank 2 missing"]


def test_a_simulated_recording_is_marked(recording, show):
    assert show(recording).locator(".zl-badge").count() == 0
    assert show(changed(recording, simulated=True)).locator(".zl-badge").inner_text() == "simulated"


def test_a_payload_of_another_version_gets_a_sentence(recording, show):
    tab = show(page(recording).replace('"version":2,', '"version":1,', 1))
    assert "version 1 of the player, this is version 2" in tab.get_by_role("alert").inner_text()


def test_pictures_for_comparing_carry_no_text(recording, show):
    tab = show(recording, "#event=300&still&text=off")
    assert tab.evaluate("getComputedStyle(document.querySelector('.zl-sentence')).color") == "rgba(0, 0, 0, 0)"
    assert not tab.locator(".zl-transport").is_visible()
    assert tab.evaluate("window.zerolabPlayers[0].root.offsetWidth") == 960


def test_screen_readers_get_a_sentence_for_each_event_around_the_current_one(recording, show):
    tab = show(recording, "#event=300")
    items = tab.locator(".zl-mirror li")
    assert items.count() == 21
    assert items.evaluate_all("(all) => all.map((one) => one.value)") == list(range(290, 311))
    current = tab.locator(".zl-mirror li[aria-current=true]")
    assert current.text_content() == state(tab)["caption"]
    tab.keyboard.press("ArrowRight")
    assert current.get_attribute("value") == "301"
    for item, event in zip(items.all_text_contents(), in_order(recording)[290:311], strict=True):
        assert item.startswith(f"Rank {event.rank} ")


def test_screen_readers_get_names_and_the_sentence(recording, show):
    tab = show(recording, "#event=300")
    assert tab.locator("[role=region]").get_attribute("aria-label").startswith("Player: zero3 on 4 ranks")
    assert tab.locator(".zl-caption").get_attribute("aria-live") == "polite"
    tab.keyboard.press("Space")
    assert tab.locator(".zl-caption").get_attribute("aria-live") == "off"
