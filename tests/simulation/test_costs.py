"""The cost model by hand: every second follows from bytes, operations and the catalog."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from zerolab import catalog, simulate
from zerolab.catalog import Gpu, Link
from zerolab.simulation.costs import Clock, Hardware, Meter
from zerolab.theory.nccl import Group
from zerolab.theory.seconds import FITTED

NETWORK = Link("test", 100.0, 0.5, "a test")
BOX = Gpu("box", 1e9, {"fp32": 1000.0, "bf16": 4000.0}, 500.0, "nvlink4", "a test")


def test_communication_runs_beside_computation_until_it_is_waited_for():
    clock = Clock()
    clock.communicate(3.0)
    clock.compute(2.0)
    clock.wait(clock.communicated)
    assert (clock.computed, clock.waited) == (3.0, 1.0)


def test_collectives_run_one_after_the_other_and_not_before_they_are_started():
    clock = Clock()
    clock.communicate(1.0)
    clock.communicate(1.0)
    clock.compute(5.0)
    clock.communicate(1.0)
    assert clock.communicated == 6.0
    clock.wait(2.0)
    assert clock.waited == 0.0


def test_computing_loses_a_part_of_the_time_of_what_is_sent_beside_it():
    clock = Clock(FITTED.contention)
    meter = Meter(clock, Hardware(BOX, NETWORK, gpus_per_node=1, memory_utilisation=1.0), "fp32")
    meter.communicate("all_gather", 400, range(4))
    meter.compute(0.0, 5000.0)
    sending = 3 * 0.5 + 3 / 4 * 4.0
    assert clock.computed == pytest.approx(10.0 + FITTED.contention * sending)
    assert clock.communicated == sending


def test_it_loses_nothing_to_what_is_sent_while_it_stands_still():
    clock = Clock(contention=0.25)
    clock.communicate(8.0)
    clock.compute(3.0)  # beside it, at three quarters of its speed
    assert clock.computed == 4.0
    clock.wait(clock.communicated)
    assert clock.waited == 4.0
    clock.compute(3.0)
    assert clock.computed == 11.0


def test_where_the_same_cores_do_both_nothing_runs_beside_anything():
    clock = Clock()
    meter = Meter(clock, Hardware(BOX, NETWORK, gpus_per_node=1, memory_utilisation=1.0, overlap=False), "fp32")
    meter.communicate("all_gather", 400, range(4))
    meter.compute(0.0, 500.0)
    assert clock.computed == 3 * 0.5 + 3 / 4 * 4.0 + 1.0
    assert meter.work.messages == 3
    assert meter.work.sent_bytes == 300.0


def test_a_collective_takes_what_nccls_tuner_says_for_its_members():
    hardware = Hardware(catalog.gpu("h100"), catalog.link("infiniband-ndr"))
    group = Group(64, 8, catalog.link("nvlink4"), hardware.network)
    for op in ("all_gather", "reduce_scatter", "all_reduce"):
        assert hardware.collective_seconds(op, 10**8, range(64)) == group.seconds(op, 10**8)
    with_sharp = replace(hardware, sharp=True)
    assert with_sharp.collective_seconds("all_reduce", 10**8, range(64)) < group.seconds("all_reduce", 10**8)


def test_the_last_node_of_ranks_that_fill_none_bounds_their_collectives():
    """Nine in nodes of eight: one is alone, with one card."""
    hardware = Hardware(catalog.gpu("h100"), catalog.link("infiniband-ndr"))
    assert hardware.collective_seconds("all_gather", 10**10, range(9)) > 8 / 9 * 10**10 / 50e9
    assert replace(hardware, gpus_per_node=5).collective_seconds("all_gather", 10**10, range(9)) < 10**10 / 150e9


def test_hybrid_shardings_groups_cost_what_lies_between_their_members():
    """32 GPUs, 8 a node: the shards lie in one node, and each shard's copies have a rank in every node."""
    hardware = Hardware(catalog.gpu("h100"), catalog.link("infiniband-ndr"))
    shards, copies = range(8, 16), range(3, 32, 8)
    within = hardware.collective_seconds("all_gather", 10**9, shards)
    across = hardware.collective_seconds("all_reduce", 10**9, copies)
    link = catalog.link("nvlink4")
    assert within == Group(8, 1, link, hardware.network).seconds("all_gather", 10**9)
    assert across == Group(4, 4, link, hardware.network).seconds("all_reduce", 10**9)


def test_matrices_reach_what_was_fitted_for_the_card_unless_it_is_said():
    network = catalog.link("infiniband-ndr")
    assert Hardware(catalog.gpu("a100"), network).matrix_part == FITTED.a100
    assert Hardware(catalog.gpu("h200"), network).matrix_part == FITTED.h100
    assert Hardware(catalog.gpu("a100"), network, utilisation=0.5).matrix_part == 0.5


def test_an_operation_takes_its_arithmetic_or_its_bytes_whichever_is_longer():
    hardware = Hardware(BOX, NETWORK, utilisation=0.5, memory_utilisation=0.5, operation_seconds=0.25)
    assert hardware.compute_seconds(1000.0, 1.0, "fp32") == 2.25
    assert hardware.compute_seconds(1000.0, 1.0, "bf16") == 0.75
    assert hardware.compute_seconds(1.0, 500.0, "fp32") == 2.25
    assert hardware.compute_seconds(1.0, 500.0, "fp32", at_once=True) == 1.25, "no gaps: the whole bandwidth"


@pytest.mark.parametrize(
    "wrong",
    [
        {"utilisation": 1.5},
        {"utilisation": float("nan")},
        {"memory_utilisation": 0.0},
        {"operation_seconds": -1.0},
        {"gpus_per_node": 0},
        {"gpus_per_node": 2.5},
    ],
)
def test_hardware_that_cannot_be_is_refused(wrong):
    with pytest.raises(
        ValueError, match=r"utilisation is|operation_seconds is -1\.0|number of GPUs in a node is (0|2\.5):"
    ):
        Hardware(BOX, NETWORK, **wrong)


def test_hardware_takes_what_the_catalog_has_and_keeps_whole_numbers():
    with pytest.raises(TypeError, match=r"network is 'infiniband-ndr': pass one of the catalog, such as zerolab\.cat"):
        Hardware(BOX, "infiniband-ndr")
    with pytest.raises(
        TypeError, match=r"gpu is 'h100': pass one of the catalog, such as zerolab\.catalog\.gpu\('h100"
    ):
        Hardware("h100", NETWORK)
    count = Hardware(BOX, NETWORK, gpus_per_node=4.0).gpus_per_node
    assert (count, type(count)) == (4, int)


class Squares(nn.Module):
    """One matrix multiplication forward; backward two, if the inputs need a gradient, else one."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(64, 64))

    def forward(self, x):
        return x @ self.weight


@pytest.mark.parametrize(("needed", "multiplications"), [(False, 2), (True, 3)])
def test_operations_and_bytes_are_counted_as_by_hand(needed, multiplications):
    batch = [(torch.ones(32, 64, requires_grad=needed), torch.ones(32, 64))]
    work = simulate("ddp", 1, Squares, batches=batch).recordings["ddp"].info.costs
    assert work["flops"] == multiplications * 2 * 32 * 64 * 64
    assert work["messages"] == 0
    assert work["moved_bytes"] > 4 * 64 * 64 * 4  # AdamW reads and writes weight, gradient and moments


def test_counted_operations_are_six_for_each_parameter_and_token():
    simulation = simulate("ddp", world_size=1, model="gpt2", length=64)
    counted, num_params = simulation.recordings["ddp"].info.costs["flops"], simulation.rows[0]["num_params"]
    positions = 1024 * 768  # looked up, not multiplied
    attention = 12 * 12 * 64 * 64 * 768  # 12 blocks, 2 + 4 multiplications of two operations
    assert counted == pytest.approx(6 * 64 * (num_params - positions) + attention * 7 / 6, rel=0.01)


def test_prefetching_hides_the_gathers_of_zero3_behind_computation():
    """Without overlap the step waits for every byte; with it, for the first gather and what is left at the end."""
    one = Hardware(catalog.gpu("a100"), catalog.link("infiniband-hdr"))
    other = Hardware(catalog.gpu("a100"), catalog.link("infiniband-hdr"), overlap=False)
    hidden, exposed = (
        simulate("zero3", 16, "gpt2", precision="bf16", rows=8, hardware=hardware).recordings["zero3"].info.costs
        for hardware in (one, other)
    )
    assert hidden["sent_bytes"] == exposed["sent_bytes"]
    assert hidden["blocked_seconds"] < 0.3 * exposed["blocked_seconds"]
    # What is hidden slows the computing beside it, so not all of the waiting is won.
    won = exposed["blocked_seconds"] - hidden["blocked_seconds"]
    assert (1 - 2 * FITTED.contention) * won < exposed["seconds"] - hidden["seconds"] < won
