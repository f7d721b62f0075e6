"""Ranks that wait for each other on their devices: the hosts have gone on, and one of them may spin."""

import re
import time

import contract
import pytest
import torch
import torch.distributed as dist
from contract import TIMEOUT

from zerolab import CollectiveHang

pytestmark = pytest.mark.slow


def skip_one_and_return():
    dist.all_reduce(torch.ones(1))
    if dist.get_rank() != 1:
        dist.all_reduce(torch.ones(1))  # the last line: nothing fetches its result


def skip_one_and_fetch():
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    if dist.get_rank() != 1:
        dist.all_reduce(tensor)
    return tensor.item()


def skip_one_that_runs_ahead():
    tensor = torch.ones(1)
    if dist.get_rank() != 1:
        work = dist.all_reduce(tensor, async_op=True)
        work.wait()
    return tensor.item()


def skip_a_barrier():
    dist.all_reduce(torch.ones(1))
    if dist.get_rank() != 1:
        dist.barrier()


def skip_one_in_backward():
    def all_reduce_on_some(gradient):
        if dist.get_rank() != 1:
            dist.all_reduce(gradient)
        return gradient * 2

    with contract.autograd_in_a_thread_of_its_own():
        weight = torch.ones(1, requires_grad=True)
        weight.register_hook(all_reduce_on_some)
        (weight * 2).sum().backward()
    return weight.grad.item()


def skip_a_step_of_an_engine():
    from zerolab import Zero2

    engine = Zero2(torch.nn.Linear(3, 3), torch.optim.SGD, lr=0.1)
    for _ in range(1 if dist.get_rank() == 1 else 2):
        engine.training_step(torch.ones(1, 3), torch.ones(1, 3), torch.nn.functional.mse_loss)


def skip_a_step_of_ddp():
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 3), broadcast_buffers=False)
    for _ in range(1 if dist.get_rank() == 1 else 2):
        model(torch.ones(1, 3)).sum().backward()


HANGS = {
    skip_one_and_return: ("all_reduce #1", "dist.all_reduce(torch.ones(1))  # the last line"),
    skip_one_and_fetch: ("all_reduce #1", "dist.all_reduce(tensor)"),
    skip_one_that_runs_ahead: ("all_reduce #0", "work = dist.all_reduce(tensor, async_op=True)"),
    skip_a_barrier: ("barrier #1", "dist.barrier()"),
    skip_one_in_backward: ("all_reduce #0", "dist.all_reduce(gradient)"),
    skip_a_step_of_an_engine: ("reduce_scatter #", "reduction.py, line "),
    skip_a_step_of_ddp: ("broadcast #", "model(torch.ones(1, 3)).sum().backward()"),
}


@pytest.mark.parametrize("hang", HANGS, ids=lambda hang: hang.__name__)
def test_a_hang_is_found_within_two_seconds_after_the_timeout_and_named(three, hang):
    three.run(dist.get_rank)
    collective, line = HANGS[hang]
    with pytest.raises(CollectiveHang, match=r"^rank [02] has waited in .* and no other rank moves") as caught:
        three.run(hang)
    found, error = time.monotonic(), caught.value
    assert found - error.standings[error.rank].position.since / 1e9 < TIMEOUT + 2
    assert collective in error.collective
    assert line in error.where
    row = rf"^  {error.rank}  .*waiting in {error.collective}  .*{re.escape(error.where)}$"
    assert re.search(row, str(error), re.MULTILINE), str(error)
    assert re.search(r"^rank 1 has not reached .*#\d+: finished", str(error), re.MULTILINE), str(error)
    stops = error.drawing.stops
    for stop in stops.values():  # those that are in the same collective do not wait for each other
        assert all(stops[peer].doing != stop.doing for peer in stop.waits_for), repr(error.drawing)


def test_a_device_that_computes_longer_than_the_timeout_is_no_hang(three):
    def compute():
        if dist.get_rank() == 1:
            contract.device.compute(2 * TIMEOUT + 1)  # the others wait for this rank, and its host sleeps
        tensor = torch.ones(1)
        dist.all_reduce(tensor)
        contract.device.synchronize()
        return tensor.item()

    assert three.run(compute) == [3.0] * 3


def test_a_backward_in_a_thread_of_its_own_may_take_longer_than_the_timeout(three):
    def compute_alone(gradient):
        end = time.monotonic() + 2 * TIMEOUT + 1
        while dist.get_rank() == 1 and time.monotonic() < end:
            sum(range(10**6))
        return gradient

    def train():
        with contract.autograd_in_a_thread_of_its_own():
            weight = torch.ones(1, requires_grad=True)
            weight.register_hook(compute_alone)
            (weight * 2).sum().backward()
        dist.all_reduce(weight.grad)
        return weight.grad.item()

    assert three.run(train) == [6.0] * 3


def test_events_that_come_are_progress_though_the_hosts_do_not_move(three):
    def run_ahead():
        tensor = torch.ones(1)
        for _ in range(4):
            contract.device.compute(TIMEOUT * 0.7)
            dist.all_reduce(tensor)
        return tensor.item()

    assert three.run(run_ahead) == [81.0] * 3


def test_a_computation_that_lets_nobody_look_at_the_device_is_no_hang(three):
    def compute():
        tensor = torch.ones(1)
        if dist.get_rank() == 1:
            time.sleep(0.7)  # so that the others are seen to wait on their devices
        dist.all_reduce(tensor)
        if tensor.item() and dist.get_rank() == 0:
            end = time.monotonic() + 2 * TIMEOUT + 1
            while time.monotonic() < end:
                sum(range(3 * 10**7))  # one call into C, with the lock held
        dist.all_reduce(tensor)
        return tensor.item()

    assert three.run(compute) == [9.0] * 3
