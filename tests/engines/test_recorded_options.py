"""Each option changes what a recording shows, and as it says."""

import pytest
import torch
from torch import nn

from zerolab import models
from zerolab.engines import ENGINES

STEPS = 2
UNIT_BYTES = 64 * 65 * 4


def _train(stage, **options):
    model = nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.GELU()) for _ in range(4)))
    engine = ENGINES[stage](model, torch.optim.AdamW, lr=1e-3, **options)
    for _ in range(STEPS):
        engine.training_step(torch.ones(4, 64), torch.zeros(4, 64), models.loss)


def _events(clusters, stage, **options):
    recording = clusters(2).record(_train, stage, **options)
    return [event for event in recording.ranks[0].events if event.step == STEPS]


def _whole_at_once(events):
    """The most units that were gathered at the same time, by the ledger's bytes; each rank keeps half of all four."""
    most = max(event.live["parameters"] for event in events if event.live)
    return (most - 4 * UNIT_BYTES // 2) / UNIT_BYTES


def _collectives(events, op):
    return [event for event in events if event.kind == "collective" and event.op == op and event.parent is None]


@pytest.mark.parametrize(("prefetch", "units"), [(0, 1), (1, 2), (2, 3)])
def test_prefetch_is_the_number_of_units_that_are_whole_beyond_the_one_in_use(clusters, prefetch, units):
    assert _whole_at_once(_events(clusters, "zero3", prefetch=prefetch)) == units


def test_units_that_are_kept_after_forward_are_gathered_once_a_step_instead_of_twice(clusters):
    assert len(_collectives(_events(clusters, "zero3"), "all_gather")) == 8
    kept = _events(clusters, "zero3", release_after_forward=False)
    assert len(_collectives(kept, "all_gather")) == 4
    assert _whole_at_once(kept) == 4


@pytest.mark.parametrize("stage", ["zero1", "zero2", "zero3"])
def test_without_overlap_a_reduction_ends_before_the_next_backward_begins(clusters, stage):
    def reduced_while_computing(overlap):
        events = _events(clusters, stage, overlap=overlap)
        reductions = _collectives(events, "reduce_scatter")
        backwards = [event for event in events if event.kind == "module" and event.op == "backward"]
        return sum(r.t_start < b.t_start < r.t_end for r in reductions for b in backwards)

    assert reduced_while_computing(overlap=True) > 0
    assert reduced_while_computing(overlap=False) == 0


def test_offload_adds_a_master_copy_of_the_shard_to_the_optimizers_state(clusters):
    def state(offload):
        return clusters(2).record(_train, "zero2", offload=offload).state["optimizer_state"]

    assert state(offload=True) - state(offload=False) == 4 * 64 * 65 * 4 // 2  # 4 units of 64*65 fp32 numbers, halved


@pytest.mark.parametrize(("units", "names"), [(None, {"0", "1", "2", "3"}), (["0", "1"], {"root", "0", "1"})])
def test_units_named_by_hand_are_what_travels(clusters, units, names):
    assert {event.unit for event in _collectives(_events(clusters, "zero3", units=units), "reduce_scatter")} == names


@pytest.mark.parametrize(("dtype", "width"), [(None, 2), (torch.float32, 4)])
def test_bf16_gradients_travel_in_the_precision_that_was_chosen(clusters, dtype, width):
    events = _events(clusters, "zero2", precision="bf16", reduce_dtype=dtype)
    assert {event.logical_bytes for event in _collectives(events, "reduce_scatter")} == {64 * 65 * width // 2}
