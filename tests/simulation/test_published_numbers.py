"""Numbers that others have published, out of executed engines. Each stands with its source; GB is 1e9, MiB 2**20."""

import json
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from published_runs import runs
from torch import nn
from zero_paper import CELLS, DEGREES, NAMES, off_by

from zerolab import catalog, fit, simulate, theory
from zerolab.cli import main
from zerolab.simulation import architectures
from zerolab.simulation.costs import Hardware

# All cells of the paper's smallest model are executed here, and of the two large ones those at a few N, since a larger
# N only makes shards smaller. `make bench` executes all 54 (tests/bench/simulation.py).
EXECUTED = [*((7.5e9, degree) for degree in DEGREES), (128e9, 16), (128e9, 1024), (1e12, 64)]


SHARDED = ("zero1", "zero2", "zero3")  # what the table has


def column(num_params, degree):
    """A column of it, executed: bytes by stage that the engines hold, less what the table does not count, by name."""
    rows = simulate(SHARDED, degree, NAMES[num_params], precision="bf16", length=16).rows
    return {row["stage"]: sum(row["state"].values()) - sum(row["terms"].values()) for row in rows}


@pytest.fixture(scope="module")
def columns():
    """All of them, being executed: a simulation keeps one core busy, so two processes take half the time."""
    # Spawned, because this process has threads of torch; the longest first, so that both end together.
    with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as pool:
        yield {place: pool.submit(column, *place) for place in sorted(EXECUTED, reverse=True)}


@pytest.mark.slow
@pytest.mark.parametrize(("num_params", "degree"), sorted(EXECUTED, reverse=True))
def test_the_zero_papers_table_1_comes_out_of_executed_engines(columns, num_params, degree):
    cells = {stage: cell for stage, size, n, cell in CELLS if (size, n) == (num_params, degree)}
    held = columns[num_params, degree].result()
    assert tuple(held) == tuple(cells) == SHARDED
    for stage, nbytes in held.items():
        assert off_by(nbytes, cells[stage]) < 1, stage
        assert nbytes == sum(theory.state_bytes(stage, num_params, degree, "bf16").values())


def state_gigabytes(rows):
    return [round(sum(row["state"].values()) / 1e9, 1) for row in rows]


def from_the_command_line(tmp_path, model):
    out = tmp_path / "out.json"
    arguments = ["--model", model, "--world-size", "8", "--stages", "ddp,zero1,zero2,zero3", "--precision", "fp32"]
    assert main(["simulate", *arguments, "--json", str(out)]) == 0
    rows = json.loads(out.read_text())
    for row in rows:
        assert sum(row["state"].values()) - sum(row["formula"].values()) == sum(row["terms"].values())
        assert row["terms"]["padding"] == 0
        assert row["traffic"]["logical_bytes"] == row["traffic"]["formula_bytes"]
    return rows


@pytest.mark.slow
def test_7b_needs_112_63_38_5_and_14_gb_on_8_gpus(tmp_path):
    """The numbers of articles on ZeRO, after its figure 1: 16, 9, 5.5 and 2 bytes a parameter."""
    rows = from_the_command_line(tmp_path, "7b")
    assert state_gigabytes(rows) == [112, 63, 38.5, 14]
    assert all(row["num_params"] == 7_000_000_000 and len(row["ranks"]) == 8 for row in rows)
    assert all(row["losses"] == [] and row["traffic"]["wire_bytes"] is None for row in rows)
    assert [rank["derived"] for rank in rows[0]["ranks"]] == [False] + [True] * 7


@pytest.mark.slow
def test_llama_7b_gives_its_own_numbers(tmp_path):
    """6,738,415,616 parameters, as the released weights have them."""
    rows = from_the_command_line(tmp_path, "llama-7b")
    assert state_gigabytes(rows) == [107.8, 60.6, 37.1, 13.5]
    assert {row["num_params"] for row in rows} == {6_738_415_616}


MIB = 2**20


@pytest.mark.parametrize("world_size", [1, 2, 8])
def test_llm_c_prints_the_same_for_gpt2_under_zero1(world_size):
    """karpathy/llm.c, pull request 309: GPT-2 with its vocabulary padded to 50304 is 124,475,904 parameters; MiB of
    parameters 237, gradients 237, m 474 and v 474 on one process, and m and v 2x and 8x less on 2 and 8. llm.c keeps
    no fp32 masters there, and casts no gradients: those are the third of the optimizer's tensors here, and a term.
    """
    shape = replace(catalog.architecture("gpt2"), vocabulary=50304)
    tokens = torch.zeros(1, 16, dtype=torch.int64)
    (row,) = simulate(
        "zero1", world_size, lambda: architectures.build(shape), batches=[(tokens, tokens)], precision="bf16"
    ).rows
    assert row["num_params"] == 124_475_904
    state, terms = row["state"], row["terms"]
    moment = (state["optimizer_state"] - terms["step_counters"]) / 3
    assert state["parameters"] // MIB == 237
    assert (state["gradients"] - terms["fp32_gradient_shard"]) // MIB == 237
    assert moment // MIB == {1: 474, 2: 237, 8: 59}[world_size]


@pytest.mark.parametrize("world_size", [2, 64])
def test_fsdp_sends_three_and_replication_two_times_all_but_the_own_part(world_size):
    """FSDP, arXiv 2304.11277, section 3.2: 3M(W-1)/W for full sharding, 2M(W-1)/W for replication."""
    found = simulate(("ddp", "zero3"), world_size, "gpt2", length=16)
    size = 4 * found.rows[0]["num_params"]  # M, in bytes
    for row, passes in zip(found.rows, (2, 3), strict=True):
        exact = passes * size * (world_size - 1) / world_size
        padding = 4 * sum(unit.padded - unit.numel for unit in found.recordings[row["stage"]].units)
        assert 0 <= row["traffic"]["logical_bytes"] - exact <= passes * padding


# Of MosaicML's tables: the smallest with fitted constants and without, by card. What is fused there is not here.
EXECUTED_STEPS = [("mpt-7b", "h100", 8), ("mpt-13b", "h100", 64), ("mpt-7b", "a100", 8), ("llama2-13b", "a100", 64)]


@pytest.mark.slow
@pytest.mark.parametrize(("model", "gpu", "gpus"), EXECUTED_STEPS)
def test_published_steps_of_fsdp_come_out_of_executed_engines_within_a_fifth(model, gpu, gpus):
    """At utilisations that were fitted to half of the published runs; no single one serves both cards."""
    run = next(
        run
        for run in runs()
        if (run.job.shape.name, run.job.gpu.name, run.job.world_size) == (model, gpu, gpus)
        and run.job.checkpointing == "none"
    )
    job, tokens = run.job, torch.zeros(run.job.rows, run.job.length, dtype=torch.int64)
    hardware = Hardware(job.gpu, job.network, job.gpus_per_node)
    (row,) = simulate(
        run.stage,
        gpus,
        lambda: architectures.build(job.shape),
        batches=[(tokens, tokens)],
        precision="bf16",
        hardware=hardware,
    ).rows
    assert row["step_seconds"] * job.micro_batches == pytest.approx(run.seconds, rel=0.2)


class LlamaWithLoss(nn.Module):
    """Llama 3 8B as torchtitan trains it: the logits are cast to fp32, and nothing holds them after the loss."""

    def __init__(self):
        super().__init__()
        self.model = architectures.build(catalog.architecture("llama3-8b"))

    def forward(self, tokens):
        return nn.functional.cross_entropy(self.model(tokens).flatten(0, 1).float(), tokens.flatten())


@pytest.mark.slow
def test_what_torchtitan_publishes_as_memory_is_what_the_allocator_reserves():
    """47.65 GiB on 8 GPUs with a row of 8,192 tokens (issue 929), in expandable segments, as its script sets them."""
    tokens = torch.zeros(1, 8192, dtype=torch.int64)
    given = {"stages": "fsdp2", "checkpointing": "selective", "loss_fn": lambda loss, _: loss}
    (row,) = fit(LlamaWithLoss, 8, inputs=tokens, **given).reserved
    allocated, reserved = row["needs"] / 2**30, row["in expandable segments"] / 2**30
    assert (f"{allocated:.1f}", f"{reserved:.1f}") == ("41.0", "43.6")
    assert allocated < 0.9 * 47.65 < reserved < 1.1 * 47.65
    page = Path(__file__).parents[2].joinpath("docs", "published-runs.md").read_text(encoding="utf-8")
    said = f"{allocated:.1f} GiB are allocated at the peak and {reserved:.1f} reserved"
    assert said in " ".join(page.split())
