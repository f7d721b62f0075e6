"""A recording's times are the device's: when its streams executed what the host had long handed over."""

import threading
import time
from pathlib import Path
from unittest import mock

import contract
import pytest
import torch
import torch.distributed as dist

PAUSE = 0.05  # seconds, after which something ends at the earliest


def of_kind(recording, rank, kind):
    return [event for event in recording.rank(rank).events if event.kind == kind and event.stream]


def come_late(file):
    """Rank 1 goes on when rank 0's host has asked for everything, and a moment later."""
    while dist.get_rank() == 1 and not Path(file).exists():
        time.sleep(0.001)
    time.sleep(PAUSE)


def has_asked(file):
    if dist.get_rank() == 0:
        Path(file).touch()


@pytest.fixture
def file(tmp_path):
    return str(tmp_path / "asked")


def wait_for_a_late_rank(file):
    come_late(file)
    dist.all_reduce(torch.ones(4), async_op=True).wait()
    has_asked(file)


def test_a_collective_lasts_until_the_device_is_done_with_it_though_the_host_has_gone_on(ranks, file):
    recording = ranks.record(wait_for_a_late_rank, file)
    (sent,), (waited,) = (of_kind(recording, 0, kind) for kind in ("collective", "wait"))
    (late,) = of_kind(recording, 1, "collective")
    assert (sent.stream, waited.stream) == ("communication", "compute")
    assert sent.t_end < late.t_start, "the host waited"
    for event in (sent, waited):
        assert event.device_start < late.t_start <= event.device_end
    assert late.device_end >= late.t_start


def compute_meanwhile():
    work, asked = dist.all_reduce(torch.ones(4), async_op=True), threading.Event()
    sent = contract.device.works[work]
    contract.device.compute(lambda: (sent.wait(), asked.wait(), time.sleep(PAUSE)))
    work.wait()
    asked.set()


def test_a_wait_for_what_has_ended_behind_the_computation_blocks_nothing(ranks):
    recording = ranks.record(compute_meanwhile)
    (sent,), (waited,) = (of_kind(recording, 0, kind) for kind in ("collective", "wait"))
    assert waited.device_end - waited.device_start < 1000  # what torch's float does not hold
    assert waited.device_start - waited.t_end > PAUSE * 1e9 / 2  # the host asked for it long before
    assert sent.device_end <= waited.device_start - PAUSE * 1e9 / 2


def one_after_another(file):
    come_late(file)
    works = [dist.all_reduce(torch.ones(4), async_op=True) for _ in range(2)]
    for work in works:
        work.wait()
    has_asked(file)


def test_a_collective_begins_when_the_one_before_it_on_its_communicator_has_ended(ranks, file):
    first, second = of_kind(ranks.record(one_after_another, file), 0, "collective")
    assert second.t_end < first.device_end
    assert second.device_start == first.device_end


def on_two_groups():
    other = dist.new_group([0, 1])
    works = [dist.all_reduce(torch.ones(4), group=group, async_op=True) for group in (None, other)]
    for work in works:
        work.wait()


def test_each_communicator_has_a_stream_of_its_own(ranks):
    found = of_kind(ranks.record(on_two_groups), 0, "collective")
    assert [event.stream for event in found][-2:] == ["communication", "communication 2"]


def synchronously(file):
    come_late(file)
    dist.all_reduce(torch.ones(4))
    has_asked(file)


def test_a_synchronous_collective_is_executed_by_the_compute_stream(ranks, file):
    recording = ranks.record(synchronously, file)
    (event,), (late,) = (of_kind(recording, rank, "collective") for rank in (0, 1))
    assert event.stream == "compute"
    assert event.t_end < late.t_start <= event.device_end


def forward_behind_a_computation():
    model, asked = torch.nn.Linear(3, 3), threading.Event()
    contract.device.compute(lambda: (asked.wait(), time.sleep(PAUSE)))
    model(torch.ones(1, 3))
    asked.set()


def test_a_units_pass_begins_when_the_stream_comes_to_it(ranks):
    (event,) = of_kind(ranks.record(forward_behind_a_computation), 0, "module")
    assert event.stream == "compute"
    assert event.device_start - event.t_end > PAUSE * 1e9 / 2


def pass_late():
    model = torch.nn.Linear(3, 3)
    time.sleep(2)
    model(torch.ones(1, 3))


@pytest.mark.slow
def test_the_devices_clock_runs_faster_and_its_times_are_on_the_hosts(ranks):
    (event,) = of_kind(ranks.record(pass_late), 0, "module")
    # The marks are made between the host's own two stamps; the device's clock has gained 20 ms by then.
    margin = 200_000
    assert event.t_start - margin < event.device_start <= event.device_end < event.t_end + margin


@pytest.mark.parametrize("how", ["record", "record_times"])
@pytest.mark.parametrize("stage", ["zero2", "zero3", "fsdp2", "torch-ddp"])
def test_what_an_engine_does_is_timed_on_the_streams(ranks, stage, how):
    from awkward import train_sharded

    choice = {"find_unused_parameters": True} if stage == "torch-ddp" else {}
    recording = getattr(ranks, how)(train_sharded, stage, torch.optim.SGD, steps=2, lr=0.1, **choice)
    for kind in ("module", "optimizer", "collective"):
        events = [event for event in recording.rank(0).events if event.kind == kind and event.step == 2]
        # A send or receive within another event, and a barrier, are the host's.
        timed = [event for event in events if event.stream is not None]
        assert timed, kind
        for event in timed:
            assert event.device_start <= event.device_end
            assert event.device_end >= event.t_start - 100_000
        assert kind == "collective" or len(timed) == len(events)


def functional(file):
    from torch.distributed._functional_collectives import all_reduce

    come_late(file)
    result = all_reduce(torch.ones(4), "sum", dist.group.WORLD)
    has_asked(file)
    return result.tolist()


def test_a_recording_of_times_only_has_those_of_functional_collectives(ranks, file):
    # Not within the contract's dispatch mode, below which torch skips the level at which collectives are seen.
    recording = ranks.unchecked().record_times(functional, file)
    (sent,), (late,) = (of_kind(recording, rank, "collective") for rank in (0, 1))
    assert (sent.op, sent.stream) == ("all_reduce", "communication")
    assert sent.t_end < late.t_start <= sent.device_end


def fail_in_flight():
    if dist.get_rank() == 0:
        dist.all_reduce(torch.ones(4), async_op=True).wait()
        raise ValueError("no use")
    time.sleep(PAUSE)
    dist.all_reduce(torch.ones(4))


def test_after_an_error_nobody_waits_for_the_device(ranks):
    from zerolab import RankError

    with pytest.raises(RankError, match="no use") as caught:
        ranks.record(fail_in_flight)
    assert not of_kind(caught.value.recording, 0, "collective")


def train_where_each_collective_of_native_code_ends_at_once():
    from awkward import train_sharded

    launch = contract._launch

    def late(kernel, *given):
        work = launch(kernel, *given)
        while not kernel.asked_by_python and not kernel.is_done:
            time.sleep(0.001)
        kernel.work = kernel.work if kernel.asked_by_python else None  # its stream may have let go before it was there
        return work

    with mock.patch.object(contract, "_launch", late):
        train_sharded("torch-ddp", torch.optim.SGD, steps=2, lr=0.1, find_unused_parameters=True)


def test_a_collective_that_has_ended_before_its_work_is_looked_at_has_ended(ranks):
    recording = ranks.record(train_where_each_collective_of_native_code_ends_at_once)
    for rank in range(2):
        sent = [event for event in of_kind(recording, rank, "collective") if event.phase == "reduce"]
        assert {event.step for event in sent} == {1, 2}
        assert all(event.device_start <= event.device_end for event in sent)


def hand_over_what_nobody_else_holds():
    """On a rank: of each collective, whether all of its tensors are kept while it is on its way."""
    count, kept, mark_end = dist.get_world_size(), [], contract.device.mark_end

    def noted(work, communicator, tensors):
        kept.append({tensor.data_ptr() for tensor in tensors})
        return mark_end(work, communicator, tensors)

    small, parts = torch.ones(4), [torch.ones(4) for _ in range(count)]
    large, other = torch.ones(4 * count), torch.empty(4 * count)
    with mock.patch.object(contract.device, "mark_end", noted):
        dist.all_gather_into_tensor(large, small, async_op=True).wait()
        dist.reduce_scatter_tensor(small, large, async_op=True).wait()
        dist.reduce_scatter(small, parts, async_op=True).wait()
        dist.all_to_all_single(other, large, async_op=True).wait()
    given = [[small, large], [small, large], [small, *parts], [large, other]]
    return [{tensor.data_ptr() for tensor in tensors} <= found for tensors, found in zip(given, kept, strict=True)]


def test_what_a_collective_reads_is_kept_while_it_is_on_its_way_as_what_it_fills_is(ranks):
    assert ranks.record(hand_over_what_nobody_else_holds).results == [[True] * 4] * 2
