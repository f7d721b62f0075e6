"""Frames of a step show what the recording says each rank holds, and an arrow from every rank to every owner."""

import re

import pytest
import torch

from zerolab import Cluster, models
from zerolab.engines import ENGINES
from zerolab.figures import Frames
from zerolab.player.strip import RANK_COLOURS


def train(stage, steps=2):
    engine = ENGINES[stage](models.build("gpt-tiny"), torch.optim.AdamW, lr=1e-3)
    rank, world_size = torch.distributed.get_rank(), torch.distributed.get_world_size()
    for batch in models.batches("gpt-tiny", world_size, rank, steps, rows=1):
        engine.training_step(*batch, models.loss)


@pytest.fixture(scope="module")
def runs():
    with Cluster(world_size=3, device="cpu") as cluster:
        return {stage: cluster.record(train, stage) for stage in ("ddp", "zero1", "zero2", "zero3")}


def drawn(run, *moments):
    """How the parts of each category look on each rank, frame by frame."""
    return Frames(run, "blocks.1", moments).frames


def only(rank, own, others):
    return [own if part == rank else others for part in range(3)]


def test_after_zero1s_update_each_owner_alone_has_what_is_new(runs):
    for rank, looks in enumerate(drawn(runs["zero1"], "updated")[0]):
        assert looks == {
            "parameters": only(rank, "right", "old"),
            "gradients": only(rank, "right", "old"),
            "optimizer_state": only(rank, "right", "gone"),
        }


def test_zero2_has_a_whole_gradient_and_then_a_part_of_it(runs):
    made, reduced, kept = drawn(runs["zero2"], "made", "reduced", "kept")
    for rank in range(3):
        assert made[rank]["gradients"] == reduced[rank]["gradients"] == ["local"] * 3
        assert kept[rank]["gradients"] == only(rank, "right", "gone")
        assert kept[rank]["parameters"] == ["right"] * 3


def test_zero3_has_a_part_then_what_comes_and_then_the_whole(runs):
    released, gathered, used = drawn(runs["zero3"], "released", "gathered", "used")
    for rank in range(3):
        assert released[rank]["parameters"] == only(rank, "right", "gone")
        assert gathered[rank]["parameters"] == only(rank, "right", "coming")
        assert used[rank]["parameters"] == ["right"] * 3


@pytest.mark.parametrize(("stage", "moment"), [("zero1", "reduced"), ("zero1", "published"), ("zero3", "gathered")])
def test_arrows_of_all_ranks_lead_to_or_from_each_owner(runs, stage, moment):
    picture = Frames(runs[stage], "blocks.1", [moment]).svg()
    heads = re.findall(r'<path d="M[\d.]+ [\d.]+l-4 -?8h8z" fill="(#\w+)"', picture)
    assert sorted(heads) == sorted(RANK_COLOURS[owner] for owner in range(3) for _ in range(2))


def test_the_text_counts_the_parts_of_rank_0(runs):
    assert repr(Frames(runs["zero1"], "blocks.1", ["updated"])) == (
        "blocks.1 of zero1 on 3 ranks, in frames. each owner updates its part: rank 0 has 3 of 3 parts of parameters "
        "(2 old), 3 of 3 parts of gradients (2 old), 1 of 3 parts of optimizer state"
    )


@pytest.mark.parametrize(
    ("stage", "unit", "moment", "says"),
    [
        ("zero1", "blocks.9", "made", "unit"),
        ("zero1", "blocks.1", "mad", "moment"),
        ("zero1", "blocks.1", "used", "zero1 on 3 ranks has no moment when whole, while it is used"),
        ("ddp", "blocks.1", "made", "no rank owns one part of blocks.1 in ddp on 3 ranks"),
    ],
)
def test_what_cannot_be_shown_is_refused_in_a_sentence(runs, stage, unit, moment, says):
    with pytest.raises(ValueError, match=says):
        Frames(runs[stage], unit, [moment])
