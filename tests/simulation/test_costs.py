"""The cost model by hand: every second follows from bytes, operations and the catalog."""

import pytest
import torch
from torch import nn

from zerolab import catalog, simulate
from zerolab.catalog import Gpu, Link
from zerolab.simulation.costs import Clock, Hardware, Meter, ring_seconds

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


def test_where_the_same_cores_do_both_nothing_runs_beside_anything():
    clock = Clock()
    meter = Meter(clock, Hardware(BOX, NETWORK, gpus_per_node=1, overlap=False), "fp32")
    meter.communicate("all_gather", 400, range(4))
    meter.compute(0.0, 500.0)
    assert clock.computed == 3 * 0.5 + 3 / 4 * 4.0 + 1.0
    assert meter.work.messages == 3
    assert meter.work.sent_bytes == 300.0


def test_a_ring_costs_its_messages_and_all_but_the_own_part():
    assert ring_seconds(NETWORK, 400.0, 4) == 3 * 0.5 + 3 / 4 * 4.0
    assert ring_seconds(NETWORK, 400.0, 1) == 0.0


def test_an_all_reduce_is_two_passes_and_any_other_collective_one():
    hardware = Hardware(BOX, NETWORK)
    one = hardware.collective_seconds("all_gather", 10**9, range(8))
    assert one == ring_seconds(catalog.link("nvlink4"), 10**9, 8)
    assert hardware.collective_seconds("all_reduce", 10**9, range(8)) == 2 * one
    assert hardware.collective_seconds("reduce_scatter", 10**9, range(8)) == one


def test_over_nodes_large_buffers_take_one_ring_at_the_network_cards_joint_rate():
    """64 GPUs, 8 a node, each with a card of 50 GB/s: 400 GB/s leave a node, less than NVLink's 450."""
    hardware = Hardware(catalog.gpu("h100"), catalog.link("infiniband-ndr"))
    seconds = hardware.collective_seconds("all_gather", 10**11, range(64))
    assert seconds == pytest.approx(63 / 64 * 1e11 / 400e9, rel=0.01)


def test_over_nodes_small_buffers_go_level_by_level_in_fewer_steps():
    hardware = Hardware(catalog.gpu("h100"), catalog.link("infiniband-ndr"))
    levels = ring_seconds(hardware.network, 1000 / 8, 8) + ring_seconds(catalog.link("nvlink4"), 1000, 8)
    assert hardware.collective_seconds("all_gather", 1000, range(64)) == pytest.approx(levels)


def test_hybrid_shardings_groups_cost_what_lies_between_their_members():
    """32 GPUs, 8 a node: the shards lie in one node, and each shard's copies have a rank in every node."""
    hardware = Hardware(catalog.gpu("h100"), catalog.link("infiniband-ndr"))
    shards, copies = range(8, 16), range(3, 32, 8)
    within = hardware.collective_seconds("all_gather", 10**9, shards)
    across = hardware.collective_seconds("all_reduce", 10**9, copies)
    assert within == ring_seconds(catalog.link("nvlink4"), 10**9, 8)
    assert across == pytest.approx(2 * ring_seconds(hardware.network, 10**9, 4))


def test_an_operation_takes_its_arithmetic_or_its_bytes_whichever_is_longer():
    hardware = Hardware(BOX, NETWORK, utilisation=0.5, memory_utilisation=0.5, operation_seconds=0.25)
    assert hardware.compute_seconds(1000.0, 1.0, "fp32") == 2.25
    assert hardware.compute_seconds(1000.0, 1.0, "bf16") == 0.75
    assert hardware.compute_seconds(1.0, 500.0, "fp32") == 2.25


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
    with pytest.raises(ValueError, match=r"utilisation is|takes -1\.0 seconds|(0|2\.5) GPUs in a node"):
        Hardware(BOX, NETWORK, **wrong)


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
    work = simulate("ddp", 1, Squares, batches=batch).recordings["ddp"].meta["costs"]
    assert work["flops"] == multiplications * 2 * 32 * 64 * 64
    assert work["messages"] == 0
    assert work["moved_bytes"] > 4 * 64 * 64 * 4  # AdamW reads and writes weight, gradient and moments


def test_counted_operations_are_six_for_each_parameter_and_token():
    simulation = simulate("ddp", world_size=1, model="gpt2", length=64)
    counted, num_params = simulation.recordings["ddp"].meta["costs"]["flops"], simulation.rows[0]["num_params"]
    positions = 1024 * 768  # looked up, not multiplied
    attention = 12 * 12 * 64 * 64 * 768  # 12 blocks, 2 + 4 multiplications of two operations
    assert counted == pytest.approx(6 * 64 * (num_params - positions) + attention * 7 / 6, rel=0.01)


def test_prefetching_hides_the_gathers_of_zero3_behind_computation():
    """Without overlap the step waits for every byte; with it, for the first gather and what is left at the end."""
    one = Hardware(catalog.gpu("a100"), catalog.link("infiniband-hdr"))
    other = Hardware(catalog.gpu("a100"), catalog.link("infiniband-hdr"), overlap=False)
    hidden, exposed = (
        simulate("zero3", 16, "gpt2", precision="bf16", rows=8, hardware=hardware).recordings["zero3"].meta["costs"]
        for hardware in (one, other)
    )
    assert hidden["sent_bytes"] == exposed["sent_bytes"]
    assert hidden["exposed_communication_seconds"] < 0.3 * exposed["exposed_communication_seconds"]
    assert exposed["seconds"] - hidden["seconds"] == pytest.approx(
        exposed["exposed_communication_seconds"] - hidden["exposed_communication_seconds"]
    )
