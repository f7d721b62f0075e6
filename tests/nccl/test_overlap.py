"""What runs beside what, where collectives run on streams of their own, as NCCL's do."""

import threading
from functools import partial

import pytest
import torch
import torch.distributed as dist
from awkward import train_sharded
from contract import Ranks
from torch import nn

from zerolab import Cluster
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
        from contract import COMPUTING, Kernel, device

        gradient, whole, may_go_on = torch.ones(4), torch.ones(4), threading.Event()
        reduce_scatter(gradient).wait()  # makes the group
        if dist.get_rank() == 1:
            reductions = device.streams[device.order[-1][0]]
            reductions.kernels.put(Kernel("what lies before", may_go_on.wait, [], [], COMPUTING))
        reduction = reduce_scatter(gradient)
        gather = all_gather(whole)
        gather.wait()
        total = whole.sum().item()  # the host waits: the reduction has not begun on rank 1
        may_go_on.set()
        reduction.wait()
        device.synchronize()
        return total

    assert ranks.run(gather_past_a_reduction) == [4.0, 4.0]


def test_some_of_the_ranks_reduce_in_their_own_group_and_no_other_has_to_come(ranks):
    def reduce_in_half_the_world():
        half = dist.new_group([1], backend=dist.get_backend())
        if dist.get_rank() == 1:
            flat = torch.ones(3)
            reduce_scatter(flat, half).wait()
            return flat.tolist()
        return None

    assert ranks.run(reduce_in_half_the_world) == [None, [1.0] * 3]


def test_ranks_that_are_in_different_numbers_of_groups_agree_on_the_one_for_reductions(tmp_path):
    def train_where_one_rank_has_a_group_of_its_own():
        dist.new_group([1], backend=dist.get_backend())
        return groups_of_a_training("zero2")

    with Cluster(2, device="cpu", timeout=3) as cluster:  # in which nothing has been reduced yet
        for asked in Ranks(cluster, tmp_path).run(train_where_one_rank_has_a_group_of_its_own):
            assert len(asked["reduce_scatter"]) == 1


def test_a_recording_tells_a_reduction_by_its_ranks_and_not_by_the_group_that_carries_it(ranks):
    recording = ranks.record(train_sharded, "zero2", torch.optim.SGD, steps=2, lr=0.1)
    reductions = [event for event in recording.events if (event.kind, event.op) == ("collective", "reduce_scatter")]
    assert reductions
    assert {event.group for event in reductions} == {None}


def under_way_in_backward(stage):
    """On a rank, at each gradient of a backward: reductions that nobody has waited for, gradients that are laid out."""
    from zerolab.engines import ENGINES

    model = nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8)) for _ in range(3)))
    engine = ENGINES[stage](model, torch.optim.SGD, lr=0.1)
    inputs = torch.ones(2, 8)
    seen = []
    for number, parameter in enumerate(model.parameters()):
        look = partial(look_at, engine, number, seen)
        parameter.register_post_accumulate_grad_hook(look)
    engine.training_step(inputs, inputs, nn.functional.mse_loss)
    engine.state_dict()  # waits for what the update has sent
    return seen


def look_at(engine, number, seen, _):
    """Notes what there is when the gradient of a parameter comes."""
    from contract import device

    reductions = sum(kernel.name in REDUCING and not kernel.is_awaited for kernel in device.under_way)
    seen.append((number, reductions, sum(flat.gradient is not None for flat in engine.flats)))


REDUCING = ("reduce_scatter", "all_reduce")


@pytest.mark.parametrize("stage", ["ddp", "zero1", "zero2", "zero3"])
def test_a_reduction_has_a_whole_units_backward_before_the_compute_stream_waits_for_it(ranks, stage):
    for seen in ranks.run(under_way_in_backward, stage):
        assert [number // 4 for number, *_ in seen] == [
            2,
            2,
            2,
            2,
            1,
            1,
            1,
            1,
            0,
            0,
            0,
            0,
        ]  # the last unit's come first
        assert [count for _, count, _ in seen] == [0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1]
        if stage in ("zero2", "zero3"):  # what is laid out goes before the next is: two units' gradients at most
            assert max(laid_out for *_, laid_out in seen) == 1
