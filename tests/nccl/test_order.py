"""NCCL takes what the ranks ask for in the order in which they ask: an engine's order may not depend on the clock."""

import pytest
import torch
from awkward import distance, train_alone, train_sharded
from contract import Ranks, autograd_in_a_thread_of_its_own

from zerolab import Cluster
from zerolab.theory import STAGES

JITTER = 0.003  # seconds that a rank may pause at most, before one operation in fifty
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def apart(tmp_path_factory):
    """Two ranks that pause at random, each at other moments."""
    with Cluster(2, device="cpu") as cluster:
        yield Ranks(cluster, tmp_path_factory.mktemp("contract"), JITTER)


@pytest.mark.parametrize("stage", STAGES)
def test_ranks_that_run_apart_ask_for_the_same_in_the_same_order(apart, stage):
    def train():
        with autograd_in_a_thread_of_its_own():
            return train_sharded(stage, torch.optim.SGD, 3, lr=0.1)

    reference = train_alone(torch.optim.SGD, steps=3, lr=0.1)
    assert all(distance(state, reference) <= 1e-5 for state in apart.run(train))


@pytest.mark.parametrize("stage", ["zero2", "zero3"])
def test_so_they_do_with_two_groups_of_parameters_in_each_unit(apart, stage):
    def train():
        groups = [(lambda _, parameter: parameter.ndim < 2, {"weight_decay": 0.0})]
        return train_sharded(stage, torch.optim.SGD, 3, lr=0.1, weight_decay=0.1, param_groups=groups)

    first, second = apart.run(train)
    assert distance(first, second) == 0


@pytest.mark.parametrize("stage", ["zero2", "zero3"])
def test_a_recording_of_a_backward_in_another_thread_has_its_lines(apart, stage):
    def train():
        with autograd_in_a_thread_of_its_own():
            return train_sharded(stage, torch.optim.SGD, 2, lr=0.1)

    recording = apart.record(train)
    reductions = [event for event in recording.events if event.op == "reduce_scatter" and event.kind == "collective"]
    assert reductions
    assert all(event.source is not None for event in reductions)
