"""The promise of the ledger: to the byte what torch's own allocator says, of a run that nobody recorded."""

import gc
import itertools
from functools import cache

import numpy as np
import pytest
import torch
from torch.profiler import ProfilerActivity, profile
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from zerolab import models
from zerolab.theory import STAGES


def visible_storages():
    """The memory of all tensors that Python knows, by its number; between two steps there is no other."""
    tensors = [thing for thing in gc.get_objects() if issubclass(type(thing), torch.Tensor)]
    return {tensor.untyped_storage()._cdata: tensor.untyped_storage() for tensor in tensors}


def allocator_peak(train, *arguments, steps=3):
    """Bytes that torch's CPU allocator reached in the last step, above what was there before; nothing is recorded.

    Only the last step is profiled: the profiler does not see what gloo's threads free, and in the first step they do.
    """
    gc.collect()
    # Kept, for some garbage takes a second collection: freed in the middle, it would seem to be the run's own.
    before = visible_storages()
    profiler = profile(activities=[ProfilerActivity.CPU], profile_memory=True)
    at_start = []

    def last_step_begins(step):
        if step == steps - 1:
            at_start.extend(storage.nbytes() for key, storage in visible_storages().items() if key not in before)
            profiler.__enter__()

    train(*arguments, before_step=last_step_begins)
    profiler.__exit__(None, None, None)
    events = profiler.profiler.kineto_results.events()
    changes = sorted((event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]")
    return sum(at_start) + max(itertools.accumulate(nbytes for _, nbytes in changes))


@pytest.fixture(scope="module")
def measured(cluster, train):
    """A function from a model and a stage to the allocator's peaks and the recording."""

    @cache
    def measure(name, stage, steps=3):
        peaks = cluster.run(allocator_peak, train, stage, name, steps, steps=steps)
        return peaks, cluster.record(train, stage, name, steps)

    return measure


@pytest.mark.slow
@pytest.mark.parametrize("stage", STAGES)
def test_the_peak_is_the_allocators_to_the_byte_on_the_benchmark_mlp(measured, stage):
    peaks, recording = measured("mlp-bench", stage)
    for peak, rank in zip(peaks, recording.ranks, strict=True):
        assert rank.info.peak_total == peak


@pytest.mark.slow
@pytest.mark.parametrize("stage", STAGES)
def test_on_a_gpt_at_most_a_thousandth_is_kernel_scratch(measured, stage):
    peaks, recording = measured("gpt-10m", stage, steps=2)  # Adam has its state in the second, and a third is the same
    for peak, rank in zip(peaks, recording.ranks, strict=True):
        kernel_scratch = peak - rank.info.peak_total
        assert 0 <= kernel_scratch <= 0.001 * peak


@pytest.mark.parametrize("stage", STAGES)
def test_the_peak_of_a_step_is_told_by_an_event_of_it(measured, stage):
    _, recording = measured("mlp-bench", stage)
    for rank in recording.ranks:
        last = [event for event in rank.events if event.step == rank.info.steps]
        assert max(sum(event.live.values()) for event in last) == rank.info.peak_total


@pytest.mark.parametrize("stage", STAGES)
def test_what_leaves_the_sockets_is_at_most_two_percent_more_than_the_logical_bytes(measured, require, stage):
    _, recording = measured("mlp-bench", stage)
    for rank in recording.ranks:
        counted = None not in rank.info.wire_bytes
        require(counted, "a kernel that counts the bytes of its TCP connections", "take Linux 4.19 or newer")
        for wire, logical in zip(rank.info.wire_bytes[1:], rank.info.logical_bytes[1:], strict=True):
            assert logical <= wire <= 1.02 * logical


def three_steps(model, optimizer, backward, before_step):
    """Each is a `backward(step)`, which leaves nothing else, and an update."""
    optimizer = optimizer(model.parameters())
    for step in range(3):
        before_step(step)
        backward(step)
        optimizer.step()
        optimizer.zero_grad()


def plain_loop(activation=torch.nn.Tanh, before_step=lambda _: None):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(30, 50), activation(), torch.nn.Linear(50, 20))

    def backward(_):
        models.loss(model(torch.randn(400, 30)), torch.randn(400, 20)).backward()

    three_steps(model, torch.optim.AdamW, backward, before_step)


# Backwards of SiLU and Mish are written with other operations, too, for devices that have no kernel of their own.
@pytest.mark.parametrize("activation", [torch.nn.Tanh, torch.nn.SiLU, torch.nn.Mish])
def test_the_peak_of_a_loop_without_engine_or_ranks_is_the_allocators_too(record, activation):
    plain_loop(activation)
    peak = allocator_peak(plain_loop, activation)
    recording = record(plain_loop, activation)
    assert recording.info.peak_total == peak


def loop_with_a_large_loss(before_step=lambda _: None):
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 8))

    def backward(_):
        outputs = model(torch.ones(1000, 8))
        torch.cdist(outputs.detach(), outputs.detach()).amin()
        outputs.square().mean().backward()

    three_steps(model, torch.optim.AdamW, backward, before_step)


def test_a_peak_while_the_loss_is_computed_is_one_of_forward(record):
    """Its event said backward, in which it was logged."""
    recording = record(loop_with_a_large_loss)
    highest = max((event for event in recording.events if event.step == 3), key=lambda event: sum(event.live.values()))
    assert (highest.op, highest.phase) == ("peak", "forward")
    assert sum(recording.info.peaks["forward"].values()) == recording.info.peak_total == sum(highest.live.values())


def loop_with_an_evaluation_in_inference_mode(before_step=lambda _: None):
    torch.manual_seed(0)
    model = torch.nn.Linear(30, 50)

    def backward(_):
        model(torch.randn(8, 30)).sum().backward()
        with torch.inference_mode():
            model(torch.randn(500, 30)).to(torch.float64).square().reshape(50, 500).chunk(2)[0].sum()

    three_steps(model, torch.optim.SGD, backward, before_step)


def test_the_peak_of_what_is_computed_in_inference_mode_is_the_allocators(record):
    loop_with_an_evaluation_in_inference_mode()
    peak = allocator_peak(loop_with_an_evaluation_in_inference_mode)
    assert record(loop_with_an_evaluation_in_inference_mode).info.peak_total == peak


class Blocks(torch.nn.Module):
    """Computed again in backward, block by block."""

    def __init__(self, use_reentrant):
        super().__init__()
        self.blocks, self.use_reentrant = torch.nn.ModuleList(torch.nn.Linear(30, 30) for _ in range(4)), use_reentrant

    def forward(self, values):
        for block in self.blocks:
            values = checkpoint(block, values, use_reentrant=self.use_reentrant).tanh()
        return values


def loop_with_checkpoints(use_reentrant, before_step=lambda _: None):
    torch.manual_seed(0)
    model = Blocks(use_reentrant)

    def backward(_):
        (model(torch.randn(400, 30, requires_grad=True)) - torch.randn(400, 30)).square().mean().backward()

    three_steps(model, torch.optim.AdamW, backward, before_step)


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_what_checkpointing_keeps_of_the_generator_is_in_the_peak(record, use_reentrant):
    loop_with_checkpoints(use_reentrant)
    peak = allocator_peak(loop_with_checkpoints, use_reentrant)
    assert record(loop_with_checkpoints, use_reentrant).info.peak_total == peak


def loop_over_arrays_of_numpys(before_step=lambda _: None):
    torch.manual_seed(0)
    array, model = np.random.default_rng(0).random((4000, 30), np.float32), torch.nn.Linear(30, 50)

    def backward(step):
        rows = torch.from_numpy(array)[400 * step : 400 * (step + 1)]
        (model(rows) * torch.tensor(array[0, 0])).sum().backward()

    three_steps(model, torch.optim.SGD, backward, before_step)


def test_what_numpy_holds_is_in_no_peak_however_often_it_is_made_a_tensor(record):
    loop_over_arrays_of_numpys()
    peak = allocator_peak(loop_over_arrays_of_numpys)
    assert record(loop_over_arrays_of_numpys).info.peak_total == peak


def loop_with_derivatives_forward(before_step=lambda _: None):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 500), torch.nn.Tanh(), torch.nn.Linear(500, 3))

    def backward(_):
        slopes = torch.func.jacfwd(model)(torch.randn(6))
        (model(torch.randn(40, 6)).square().mean() + slopes.square().mean()).backward()

    three_steps(model, torch.optim.SGD, backward, before_step)


def test_zeros_that_take_no_memory_are_in_no_peak(record):
    loop_with_derivatives_forward()
    peak = allocator_peak(loop_with_derivatives_forward)
    assert record(loop_with_derivatives_forward).info.peak_total == peak


class Onlooker(TorchDispatchMode):
    """Sees operations and does nothing; autograd copies sparse gradients for anybody who does."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **kwargs or {})


def loop_with_sparse_gradients(optimizer, before_step=lambda _: None):
    torch.manual_seed(0)
    model = torch.nn.EmbeddingBag(50, 16, sparse=True, mode="sum")
    optimizer = optimizer(model.parameters(), lr=0.1)
    for step in range(3):
        before_step(step)
        model(torch.randint(50, (8, 37))).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def watched_loop_with_sparse_gradients(optimizer, before_step):
    with Onlooker():
        loop_with_sparse_gradients(optimizer, before_step)


@pytest.mark.parametrize(
    ("optimizer", "loop"),
    [
        (torch.optim.SparseAdam, loop_with_sparse_gradients),  # its peak is in the update
        (torch.optim.SGD, watched_loop_with_sparse_gradients),
    ],
    ids=["SparseAdam", "SGD"],
)
def test_the_peak_of_a_loop_with_sparse_gradients_is_the_allocators(record, optimizer, loop):
    loop_with_sparse_gradients(optimizer)
    peak = allocator_peak(loop, optimizer)
    assert record(loop_with_sparse_gradients, optimizer).info.peak_total == peak


class Attended(torch.nn.Module):
    """Its three gradients meet at what queries, keys and values are computed from."""

    def __init__(self):
        super().__init__()
        self.first, self.rest = torch.nn.Linear(10, 300), torch.nn.ModuleList(torch.nn.Linear(300, 10) for _ in "qkv")

    def forward(self, x):
        x = self.first(x)
        return sum(each(x) for each in self.rest)


def loop_in_which_gradients_meet(before_step=lambda _: None):
    torch.manual_seed(0)
    model = Attended()

    def backward(_):
        (model(torch.randn(400, 10)) - torch.randn(400, 10)).square().mean().backward()

    three_steps(model, torch.optim.AdamW, backward, before_step)


def watched_loop_in_which_gradients_meet(before_step):
    with Onlooker():
        loop_in_which_gradients_meet(before_step)


def test_where_gradients_meet_the_peak_is_that_of_a_run_at_whose_operations_somebody_looks(record):
    loop_in_which_gradients_meet()
    alone, watched = allocator_peak(loop_in_which_gradients_meet), allocator_peak(watched_loop_in_which_gradients_meet)
    assert alone < record(loop_in_which_gradients_meet).info.peak_total == watched <= alone + 400 * 300 * 4


def test_a_tensor_that_wraps_others_is_not_counted_beside_them(record):
    class Pair(TwoTensor):
        """Somebody's own."""

    def train(wrap):
        model = torch.nn.Linear(64, 64, bias=False)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        halves = torch.ones(2, 64), torch.ones(2, 64)
        kept = wrap(*halves) * 3 if wrap else [half * 3 for half in halves]
        model(halves[0]).sum().backward()
        optimizer.step()
        return kept

    assert record(train, Pair).info.peak_total == record(train, None).info.peak_total


class TwiceGarbage:
    """A ring whose tensor is in another ring when the collector has taken it."""

    def __init__(self):
        self.tensor, self.ring = torch.ones(1000), self

    def __del__(self):
        ring = [self.tensor]
        ring.append(ring)


def loop_in_which_the_collector_runs(before_step=lambda _: None):
    """The collector comes when it comes: here in the second step, and only there."""
    plain_loop(before_step=lambda step: (step == 1 and gc.collect(), before_step(step)))


@pytest.fixture
def collector_off():
    gc.disable()
    yield
    gc.enable()


@pytest.mark.slow
@pytest.mark.usefixtures("collector_off")
def test_garbage_of_earlier_tests_is_in_neither_peak_whenever_it_is_collected(record):
    plain_loop()
    peak = allocator_peak(plain_loop)
    TwiceGarbage()
    assert allocator_peak(loop_in_which_the_collector_runs) == peak
    TwiceGarbage()
    assert record(loop_in_which_the_collector_runs).info.peak_total == peak
