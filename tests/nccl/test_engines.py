"""Every engine on ranks whose collectives only have a stream wait: its weights, and that it leaves no race."""

from importlib.util import find_spec

import pytest
import torch
from awkward import distance, train_alone, train_sharded
from contract import Ranks

from zerolab import Cluster
from zerolab.theory import STAGES

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
@pytest.mark.parametrize("stage", [*STAGES, "fsdp2"])
def test_so_it_does_in_mixed_precision_to_the_bit_of_what_gloo_gives(ranks, stage):
    with Cluster(2, device="cpu") as gloo:
        expected = gloo.run(train_sharded, stage, torch.optim.SGD, precision="bf16", **STEPS)
    found = ranks.run(train_sharded, stage, torch.optim.SGD, precision="bf16", **STEPS)
    assert [distance(*pair) for pair in zip(found, expected, strict=True)] == [0.0, 0.0]


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["muon-owners", "muon-rows"])
def test_so_do_muons_owners_and_rows(ranks, stage):
    """Against every rank's own update over gloo: a sum in another order may round to another bf16."""
    options = {"steps": 3, "lr": 0.01, "muon": {"lr": 0.02}}
    with Cluster(2, device="cpu") as gloo:
        expected = gloo.run(train_sharded, "muon-replicated", torch.optim.AdamW, **options)
    found = ranks.record(train_sharded, stage, torch.optim.AdamW, **options).results
    assert all(distance(*pair) <= 3 * 0.02 / 256 for pair in zip(found, expected, strict=True))


@pytest.mark.slow
def test_so_do_four_ranks_in_two_groups_of_shards(tmp_path, reference):
    with Cluster(4, device="cpu", timeout=3) as cluster:
        states = Ranks(cluster, tmp_path).run(train_sharded, "hsdp", torch.optim.SGD, **STEPS)
    assert all(distance(state, reference) <= 1e-5 for state in states)


@pytest.mark.slow
@pytest.mark.deepspeed
@pytest.mark.parametrize("stage", [f"deepspeed-{number}" for number in range(4)])
def test_so_does_deepspeed(ranks, reference, require, stage):
    require(find_spec("deepspeed"), "DeepSpeed", 'pip install "zerolab[deepspeed]"')
    for state in ranks.run(train_sharded, stage, torch.optim.SGD, steps=3, lr=0.1):
        assert distance(state, reference) <= 1e-5
