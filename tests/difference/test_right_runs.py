"""Right runs under other stages, numbers of ranks and precisions never part; what cannot be compared says so."""

import importlib.util
import itertools
import shutil

import pytest
import torch
from torch import nn

from zerolab import (
    DDP,
    FSDP1,
    FSDP2,
    HSDP,
    Cluster,
    DeepSpeed1,
    DeepSpeed2,
    DeepSpeed3,
    TorchDDP,
    Zero1,
    Zero2,
    Zero3,
    cli,
    record,
)
from zerolab.difference.compare import compare
from zerolab.difference.watch import Fingerprints

RUNS = [
    *((system, 1, "fp32") for system in (DDP, Zero3, FSDP2)),
    *((system, 2, "fp32") for system in (DDP, Zero1, Zero2, Zero3, TorchDDP, FSDP1, FSDP2)),
    *((system, 2, "bf16") for system in (Zero2, FSDP2, DeepSpeed2)),
    *((system, 2, "fp16") for system in (DDP, Zero3, FSDP1)),
    *((system, 2, "fp32") for system in (DeepSpeed1, DeepSpeed3)),
    *((system, 3, "fp32") for system in (Zero1, FSDP2)),
    *((system, 4, "fp32") for system in (Zero3, FSDP1, HSDP)),
]


class Model(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.embed, self.head = nn.Linear(8, width), nn.Linear(width, 4)
        self.layers = nn.ModuleList(nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width)) for _ in range(3))

    def forward(self, x):
        x = self.embed(x)
        for layer in self.layers:
            x = x + torch.relu(layer(x))
        return self.head(x)


def train(system, precision, folder, rank, world_size, *, width=16):
    """Four steps on the same rows, the first three of them recorded; the losses."""
    torch.manual_seed(0)
    engine = system(Model(width), torch.optim.AdamW, lr=1e-2, precision=precision)
    losses = []
    with Fingerprints(folder, (1, 3)):
        for step in range(4):
            dice = torch.Generator().manual_seed(step)
            inputs, targets = torch.randn(24, 8, generator=dice), torch.randint(0, 4, (24,), generator=dice)
            mine = inputs.chunk(world_size)[rank], targets.chunk(world_size)[rank]
            losses.append(engine.training_step(*mine, nn.functional.cross_entropy).item())
    return losses


def on_this_rank(*arguments, **keywords):
    import torch.distributed as dist

    return train(*arguments, dist.get_rank(), dist.get_world_size(), **keywords)


@pytest.fixture(scope="module", name="folders")
def record_all(tmp_path_factory, require):
    require(importlib.util.find_spec("deepspeed"), "DeepSpeed", 'pip install -c constraints.txt -e ".[deepspeed]"')
    folder = tmp_path_factory.mktemp("right")
    for world_size, runs in itertools.groupby(RUNS, key=lambda run: run[1]):
        with Cluster(world_size) as cluster:
            for system, _, precision in runs:
                cluster.run(on_this_rank, system, precision, folder / f"{system.__name__}-{world_size}-{precision}")
            if world_size == 1:
                cluster.run(on_this_rank, DDP, "fp32", folder / "wide", width=32)
    return folder


@pytest.mark.slow
def test_of_more_than_two_hundred_pairs_of_right_runs_none_parts(folders):
    names = [f"{system.__name__}-{world_size}-{precision}" for system, world_size, precision in RUNS]
    pairs = list(itertools.combinations(names, 2))
    found = {pair: str(result) for pair in pairs if (result := compare(*map(folders.joinpath, pair))).parting}
    assert len(pairs) == 253
    assert not found, "\n".join(map(str, found.items()))


@pytest.mark.slow
def test_a_recording_of_a_stage_may_have_fingerprints_beside_it(tmp_path, capsys):
    with Cluster(2) as cluster:
        ours = cluster.record_fingerprints(tmp_path / "own.json", on_this_rank, Zero3, "fp32", tmp_path / "inner")
    assert [len(losses) for losses in ours.results] == [4, 4]
    assert compare(tmp_path / "own.json", tmp_path / "inner").parting is None
    record("ddp", 2, steps=2, fingerprints=tmp_path / "ddp.json")
    made = ["--stage", "zero3", "--world-size", "2", "--steps", "2", "--out", str(tmp_path / "zero3.json")]
    assert cli.main(["record", *made, "--fingerprints"]) == 0
    assert cli.main(["diff", str(tmp_path / "ddp.json"), str(tmp_path / "zero3.json")]) == 0
    assert "no difference in step 1, 2" in capsys.readouterr().out
    with pytest.raises(ValueError, match="exclude one another"):
        record("ddp", 2, times_only=True, fingerprints=tmp_path / "ddp.json")


def test_the_command_says_no_difference_a_difference_or_why_it_cannot_say(folders, tmp_path, capsys):
    right = folders / "DDP-1-fp32"
    assert cli.main(["diff", str(right), str(folders / "Zero3-4-fp32")]) == 0
    assert "no difference in step 1, 2, 3" in capsys.readouterr().out
    assert cli.main(["diff", str(right), str(folders / "wide")]) == 2
    assert "embed.bias has 16 elements, and 32" in capsys.readouterr().err
    assert cli.main(["diff", str(right), str(tmp_path)]) == 2
    assert "record the run with --fingerprints" in capsys.readouterr().err
    shutil.copytree(folders / "Zero3-4-fp32", tmp_path / "part")
    (tmp_path / "part" / "rank-2.json").unlink()
    assert cli.main(["diff", str(right), str(tmp_path / "part")]) == 2
    assert "has rank 0, 1, 3 of 4" in capsys.readouterr().err
    for text in ('{"events": []}', "[" * 100_000):
        (tmp_path / "part" / "rank-2.json").write_text(text)
        assert cli.main(["diff", str(right), str(tmp_path / "part")]) == 2
        assert "part/rank-2.json' holds no fingerprints of a rank" in capsys.readouterr().err
