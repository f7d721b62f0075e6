"""Every engine on ranks whose collectives only have a stream wait: its weights, and that it leaves no race."""

from importlib.util import find_spec

import pytest
import torch
from awkward import distance, train_alone, train_sharded

OURS = {
    "ddp": {},
    "zero1": {},
    "zero2": {},
    "zero2 whose reductions do not overlap": {"overlap": False},
    "zero3": {},
    "zero3 that fetches two units ahead": {"prefetch": 2},
    "zero3 that fetches nothing ahead": {"prefetch": 0},
    "zero3 with its optimizer in main memory": {"offload": True},
    "zero2 with its optimizer in main memory": {"offload": True},
}
UNUSED = {"find_unused_parameters": True}
OTHERS = {"torch-ddp": UNUSED, "torch-zero1": UNUSED, "fsdp1": {}, "fsdp2": {}}
WAYS = OURS | OTHERS
RECORDED = ("ddp", "zero1", "zero2", "zero3", "torch-ddp", "fsdp2")
STEPS = {"steps": 3, "lr": 0.1}


@pytest.fixture(scope="module")
def reference():
    """What one process reaches with the whole batch."""
    return train_alone(torch.optim.SGD, steps=3, lr=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_an_engine_reaches_the_weights_of_one_process_without_a_race(ranks, reference, way):
    call = train_sharded, way.split()[0], torch.optim.SGD
    task = ranks.record if way in RECORDED else ranks.run
    states = task(*call, **STEPS, **WAYS[way])
    for state in states.results if way in RECORDED else states:
        assert distance(state, reference) <= 1e-5


@pytest.mark.slow
@pytest.mark.deepspeed
@pytest.mark.parametrize("stage", ["deepspeed-1", "deepspeed-3"])
def test_so_does_deepspeed(ranks, reference, require, stage):
    require(find_spec("deepspeed"), "DeepSpeed", 'pip install "zerolab[deepspeed]"')
    for state in ranks.run(train_sharded, stage, torch.optim.SGD, steps=3, lr=0.1):
        assert distance(state, reference) <= 1e-5
