"""Engines run at sizes that fit nowhere: published bytes come out of executed code, and misuse gets a sentence."""

import json

import pytest
import torch
from torch import nn

from zerolab import compare, simulate, theory
from zerolab.cli import main
from zerolab.recording.recording import Recording
from zerolab.simulation.costs import Clock, ring_seconds
from zerolab.simulation.run import Simulation


def gigabytes(simulation: Simulation) -> list[float]:
    return [round(sum(row["state"].values()) / 1e9, 1) for row in simulation.rows]


def assert_explained(simulation):
    for row in simulation.rows:
        assert sum(row["state"].values()) - sum(row["formula"].values()) == sum(row["terms"].values()), row["stage"]
        assert abs(row["traffic"]["logical_bytes"] - row["traffic"]["formula_bytes"]) <= row["terms"]["padding"] * 3


def test_the_articles_numbers_come_out_of_executed_engines(tmp_path):
    out = tmp_path / "out.json"
    assert main(["simulate", "--model", "7b", "--world-size", "8", "--length", "64", "--json", str(out)]) == 0
    rows = json.loads(out.read_text())
    assert [round(sum(row["state"].values()) / 1e9, 1) for row in rows] == [112, 63, 38.5, 14]
    assert all(row["losses"] == [] and row["traffic"]["wire_bytes"] is None for row in rows)
    assert all(row["num_params"] == 7_000_000_000 and len(row["ranks"]) == 8 for row in rows)
    assert [rank["derived"] for rank in rows[0]["ranks"]] == [False] + [True] * 7


def test_llama_7b_gives_its_own_numbers():
    simulation = simulate(("ddp", "zero2"), world_size=8, model="llama-7b", length=64)
    assert gigabytes(simulation) == [107.8, 37.1]
    assert [round(sum(theory.state_bytes(s, 6_738_415_616, 8).values()) / 1e9, 1) for s in ("zero1", "zero3")] == [
        60.6,
        13.5,
    ]
    assert_explained(simulation)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_simulation_holds_what_real_ranks_hold(precision):
    real = compare(world_size=2, model="gpt-tiny", steps=2, precision=precision)
    fake = simulate(world_size=2, model="gpt-tiny", precision=precision)
    for measured, simulated in zip(real.rows, fake.rows, strict=True):
        for key in ("stage", "num_params", "state", "formula", "terms"):
            assert measured[key] == simulated[key], key
        assert measured["traffic"]["logical_bytes"] == simulated["traffic"]["logical_bytes"]
        assert [rank["state"] for rank in measured["ranks"]] == [rank["state"] for rank in simulated["ranks"]]
    assert_explained(fake)


def test_derived_ranks_own_what_the_real_ones_own_and_say_so():
    real = compare("zero3", world_size=2, model="mlp-odd", steps=2).recordings["zero3"]
    fake = simulate("zero3", world_size=2, model="mlp-odd").recordings["zero3"]

    def owned(recording, rank):
        events = recording.rank(rank).events
        return {(e.category, e.unit, e.spans) for e in events if e.op == "hold" and e.category == "optimizer_state"}

    for rank in (0, 1):
        assert owned(fake, rank) == owned(real, rank)
    assert "did not run" in str(fake.rank(1).events[0].text)
    assert fake.rank(1).meta["derived"] is True
    assert "derived" not in fake.rank(0).meta


def test_the_recording_is_marked_simulated_saved_and_shown(tmp_path):
    recording = simulate("zero2", world_size=16, model="gpt-tiny").recordings["zero2"]
    assert recording.meta["simulated"] is True
    assert recording.world_size == 16
    assert len(recording.ranks) == 8
    recording.save(tmp_path / "run.json")
    assert Recording.load(tmp_path / "run.json").meta["costs"] == recording.meta["costs"]
    recording.to_html(tmp_path / "run.html")
    assert "simulated" in (tmp_path / "run.html").read_text()


def test_time_is_the_cost_models_and_the_same_each_time():
    first, second = (simulate("zero3", world_size=8, model="gpt-tiny") for _ in range(2))
    assert first.rows[0]["step_seconds"] == second.rows[0]["step_seconds"] > 0
    recording = first.recordings["zero3"]
    assert [e.t_end for e in recording.events] == [e.t_end for e in second.recordings["zero3"].events]
    costs = recording.meta["costs"]
    assert 0 < costs["exposed_communication_seconds"] < costs["seconds"]
    slow = simulate("zero3", world_size=8, model="gpt-tiny", gpus_per_node=1, network="ethernet-10g")
    assert slow.rows[0]["step_seconds"] > first.rows[0]["step_seconds"]


def test_counted_operations_are_six_for_each_parameter_and_token():
    model = "gpt2"
    simulation = simulate("ddp", world_size=1, model=model, length=64)
    counted, num_params = simulation.recordings["ddp"].meta["costs"]["flops"], simulation.rows[0]["num_params"]
    positions = 1024 * 768  # looked up, not multiplied
    attention = 12 * 12 * 64 * 64 * 768  # 12 blocks, 2 + 4 multiplications of two operations
    assert counted == pytest.approx(6 * 64 * (num_params - positions) + attention * 7 / 6, rel=0.01)


def test_communication_runs_beside_computation_until_it_is_waited_for():
    clock = Clock()
    clock.communicate(3.0)
    clock.compute(2.0)
    clock.wait(clock.communicated)
    assert (clock.computed, clock.waited) == (3.0, 1.0)


def test_a_ring_costs_its_messages_and_all_but_the_own_part():
    from zerolab.catalog import Link

    assert ring_seconds(Link("test", 100.0, 0.5, "a test"), 400.0, 4) == 3 * 0.5 + 3 / 4 * 4.0


class Branches(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        return self.layer(x) if x.sum() > 0 else -self.layer(x)


class Peeks(nn.Module):
    """Reads a weight of a unit that has been released."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))

    def forward(self, x):
        kept = []
        handle = self.blocks[0].register_forward_hook(
            lambda module, *_: kept.append(module.weight.detach()), prepend=True
        )
        out = self.blocks(x)
        handle.remove()
        return out + kept[0].sum()


BATCH = [(torch.ones(2, 4), torch.ones(2, 4))]


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ({"world_size": 0}, ValueError, "world size is 0"),
        ({"model": "llama7b"}, ValueError, "nearest: llama-7b"),
        ({"gpu": "h1000"}, ValueError, "nearest: h100"),
        ({"utilisation": 0.0}, ValueError, "utilisation"),
        ({"gpus_per_node": 0}, ValueError, "GPUs in a node"),
        ({"length": 10**6}, ValueError, "1 to 2048 tokens"),
        ({"stages": "fsdp2"}, ValueError, "use compare"),
        ({"stages": "zero4"}, ValueError, "zero4"),
        ({"model": Branches}, ValueError, "pass batches"),
        ({"model": Branches, "batches": BATCH, "stages": "ddp"}, RuntimeError, "needs values"),
        (
            {"model": Peeks, "batches": BATCH, "stages": "zero3", "world_size": 2},
            RuntimeError,
            "of unit 'blocks.0' that",
        ),
    ],
)
def test_what_cannot_be_simulated_is_said_in_a_sentence(arguments, error, says):
    with pytest.raises(error, match=says):
        simulate(**arguments)


@pytest.mark.slow
def test_a_column_of_the_papers_table_1_comes_out_of_executed_engines():
    """7.5B at N = 64, three stages; what the engines hold beyond the closed form are named terms, and taken off."""
    for row in simulate(("zero1", "zero2", "zero3"), 64, "7.5b", precision="bf16", length=16).rows:
        published = sum(theory.state_bytes(row["stage"], 7.5e9, 64, "bf16").values())
        assert sum(row["state"].values()) - sum(row["terms"].values()) == published
