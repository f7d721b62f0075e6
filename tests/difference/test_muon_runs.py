"""Muon on any number of ranks and under any placement is the same training; pieces that it updates alone are named."""

import itertools

import pytest
import torch
import torch.distributed as dist
from silent import Net, batch
from torch.nn.functional import cross_entropy

from zerolab import Cluster, models
from zerolab.difference.compare import compare
from zerolab.difference.runs import Step
from zerolab.difference.watch import Fingerprints
from zerolab.engines import ENGINES, muon_rows

STEPS, UNITS = 3, ["embed", "up", "head"]
MATRICES = ("embed.weight", "up.weight", "head.weight")
MUON = {"lr": 0.02, "weight_decay": 0.1}


def train(stage, folder, muon=MUON):
    """Three steps under an engine: Muon has the three matrices that lie in units."""
    torch.manual_seed(0)
    engine = ENGINES[stage](Net(), torch.optim.AdamW, lr=1e-2, muon=muon, units=UNITS)
    with Fingerprints(folder, (1, STEPS)):
        for step in range(1, STEPS + 1):
            engine.training_step(*batch(step, dist.get_rank()), cross_entropy)


def alone(folder):
    """The same by torch's optimizers, without an engine."""
    torch.manual_seed(0)
    model = Net()
    matrices = [model.embed.weight, model.up.weight, model.head.weight]
    others = [each for name, each in model.named_parameters() if name not in MATRICES]
    optimizers = torch.optim.Muon(matrices, **MUON), torch.optim.AdamW(others, lr=1e-2)
    with Fingerprints(folder, (1, STEPS)):
        for step in range(1, STEPS + 1):
            inputs, targets = batch(step, 0)
            cross_entropy(model(inputs), targets).backward()
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()


def larger(stage, folder):
    """Two steps of a model whose updates round to another bf16 here and there."""
    world_size = dist.get_world_size()
    engine = ENGINES[stage](models.build("gpt-tiny"), torch.optim.AdamW, lr=1e-3, muon=MUON)
    with Fingerprints(folder, (1, 2)):
        for batch in models.batches("gpt-tiny", 1, 0, 2, rows=8):
            inputs, targets = (each.chunk(world_size)[dist.get_rank()] for each in batch)
            engine.training_step(inputs, targets, models.loss)


def in_pieces(folder):
    """Each rank orthogonalises the rows that it has."""
    right = muon_rows._through_owners
    muon_rows._through_owners = lambda _, mine, keywords: [muon_rows._direction(part, keywords) for part in mine]
    try:
        train("muon-rows", folder)
    finally:
        muon_rows._through_owners = right


@pytest.fixture(scope="module", name="folder")
def record_all(tmp_path_factory):
    folder = tmp_path_factory.mktemp("muon")
    with Cluster(1) as cluster:
        cluster.run(alone, folder / "alone")
    for world_size in (2, 4):
        with Cluster(world_size) as cluster:
            for stage in ("muon-replicated", "muon-owners", "muon-rows"):
                cluster.run(train, stage, folder / f"{stage} {world_size}")
            cluster.run(larger, "muon-owners" if world_size == 2 else "muon-rows", folder / f"larger {world_size}")
            if world_size == 2:
                cluster.run(in_pieces, folder / "in pieces")
                cluster.run(train, "muon-owners", folder / "faster", {**MUON, "lr": 0.03})
    return folder


def test_of_right_runs_none_parts(folder):
    runs = sorted(path.name for path in folder.iterdir() if path.name.startswith(("alone", "muon")))
    pairs = list(itertools.combinations(runs, 2))
    found = {pair: str(result) for pair in pairs if (result := compare(*map(folder.joinpath, pair))).parting}
    assert len(pairs) == 21
    assert not found, "\n".join(map(str, found.items()))


def test_what_comes_of_an_update_in_bf16_is_explained_by_its_rounding(folder, monkeypatch):
    assert compare(folder / "larger 2", folder / "larger 4").parting is None
    monkeypatch.setattr(Step, "by_muon", lambda _: set())  # as if it were computed in fp32
    assert compare(folder / "larger 2", folder / "larger 4").parting.step == 2


@pytest.mark.parametrize("good", ["alone", "muon-owners 2", "muon-rows 4"])
def test_rows_that_each_rank_orthogonalises_by_itself_are_named(folder, good):
    found = compare(folder / good, folder / "in pieces").parting
    assert (found.step, found.phase, {*found.tensors}) == (1, "update", {*MATRICES})
    assert "Muon updated each shard by itself" in found.meaning


def test_another_learning_rate_of_muon_is_named(folder):
    found = compare(folder / "muon-rows 2", folder / "faster").parting
    assert (found.step, found.phase, found.tensors) == (1, "settings of the optimizer", MATRICES[:1])
    assert found.measured == "lr is 0.02 in GOOD, 0.03 in BAD"
