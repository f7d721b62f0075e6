"""A rank on a GPU has a pane for its card and one for main memory, and a line that says what the card held."""

from dataclasses import replace

import pytest
from showing import changed, in_order, made_up, state

pytestmark = pytest.mark.browser
CARD = {
    "ledger": 30_000,
    "older": 0,
    "requested": 30_500,
    "allocated": 40_000,
    "reserved": 2_000_000,
    "process": 502_000_000,
    "used": 600_000_000,
    "total": 16_000_000_000,
}


def on_gpus(recording, **info):
    """The same run as if ranks had a card each, and the optimizer's state lay in main memory."""

    def event(one):
        live = {name: 0 if name == "optimizer_state" else value for name, value in one.live.items()}
        return replace(one, live=live, host={"optimizer_state": 1000 * (one.seq + 1)})

    ranks = [
        replace(
            rank,
            events=tuple(map(event, rank.events)),
            info=replace(rank.info, card=[CARD, CARD | {"process": 503_000_000}]),
        )
        for rank in recording.ranks
    ]
    formula = {"parameters": 5000, "gradients": 6000, "optimizer_state": 7000}
    return changed(recording, ranks=ranks, device="cuda", formula=formula, **info)


def test_a_gpu_and_main_memory_have_a_pane_each(show):
    recording = on_gpus(made_up(2, 3, steps=2))
    tab = show(recording)
    heads = tab.locator("section.zl-memory h3").all_inner_texts()
    assert heads == ["Live memory of the GPU", "Live main memory"]
    place, event = len(in_order(recording)) - 1, in_order(recording)[-1]
    tab.evaluate(f"window.zerolabPlayers[0].goto({place})")
    assert state(tab)["host"][event.rank]["optimizer_state"] == event.host["optimizer_state"]
    told = tab.locator(f".zl-mirror tr[data-rank='{event.rank}'] td[data-of=host]").text_content()
    assert told == f"{event.host['optimizer_state']:,}"
    drawn = tab.evaluate("window.zerolabPlayers[0].labels()")
    highest = max(one.host["optimizer_state"] for one in recording.ranks[0].events)
    assert f"peak {highest / 1000:.1f} kB" in [label["text"] for label in drawn["host"]]
    assert not any(label["text"].startswith("formula") for label in drawn["host"]), "the formula's state is on the card"


def test_with_offload_each_pane_has_its_part_of_the_formula(show):
    tab = show(on_gpus(made_up(2, 3, steps=2), offload=True))
    drawn = tab.evaluate("window.zerolabPlayers[0].labels()")
    texts = {pane: [label["text"] for label in drawn[pane]] for pane in ("memory", "host")}
    assert "formula 11.0 kB" in texts["memory"]
    assert "formula 7.00 kB" in texts["host"]


def test_a_line_says_what_the_card_held_in_the_step_that_is_shown(show):
    recording = on_gpus(made_up(2, 3, steps=2))
    tab = show(recording)
    for step, context in ((1, "500 MB"), (2, "501 MB")):
        place = next(k for k, event in enumerate(in_order(recording)) if (event.step, event.rank) == (step, 1))
        tab.evaluate(f"window.zerolabPlayers[0].goto({place})")
        said = state(tab)["card"]
        assert said.startswith(f"Rank 1's card at the peak of step {step}: tensors 30.0 kB + rounding and workspaces")
        assert f"context and NCCL {context} = " in said
        assert tab.locator(".zl-card").inner_text() == said
    tab.evaluate("window.zerolabPlayers[0].goto(0)")
    assert not state(tab)["card"], "before the first step nothing was measured"


def test_on_cpus_there_is_one_pane_and_no_such_line(show):
    tab = show(made_up(2, 3))
    assert tab.locator("section.zl-memory h3").all_inner_texts() == ["Live memory"]
    assert tab.locator(".zl-card").count() == 0
    assert state(tab)["host"] is None


def test_by_beats_too_a_line_says_what_the_card_held_in_the_step_that_is_told(show):
    recording = on_gpus(made_up(2, 3, steps=2))
    tab = show(recording, "#view=memory", story=True)
    told = set()
    for step in (1, 2):
        tab.evaluate(f"(player => player.showTime(player.lens.model.windows[{step}].t0 + 9000))(zerolabPlayers[0])")
        assert tab.evaluate("zerolabPlayers[0].beat.step") == step
        told.add(tab.locator(".zl-card").inner_text())
    assert len(told) == 2, "the process has a million bytes more in the second step"
    assert "502" in min(told)


def test_on_a_phone_what_is_saved_hides_no_number_beside_the_pane(recordings, show):
    tab = show(recordings["zero3"], "#view=memory", width=360, height=1600, story=True)
    places = tab.evaluate("""() => [20, 40, 60, 80].flatMap((share) => {
      const [player] = window.zerolabPlayers;
      const { left, right } = player.axis;
      player.scrubTo(left + (share / 100) * (right - left));
      return player.labels().memory.filter(({ text }) => text.endsWith("less than DDP")).map(({ x }) => x - left);
    })""")
    assert places
    assert min(places) >= 0
