"""The stages at one glance: the strip's blocks are what was recorded, and a choice moves them."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from showing import changed

from zerolab import player, theory
from zerolab.player.holdings import held_at_update
from zerolab.player.strip import FIRST, MOVES, RANK_COLOURS, STAY, Strip

ORDER = ("ddp", "zero1", "zero3", "fsdp2")


@pytest.fixture(scope="session")
def strip(recordings):
    return Strip({stage: recordings[stage] for stage in ORDER})


@pytest.fixture(scope="session")
def two_stages(recordings):
    return Strip({stage: recordings[stage] for stage in ("ddp", "zero3")})


@pytest.mark.parametrize("stage", ORDER)
def test_blocks_add_up_to_the_bytes_that_were_measured_and_each_part_lies_where_its_owner_has_it(recordings, stage):
    sharded = {"ddp": [], "zero1": ["optimizer_state"]}.get(stage, theory.STATE_CATEGORIES)
    for rank, held in enumerate(held_at_update(recordings[stage])):
        state = recordings[stage].rank(rank).state
        for category, parts in held.items():
            assert sum(parts) == pytest.approx(state[category], abs=1e-3)
            holders = [owner for owner, nbytes in enumerate(parts) if nbytes]
            assert holders == ([rank] if category in sharded else [0, 1, 2, 3])


def test_it_says_what_a_rank_holds_and_sends(strip, recordings):
    for stage, recording in ((stage, recordings[stage]) for stage in ORDER):
        assert f"{stage} holds {sum(recording.state.values()):,} bytes and sends {recording.sent:,}" in repr(strip)


def test_its_colours_are_the_players():
    palette = Path(player.__file__).with_name("palette.js").read_text()
    ranks = ", ".join(f'"{colour}"' for colour in RANK_COLOURS)
    assert f"light: [{ranks}]" in palette
    style = Path(player.__file__).with_name("strip.css").read_text()
    for category in theory.STATE_CATEGORIES:
        assert f'{category}: "{style.partition(f"--{category}: ")[2][:7]}"' in palette


def test_the_picture_for_slides_has_a_block_for_each_part_that_a_rank_holds(strip, show, tmp_path):
    strip.save(tmp_path / "stages.svg")
    tab = show("<!doctype html>")
    tab.goto((tmp_path / "stages.svg").as_uri())
    blocks = [panel.locator(".zl-block").count() for panel in tab.locator("svg > g").all()]
    assert blocks == [4 * 3 * 4, 4 * (4 + 4 + 1), 4 * 3, 4 * 3]


def test_a_stored_notebook_keeps_the_picture_and_a_live_one_the_choice(strip, monkeypatch):
    assert set(strip._repr_mimebundle_()) == {"text/plain", "text/html"}
    monkeypatch.setenv("ZEROLAB_STATIC", "1")
    assert strip._repr_mimebundle_() == {"text/plain": repr(strip), "image/svg+xml": strip.picture()}


def test_a_recording_without_a_second_step_is_refused_with_the_reason(recordings):
    short = recordings["ddp"]
    ranks = [replace(rank, events=(), info=replace(rank.info, state=None, steps=0)) for rank in short.ranks]
    with pytest.raises(ValueError, match="no state after 0 steps"):
        Strip({"ddp": changed(short, ranks=ranks)})


def test_recordings_of_different_numbers_of_ranks_or_none_are_refused():
    with pytest.raises(ValueError, match=r"the recordings are of \[\] ranks: give one or more, all of as many ranks"):
        Strip({})


def blocks_of(tab):
    """Of each block its part, the row in which it is seen, its width, and how opaque it is."""
    return tab.locator(".zl-block").evaluate_all(
        """blocks => {
        const ghosts = [...document.querySelectorAll(".zl-ghost")].slice(0, 4);
        const rows = ghosts.map(ghost => ghost.getBoundingClientRect());
        return blocks.map(block => {
            const box = block.querySelector("rect").getBoundingClientRect();
            const row = rows.findIndex(each => Math.abs(each.y - box.y) < 3);
            return [Number(block.textContent), row, box.width, Number(getComputedStyle(block).opacity)];
        });
    }"""
    )


def at(tab, moment):
    """Everything that moves at so many milliseconds after it has begun, or, without, at its end."""
    tab.evaluate(
        """moment => document.getAnimations().forEach(each => {
            if (moment === null) return each.finish();
            each.pause();
            each.currentTime = moment;
        })""",
        moment,
    )


def told(tab):
    seen = "all => all.filter(each => getComputedStyle(each).visibility == 'visible').map(each => each.innerText)"
    return tab.locator("p:visible").evaluate_all(seen)


def test_it_goes_from_stage_to_stage_until_one_is_chosen(strip, show):
    tab = show(f"<!doctype html><meta charset='utf-8'>{strip.html()}")
    way = 1000 * STAY * MOVES  # the first stage is there from the beginning
    at(tab, 0)
    assert told(tab) == ["DDP: each rank keeps all parameters, gradients and optimizer state."]
    assert all(opacity == 1 for *_, opacity in blocks_of(tab))
    at(tab, 1000 * FIRST + way / 2)
    assert 1000 * FIRST + way / 2 <= 2000  # who opens a page sees it move within two seconds
    assert told(tab) == ["ZeRO-1: each rank keeps 1/4 of the optimizer state, and all parameters and gradients."]
    assert any(row == -1 for _, row, *_ in blocks_of(tab))  # between two rows
    at(tab, 1000 * FIRST + way + 10)
    assert sum(opacity == 1 for *_, opacity in blocks_of(tab)) == 4 * (4 + 4 + 1)
    tab.locator("label").first.click()
    at(tab, None)
    assert all(opacity == 1 for *_, opacity in blocks_of(tab))
    assert tab.evaluate("document.getAnimations().length") == 0


def test_it_stands_still_under_the_pointer(strip, show):
    tab = show(f"<!doctype html><meta charset='utf-8'>{strip.html()}")
    states = "[...new Set(document.getAnimations().map(each => each.playState))]"
    assert tab.evaluate(states) == ["running"]
    tab.locator("svg").hover()
    assert tab.evaluate(states) == ["paused"]


def test_the_picture_of_the_readme_is_what_these_ranks_give(recordings):
    stages = {stage: recordings[stage] for stage in theory.STAGES}
    assert Path(__file__).parents[2].joinpath("docs", "stages.svg").read_text() == Strip(stages).animation()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_choice_moves_each_block_that_a_rank_no_longer_holds_to_its_owner_where_it_goes(strip, show, scheme):
    tab = show(f"<!doctype html><meta charset='utf-8'>{strip.html()}", scheme=scheme)
    tab.locator("label", has_text="DDP").click()
    at(tab, None)
    assert len(blocks_of(tab)) == 4 * 3 * 4
    assert all(opacity == 1 for *_, opacity in blocks_of(tab))
    tab.locator("label", has_text="ZeRO-3").click()
    at(tab, 400)
    assert any(row == -1 for _, row, *_ in blocks_of(tab))
    at(tab, None)
    there = blocks_of(tab)
    assert all(row == part for part, row, *_ in there)
    assert sum(opacity == 1 for *_, opacity in there) == 4 * 3
    assert sum(opacity == 0 for *_, opacity in there) == 4 * 3 * 3
    assert told(tab) == ["ZeRO-3: each rank keeps 1/4 of the parameters, gradients and optimizer state."]
    tab.keyboard.press("ArrowLeft")  # as any group of radio buttons
    at(tab, None)
    assert sum(opacity == 1 for *_, opacity in blocks_of(tab)) == 4 * (4 + 4 + 1)


def test_on_a_page_that_runs_from_right_to_left_it_is_the_same(strip, show):
    told = []
    for way in ("ltr", "rtl"):
        tab = show(f"<!doctype html><html dir='{way}'><meta charset='utf-8'>{strip.html()}", motion="reduce", width=960)
        told.append(tab.locator(".zl-strip").screenshot())
    assert told[0] == told[1]


def test_two_strips_on_one_page_are_chosen_apart(strip, show):
    tab = show(f"<!doctype html><meta charset='utf-8'>{strip.html()}{strip.html()}")
    tab.locator("form").nth(0).locator("label").nth(0).click()
    tab.locator("form").nth(1).locator("label").nth(2).click()
    assert told(tab) == [
        "DDP: each rank keeps all parameters, gradients and optimizer state.",
        "ZeRO-3: each rank keeps 1/4 of the parameters, gradients and optimizer state.",
    ]


def test_two_strips_of_different_stages_on_one_page_move_each_by_its_own_rules(strip, two_stages, show):
    def telling(tab):
        """What each strip tells and how long its round takes, at a moment that is the same for all."""
        tab.evaluate("document.getAnimations().forEach((one) => { one.pause(); one.currentTime = 13_000; })")
        return tab.locator("form").evaluate_all(
            """(forms) => forms.map((form) => [
                [...form.querySelectorAll("p")].map((p) => getComputedStyle(p).opacity + getComputedStyle(p).display),
                getComputedStyle(form.querySelector(".zl-block")).animationDuration,
            ])"""
        )

    alone = [telling(show(f"<!doctype html><meta charset='utf-8'>{one.html()}"))[0] for one in (strip, two_stages)]
    assert alone[0] != alone[1]
    assert telling(show(f"<!doctype html><meta charset='utf-8'>{strip.html()}{two_stages.html()}")) == alone


def test_where_less_motion_is_asked_for_nothing_moves(strip, show):
    tab = show(f"<!doctype html><meta charset='utf-8'>{strip.html()}")
    tab.emulate_media(reduced_motion="reduce")
    assert told(tab) == ["DDP: each rank keeps all parameters, gradients and optimizer state."]
    assert tab.evaluate("document.getAnimations().length") == 0
    tab.locator("label").nth(2).click()
    assert all(row == part for part, row, *_ in blocks_of(tab))


@pytest.mark.parametrize("width", [390, 600, 800, 1280])
def test_letters_are_large_enough_and_apart_at_any_width(strip, show, width):
    tab = show(
        f"<!doctype html><meta charset='utf-8'><meta name='viewport' content='width=device-width'>{strip.html()}",
        width=width,
    )
    texts = tab.locator("svg text:visible, label span, p:visible").evaluate_all(
        """all => all.filter(each => getComputedStyle(each).visibility == "visible" && each.textContent).map(each => {
        const box = each.getBoundingClientRect(), matrix = each.getScreenCTM?.();
        const size = parseFloat(getComputedStyle(each).fontSize) * (matrix ? matrix.a : 1);
        return [size, box.left, box.right, Math.round(box.top)];
    })"""
    )
    assert min(size for size, *_ in texts) >= 12
    lines = sorted((top, left, right) for _, left, right, top in texts)
    assert all(right <= left for (a, _, right), (b, left, _) in pairwise(lines) if a == b)
    assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth")
