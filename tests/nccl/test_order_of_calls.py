"""Ranks that ask their devices for different things are told so by rank, collective and line, before anything waits."""

import re
import time

import pytest
import torch
import torch.distributed as dist
from torch import nn

from zerolab import RankError
from zerolab.engines import ENGINES
from zerolab.engines.collectives import all_gather, reduce_scatter
from zerolab.runtime.board import KEPT

pytestmark = pytest.mark.slow


def swap_two_reductions():
    flats = {name: torch.ones(8) for name in ("first", "second")}
    for name in sorted(flats, reverse=dist.get_rank() == 1):
        reduce_scatter(flats[name], name=name).wait()


def gather_what_is_reduced():
    collective = all_gather if dist.get_rank() == 1 else reduce_scatter
    collective(torch.ones(4), name="unit").wait()


def reduce_two_sizes():
    dist.all_reduce(torch.ones(3 + dist.get_rank()))


def broadcast_from_two_roots():
    dist.broadcast(torch.ones(2), src=dist.get_rank())


def differ_after_many():
    for _ in range(2 * KEPT):
        dist.all_reduce(torch.ones(1), async_op=True).wait()
    dist.all_reduce(torch.ones(1 + dist.get_rank()))


def swap_within_a_block():
    with dist._coalescing_manager():
        for numel in (4, 8) if dist.get_rank() == 0 else (8, 4):
            dist.all_reduce(torch.ones(numel))


def train_with_two_reductions_swapped():
    """What a race between hooks would do to an engine: two units of one size are reduced in another order on rank 1."""
    model = nn.Sequential(*(nn.Sequential(nn.Linear(4, 4)) for _ in range(3)))
    engine, ones = ENGINES["zero2"](model, torch.optim.SGD, lr=0.1), torch.ones(2, 4)
    engine.training_step(ones, ones, nn.functional.mse_loss)
    expect = engine._reduction.expect

    def expect_swapped(*args, **keywords):
        expect(*args, **keywords)
        engine._reduction._waiting[1:] = reversed(engine._reduction._waiting[1:])

    if dist.get_rank() == 1:
        engine._reduction.expect = expect_swapped
    engine.training_step(ones, ones, nn.functional.mse_loss)


DISAGREEMENTS = {
    swap_two_reductions: ("reduce_scatter #0 with 'first' (8 elements of 4 bytes)", "reduce_scatter(flats[name]"),
    gather_what_is_reduced: ("reduce_scatter #0 with 'unit' (4 elements of 4 bytes)", "collective(torch.ones(4)"),
    reduce_two_sizes: ("all_reduce #0 (3 elements of 4 bytes)", "dist.all_reduce(torch.ones(3"),
    broadcast_from_two_roots: ("broadcast #0 with rank 1 as its root (2 elements of 4 bytes)", "dist.broadcast("),
    differ_after_many: (f"all_reduce #{2 * KEPT} (2 elements of 4 bytes)", "dist.all_reduce(torch.ones(1 + "),
    swap_within_a_block: ("all_reduce #0 with '8+4 elements' (12 el", "with dist._coalescing_manager"),
    train_with_two_reductions_swapped: ("with '0.0' (32 elements of 4 bytes)", "return reduce_scatter(gradient"),
}


@pytest.mark.parametrize("disagree", DISAGREEMENTS, ids=lambda disagree: disagree.__name__)
def test_ranks_that_disagree_are_told_at_the_line_at_which_they_do(ranks, disagree):
    with pytest.raises(RankError) as caught:
        ranks.run(disagree)
    error, (call, line) = caught.value, DISAGREEMENTS[disagree]
    one, ones, other, others = re.search(
        r"rank (\d) asks for (.*?), and rank (\d) for (.*?) in its place: every rank must ask for the same", error.what
    ).groups()
    assert {one, other} == {"0", "1"}
    assert (call in ones) != (call in others), error.what
    assert line in error.where
    assert re.search(r"^rank 1 is in .* #\d+", error.mismatches[0])


def test_a_call_is_not_compared_with_the_one_before_which_another_rank_has_left_on_its_page(ranks):
    def come_late(often):
        time.sleep(0.2 * dist.get_rank())  # rank 0 calls while rank 1 has not begun
        for _ in range(often):
            dist.all_reduce(torch.ones(often))
        return often

    assert [ranks.run(come_late, often) for often in (3, 1, 2)] == [[3, 3], [1, 1], [2, 2]]


def test_a_group_that_some_ranks_make_without_the_others_leaves_everybodys_count_alone(ranks):
    def make_alone():
        if dist.get_rank() == 1:
            dist.new_group([1], backend=dist.get_backend(), use_local_synchronization=True)
        tensor = torch.ones(1)
        dist.all_reduce(tensor)
        return tensor.item()

    assert ranks.run(make_alone) == [2.0, 2.0]
