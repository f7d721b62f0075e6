"""What runs beside what, where collectives run on streams of their own, as NCCL's do."""

import pytest
import torch
import torch.distributed as dist
from awkward import train_sharded

from zerolab.engines.collectives import all_gather, reduce_scatter

pytestmark = pytest.mark.slow


def groups_of_a_training(stage, **options):
    """On a rank: the names of the groups over which an engine asked for each of its large collectives."""
    from contract import device

    train_sharded(stage, torch.optim.SGD, 2, lr=0.1, **options)
    asked = {}
    for group, op, numel, _ in device.order:
        if numel > 2 * dist.get_world_size():  # what the ranks compare is less
            asked.setdefault(op, set()).add(group)
    return asked


@pytest.mark.parametrize("stage", ["zero1", "zero2", "zero3"])
def test_gathers_and_reductions_go_over_groups_of_their_own(ranks, stage):
    for asked in ranks.run(groups_of_a_training, stage):
        assert not asked["all_gather"] & asked["reduce_scatter"]
        assert len(asked["reduce_scatter"]) == 1


def test_a_gather_does_not_stand_behind_a_reduction_that_was_asked_for_before(ranks):
    def gather_past_a_reduction():
        from contract import device

        gradient, whole = torch.ones(4), torch.ones(4)
        reduce_scatter(gradient).wait()  # makes the group
        if dist.get_rank() == 0:
            reduction = reduce_scatter(gradient)
        gather = all_gather(whole)
        gather.wait()
        total = whole.sum().item()  # the host waits: rank 1 has not been asked for the reduction yet
        if dist.get_rank() == 1:
            reduction = reduce_scatter(gradient)
        reduction.wait()
        device.synchronize()
        return total

    assert ranks.run(gather_past_a_reduction) == [4.0, 4.0]


def test_the_groups_of_a_subset_of_the_ranks_are_made_by_that_subset_alone(ranks):
    def reduce_in_half_the_world():
        half = dist.new_group([1], backend=dist.get_backend())
        if dist.get_rank() == 1:
            flat = torch.ones(3)
            reduce_scatter(flat, half).wait()
            return flat.tolist()
        return None

    assert ranks.run(reduce_in_half_the_world) == [None, [1.0] * 3]


def test_a_recording_tells_a_reduction_by_its_ranks_and_not_by_the_group_that_carries_it(ranks):
    recording = ranks.record(train_sharded, "zero2", torch.optim.SGD, steps=2, lr=0.1)
    reductions = [event for event in recording.events if (event.kind, event.op) == ("collective", "reduce_scatter")]
    assert reductions
    assert {event.group for event in reductions} == {None}
