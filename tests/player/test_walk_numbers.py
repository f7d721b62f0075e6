"""The numbers that the guided walk tells, where not every element is alike: other dtypes, padding, frozen ones."""

import pytest
from test_walk import asked, chapters, logical

from zerolab import Cluster, simulate

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def unlike(train):
    """Two steps on two ranks of models and precisions in which not every element is alike."""
    with Cluster(world_size=2, device="cpu") as cluster:
        return {
            "zero3 bf16": cluster.record(train, "zero3", precision="bf16"),
            "fsdp2 bf16": cluster.record(train, "fsdp2", precision="bf16"),
            "fsdp1": cluster.record(train, "fsdp1"),
            "zero1 fp16": cluster.record(train, "zero1", precision="fp16"),
            "frozen": cluster.record(train, "ddp", frozen="blocks.0"),
            "padded": cluster.record(train, "ddp", "mlp-odd"),
            "uneven": cluster.record(train, "fsdp2", "mlp-odd"),
        }


@pytest.fixture(scope="module")
def odd(train):
    """Two steps on four ranks of a model that four do not divide."""
    with Cluster(world_size=4, device="cpu") as cluster:
        return {stage: cluster.record(train, stage, "mlp-odd") for stage in ("fsdp1", "torch-ddp")}


def said(tab, title):
    return next(chapter["says"] for chapter in chapters(tab) if chapter["title"].endswith(title))


@pytest.mark.parametrize("name", ["zero3 bf16", "fsdp2 bf16"])
def test_bytes_of_a_unit_are_those_of_the_dtype_in_which_it_is_held_and_sent(unlike, show, name):
    tab = show(unlike[name], story=True)
    assert logical(unlike[name], op="all_gather", unit="blocks.1", phase="gather") == 2 * 49_984  # forward and backward
    assert "needs all of it, 100 kB. So each sends its own part, 50.0 kB," in said(tab, "is gathered")
    assert asked(chapters(tab), "How many bytes did rank 0 send")[0] == "49,984 bytes"
    keeps = {"zero3 bf16": "of 100 kB it keeps 50.0 kB.", "fsdp2 bf16": "it keeps 100 kB, in float32."}[name]
    assert keeps in said(tab, "is computed, and freed")
    if name == "zero3 bf16":
        assert "200 kB" not in str(chapters(tab))  # as many elements in fp32
        assert "637 kB: 3 times all parameters, less its own part each time." in said(tab, "What it came to")


def test_how_often_all_parameters_were_sent_is_counted_in_the_dtype_in_which_they_are_held(unlike, show):
    tab = show(unlike["zero1 fp16"], story=True)
    assert "425 kB: 2 times all parameters, less its own part each time." in said(tab, "What it came to")


@pytest.mark.parametrize("name", ["frozen", "padded"])
def test_a_rank_that_keeps_everything_holds_all_of_it(unlike, show, name):
    """Frozen parameters have no gradients and no optimizer state; padding is held as well."""
    tab = show(unlike[name], story=True)
    held = said(tab, "What it came to").split(" held ")[1].split(" of ")[0]
    assert f"All of it would be {held}." in said(tab, "What it came to")
    assert asked(chapters(tab), "What share of all state")[0] == "100 %"


def test_a_part_that_is_sent_is_as_large_as_recorded_where_ranks_own_unlike_parts(unlike, show):
    tab = show(unlike["uneven"], story=True)
    sent = logical(unlike["uneven"], op="all_gather", unit="2") // 2
    assert sent == 4 * (7 * 13 + 7)  # of 13 rows the larger half
    assert f"So each sends its own part, {sent} B, to the other rank" in said(tab, "is gathered")


def test_all_of_it_counts_no_padding_where_no_rank_keeps_any(unlike, show):
    """FSDP2 pads the rows that it sends, but the ranks' parts together are the parameters alone."""
    recording = unlike["uneven"]
    live = next(e.live for e in recording.ranks[0].events if e.kind == "optimizer" and e.step == 2)
    held = {e.unit: e.held for e in recording.ranks[0].events if e.op == "hold" and e.category == "optimizer_state"}
    state = sum(live[category] for category in ("parameters", "gradients", "optimizer_state"))
    all_of_it = state / sum(held.values()) * sum(unit.numel for unit in recording.units)
    assert sum(unit.padded for unit in recording.units) > sum(unit.numel for unit in recording.units)
    assert f"All of it would be {all_of_it / 1000:.2f} kB." in said(show(recording, story=True), "What it came to")


def test_all_of_it_counts_padding_where_ranks_keep_it_though_nobody_tells_of_which_elements(odd, show):
    """The last rank of FSDP1 holds as many bytes as the others, for fewer elements."""
    live = [next(e.live for e in rank.events if e.kind == "optimizer" and e.step == 2) for rank in odd["fsdp1"].ranks]
    all_of_it = sum(sum(of[kind] for kind in ("parameters", "gradients", "optimizer_state")) for of in live)
    tells = said(show(odd["fsdp1"], story=True), "What it came to")
    assert f"All of it would be {all_of_it / 1000:.2f} kB." in tells
    assert "3.13 kB: 3 times all parameters, less its own part each time." in tells


def test_padding_that_no_rank_has_does_not_hide_how_often_all_parameters_were_sent(odd, show):
    tells = said(show(odd["torch-ddp"], story=True), "What it came to")
    assert f"All of it would be {tells.split(' held ')[1].split(' of ')[0]}." in tells
    assert "2.08 kB: 2 times all parameters, less its own part each time." in tells


def test_of_a_sum_that_is_put_aside_until_the_update_nobody_says_that_nothing_is_kept(unlike, show):
    """FSDP1 gives it to the optimizer only when the backward is over."""
    tab = show(unlike["fsdp1"], story=True)
    assert "keeps 0 B" not in said(tab, "gradients are added up")


def test_a_share_of_a_unit_that_is_padded_is_one_of_as_many_as_there_are_ranks(show):
    tab = show(simulate("zero2", world_size=1024, model="gpt-tiny").recordings["zero2"], story=True)
    right, answers = asked(chapters(tab), "How much of blocks.1's optimizer state")
    assert (right, len(answers)) == ("1/1,024 of it", 3)
