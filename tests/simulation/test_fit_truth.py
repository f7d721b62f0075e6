"""What `fit` predicts is what real ranks hold: state to the byte, and the highest moment of a step."""

from dataclasses import replace
from functools import cache, partial

import pytest
import torch
from on_cpus import CPU
from own_models import MODELS, loss_of_model
from torch.distributed.fsdp import fully_shard

from zerolab import Cluster, Table, catalog, models
from zerolab.comparison import train
from zerolab.simulation import architectures
from zerolab.simulation.fit import fit
from zerolab.theory.job import Job
from zerolab.theory.moments import peak

STAGES = ("ddp", "zero1", "zero2", "zero3", "fsdp2")
WITHOUT_FSDP2 = ("two dtypes",)  # it trains one dtype a unit
LOSS_BYTES = 4  # the last step's loss, which the loop of the real ranks keeps
# On several ranks it counts at which operation an exchange ends, which differs from run to run: of these tiny models,
# whose buffers of a few hundred bytes are a large part, so much.
TOLERANCE = 0.06


def stages_of(name):
    return [stage for stage in STAGES if stage != "fsdp2" or name not in WITHOUT_FSDP2]


def models_on(world_size):
    """By name; the one that each rank needs seconds for to import on one and two ranks only."""
    return {name: made for name, made in MODELS.items() if world_size <= 2 or "transformers" not in name}


def loss_of(name):
    return loss_of_model if "transformers" in name else models.loss


@cache
def measured(world_size):
    """Two steps of each model under each stage on real ranks, each rank with the batch that `fit` is given."""
    found = {}
    with Cluster(world_size=world_size, device="cpu") as cluster:
        for name, (make, inputs, targets) in models_on(world_size).items():
            for stage in stages_of(name):

                def feed(_world_size, _rank, steps, batch=(inputs, targets)):
                    return [batch] * steps

                training = partial(train, stage, make, feed, 2, device="cpu", loss_fn=loss_of(name))
                found[name, stage] = cluster.record(training).rank(0).info
    return found


@cache
def predicted(world_size):
    found = {}
    for name, (make, inputs, targets) in models_on(world_size).items():
        asked = {"inputs": inputs, "targets": targets, "loss_fn": loss_of(name), "stages": "ddp"}
        question = fit(make, world_size, **asked, precision="fp32", checkpointing="none").question
        question = replace(question, hardware=CPU)  # that of the real ranks: Adam updates one tensor after the other
        found |= {(name, stage): question.cell(stage, "fp32", "none") for stage in stages_of(name)}
    return found


@pytest.mark.slow
@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_the_state_of_every_model_is_that_of_real_ranks_to_the_byte(world_size):
    for key, info in measured(world_size).items():
        assert predicted(world_size)[key].recording.info.state == info.state, key


@pytest.mark.slow
@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_the_highest_moment_is_that_of_real_ranks(world_size, capsys):
    """Real ranks count a batch and the model's buffers only as far as they are made or used within the recording."""
    rows = []
    for (name, stage), info in measured(world_size).items():
        cell, real = predicted(world_size)[name, stage], sum(info.peak.values())
        row = {"model": name, "stage": stage, "measured": real, "predicted": cell.needs}
        rows.append(row | {"batch and buffers": cell.terms["buffers"], "error": (cell.needs - real) / real})
    with capsys.disabled():
        print(f"\n{Table(rows, f'bytes at the highest moment, {world_size} ranks')}")
    for row in rows:
        if world_size == 1:
            assert -LOSS_BYTES <= row["predicted"] - row["measured"] <= row["batch and buffers"], row
        assert abs(row["error"]) <= TOLERANCE, row


def in_parts(build, tokens, parts, each):
    """Two steps of torch's FSDP2 itself, whose default it is to reduce the gradients of each micro-batch."""
    model = build()
    for module in [*model.blocks, model]:
        fully_shard(module)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(2):
        for number in range(1, parts + 1):
            if not each:
                model.set_requires_gradient_sync(number == parts)
            models.loss(model(tokens), tokens).backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.slow
@pytest.mark.parametrize("depth", [1, 2])
def test_micro_batches_of_fsdp2_are_those_of_real_ranks_reduced_each_or_once(depth):
    shape = catalog.Architecture("a test's", "gpt", 128, 8, depth, 64, 100, "a test")
    build, tokens = partial(architectures.build, shape), torch.zeros(1, 64, dtype=torch.int64)
    asked = {"precision": "fp32", "checkpointing": "none", "stages": "fsdp2", "hardware": CPU}
    with Cluster(world_size=2, device="cpu") as cluster:
        for parts, each in ((1, True), (3, True), (3, False)):
            real = sum(cluster.record(in_parts, build, tokens, parts, each).rank(0).info.peak.values())
            (cell,) = fit(build, 2, length=64, micro_batches=parts, sync_each_batch=each, **asked).cells
            assert cell.needs == pytest.approx(real, rel=0.01), (parts, each)
            if each:  # what `plan` counts
                _, planned = peak(Job(shape, 2, "fp32", 1, 64, scheme="fsdp2", micro_batches=parts), "zero3")
                assert sum(planned.values()) == pytest.approx(real, rel=0.01), parts
