"""The contract keeps what NCCL keeps, so that what runs on it is known to run there."""

import os
import time

import pytest
import torch
import torch.distributed as dist
from contract import Fault

from zerolab import Cluster, RankError


def test_a_synchronous_collective_returns_no_work_and_its_result_is_right(ranks):
    def reduce():
        tensor = torch.ones(4) * (dist.get_rank() + 1)
        work = dist.distributed_c10d._get_default_group().allreduce([tensor], _synchronously())
        return work, tensor.tolist()

    assert ranks.run(reduce) == [(None, [3.0] * 4)] * 2


def _synchronously():
    options = dist.AllreduceOptions()
    options.asyncOp = False
    return options


def test_a_recorder_takes_a_collective_that_returns_no_work(ranks):
    def reduce():
        tensor = torch.ones(4)
        dist.all_reduce(tensor)
        return tensor.tolist()

    recording = ranks.record(reduce)
    assert recording.results == [[2.0] * 4] * 2
    for rank in recording.ranks:
        (event,) = [event for event in rank.events if event.kind == "collective"]
        assert (event.op, event.numel) == ("all_reduce", 4)
        assert event.t_end > event.t_start


def test_the_wait_for_an_asynchronous_collective_returns_before_it_has_ended(ranks):
    def reduce():
        from contract import device

        tensor = torch.ones(4)
        if dist.get_rank() == 1:
            time.sleep(0.5)  # rank 0 cannot have been answered before
        work = dist.all_reduce(tensor, async_op=True)
        future_is_done, _ = work.get_future().done(), work.wait()
        ended_at_the_wait = device.mark().query(), work.is_completed()
        return future_is_done, ended_at_the_wait, tensor.sum().item(), device.mark().query()

    assert ranks.run(reduce)[0] == (True, (False, False), 8.0, True)


def read_too_early():
    tensor = torch.ones(4)
    work = dist.all_reduce(tensor, async_op=True)
    tensor.sum()
    work.wait()


def write_what_is_being_sent():
    given, whole = torch.ones(4), torch.empty(8)
    work = dist.all_gather_into_tensor(whole, given, async_op=True)
    given.zero_()
    work.wait()


def free_what_is_arriving():
    tensor = torch.ones(4)
    work = dist.all_reduce(tensor, async_op=True)
    tensor.untyped_storage().resize_(0)
    work.wait()


def never_wait():
    dist.all_reduce(torch.ones(4), async_op=True)


def send_on_another_group_what_is_arriving():
    other, tensor = dist.new_group([0, 1]), torch.ones(4)
    works = [dist.all_reduce(tensor, async_op=True), dist.all_reduce(tensor, group=other, async_op=True)]
    for work in works:
        work.wait()


FAULTS = {
    read_too_early: "sum.default reads what all_reduce is still sending or receiving: nobody has waited for it",
    write_what_is_being_sent: "zero_.default writes what all_gather is still",
    free_what_is_arriving: "resize_ frees what all_reduce is still",
    never_wait: "nobody has waited for all_reduce",
    send_on_another_group_what_is_arriving: "all_reduce takes what all_reduce is still",
}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_what_would_be_a_race_is_a_fault(ranks, fault):
    with pytest.raises(RankError, match=f"raised Fault: .*{FAULTS[fault]}"):
        ranks.run(fault)


def test_reading_what_is_only_being_sent_is_no_fault(ranks):
    def read():
        given, whole = torch.ones(4), torch.empty(8)
        work = dist.all_gather_into_tensor(whole, given, async_op=True)
        total = given.sum().item()
        work.wait()
        return total + whole.sum().item()

    assert ranks.run(read) == [12.0] * 2


@pytest.mark.parametrize("stage", ["zero2", "zero3"])
def test_an_engine_that_leaves_out_a_wait_is_caught(ranks, stage):
    def train_without_waits():
        from awkward import train_sharded

        from zerolab.engines.collectives import Exchange

        Exchange.wait = lambda exchange: exchange._then()
        train_sharded(stage, torch.optim.SGD, steps=1, lr=0.1)

    with pytest.raises(RankError, match=r"raised Fault: .*nobody has waited for"):
        ranks.run(train_without_waits)


def test_ranks_that_ask_for_the_same_in_another_order_are_a_fault_though_both_get_an_answer(ranks):
    def cross():
        tensors = torch.ones(4), torch.ones(4, dtype=torch.int32)
        works = [dist.all_reduce(tensors[place], async_op=True) for place in _order()]
        for work in works:
            work.wait()

    def _order():
        return (0, 1) if dist.get_rank() == 0 else (1, 0)

    with pytest.raises(Fault, match="the ranks disagree on collective 0 of group"):
        ranks.run(cross)


def test_torchs_watchdogs_abort_no_rank_unless_a_person_wants_them_to(monkeypatch):
    monkeypatch.setenv("TORCH_NCCL_ENABLE_MONITORING", "1")
    names = [f"TORCH_NCCL_{name}" for name in ("RETHROW_CUDA_ERRORS", "ASYNC_ERROR_HANDLING", "ENABLE_MONITORING")]
    with Cluster(1, device="cpu") as cluster:
        assert cluster.run(lambda: [os.environ[name] for name in names]) == [["0", "0", "1"]]
