"""What cannot be simulated is said in one sentence, by `simulate` and by the command line."""

import gc
import re

import pytest
import torch
from torch import nn

from zerolab import models, simulate
from zerolab.cli import main
from zerolab.models import Recipe
from zerolab.runtime.observers import holders

BATCH = [(torch.ones(2, 4), torch.ones(2, 4))]


class Branches(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        return self.layer(x) if x.sum() > 0 else -self.layer(x)


class Masks(Branches):
    """How many rows are left depends on their values."""

    def forward(self, x):
        return self.layer(x[x[:, 0] > 0])


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


def of_real_values():
    with torch.utils._python_dispatch._disable_current_modes():
        return nn.Linear(4, 4)


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ({"world_size": 0}, ValueError, "world size is 0"),
        ({"world_size": 2.5}, ValueError, r"world size is 2\.5"),
        ({"model": "llama7b"}, ValueError, "did you mean 'llama-7b'"),
        ({"model": nn.Linear(4, 4)}, TypeError, "model is a Linear: pass a model's name, or a function"),
        ({"gpu": "h1000"}, ValueError, "did you mean 'h100"),
        ({"network": "infiniband"}, ValueError, "did you mean 'infiniband-"),
        ({"bandwidth": 0.0}, ValueError, r"bandwidth is 0\.0: it is in bytes a second, at least a million \(50 GB/s"),
        ({"bandwidth": 50}, ValueError, "the bandwidth is 50: it is in bytes a second, at least a million"),
        ({"bandwidth": "50e9"}, TypeError, "bandwidth is '50e9': pass a number"),
        ({"utilisation": 0.0}, ValueError, "utilisation"),
        ({"utilisation": "40%"}, TypeError, "utilisation is '40%': pass a number"),
        ({"length": "2k"}, TypeError, "length is '2k': pass a number"),
        ({"gpus_per_node": 0}, ValueError, "GPUs in a node"),
        ({"hardware": "h100"}, TypeError, "hardware is 'h100': pass a Hardware, or gpu"),
        ({"length": 10**6}, ValueError, "1 to 2048 tokens"),
        ({"checkpointing": "full"}, ValueError, "unknown checkpointing 'full': choose one of none, selective, block"),
        ({"length": 0}, ValueError, "a batch of 1 x 0 tokens"),
        ({"precision": "fp8"}, ValueError, "unknown precision 'fp8'"),
        ({"stages": None}, TypeError, r"stages is None: pass names, such as \['ddp', 'zero1'\]"),
        ({"model": lambda: 3, "batches": BATCH}, TypeError, "the function returned a int, not a torch.nn.Module"),
        ({"model": lambda: nn.Linear(4, 4), "batches": [BATCH[0][0]]}, TypeError, "batch 0 is a Tensor: pass pairs"),
        ({"stages": []}, ValueError, "no stages were named: choose from ddp, zero1, zero2, zero3, muon-[a-z, -]*rows$"),
        ({"stages": "fsdp2"}, ValueError, "use compare, on real ranks; for a model of your own fit simulates it"),
        ({"model": "gpt-tiny", "rows": -3}, ValueError, "rows and length are .* and 'gpt-tiny' has a batch of its own"),
        ({"model": "gpt-tiny", "length": 99999}, ValueError, "'gpt-tiny' has a batch of its own: leave them out"),
        (
            {"model": Branches, "batches": BATCH, "rows": 3},
            ValueError,
            "batches= says what a rank gets: leave them out",
        ),
        ({"model": "gpt2", "batches": []}, ValueError, "batches are for a function of your own"),
        ({"model": "gpt2", "rows": True}, ValueError, "number of rows is True"),
        ({"world_size": True}, ValueError, "world size is True"),
        ({"stages": "zero4"}, ValueError, "unknown stage 'zero4': choose one of ddp, zero1, zero2, zero3, muon-repl"),
        ({"model": Branches}, ValueError, "pass batches"),
        ({"model": Branches, "batches": 5}, TypeError, "batches is 5: pass a list of .inputs, targets."),
        ({"model": Branches, "batches": BATCH[0][0]}, TypeError, "batches is tensor"),
        ({"model": of_real_values, "batches": BATCH}, ValueError, "'weight' has values already"),
        ({"model": Branches, "batches": BATCH, "stages": "ddp"}, RuntimeError, "needs values"),
        ({"model": Masks, "batches": BATCH, "stages": "ddp"}, RuntimeError, "aten.index.Tensor needs values"),
        (
            {"model": Peeks, "batches": BATCH, "stages": "zero3", "world_size": 2},
            RuntimeError,
            "of unit 'blocks.0' that was released: on real ranks this is a crash",
        ),
    ],
)
def test_what_cannot_be_simulated_is_said_in_a_sentence(arguments, error, says):
    before = set(map(id, holders))
    gc.freeze()  # the collection below looks at what this simulation made, not at all that torch is
    with pytest.raises(error, match=says):
        simulate(**arguments)
    gc.collect()
    assert set(map(id, holders)) <= before, "the engine outlives what was said of it"
    assert not torch.distributed.is_initialized()
    assert torch.ones(1).item() == 1.0, "tensors have memory again"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--world-size", "0"], "world size is 0"),
        (["--world-size", "-8"], "world size is -8"),
        (["--model", "llama7b"], "unknown model 'llama7b': did you mean 'llama-7b'"),
        (["--model", "gpt-2"], "did you mean 'gpt2'"),
        (["--gpu", "h1000"], "did you mean 'h100"),
        (["--bandwidth", "0"], "the bandwidth is 0.0: it is in bytes a second, at least a million (50 GB/s is 50e9)"),
        (["--bandwidth", "-2"], "the bandwidth is -2.0: it is in bytes a second"),
        (["--stages", "deepspeed-3"], "use compare"),
        (["--model", "gpt-tiny", "--rows", "7"], "'gpt-tiny' has a batch of its own: leave them out"),
        (["--json", "a.json", "--out", "./a.json"], "--json would overwrite 'a.json', which --out names too"),
        (["--json", "nowhere/out.json"], "cannot write 'nowhere/out.json': its folder does not exist"),
        (["--model", "branches"], "needs values, and a simulated rank has none: take the branch on shapes"),
        (["--model", "peeks", "--stages", "zero3"], "reads memory of unit 'blocks.0' that was released"),
    ],
)
def test_the_command_line_says_the_same_on_one_line(arguments, says, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    for name, module in (("branches", Branches), ("peeks", Peeks)):
        monkeypatch.setitem(models.RECIPES, name, Recipe(module, rows=2, inputs=4, outputs=4))
    assert main(["simulate", *arguments]) == 2
    said = capfd.readouterr().err
    assert says in said
    assert said.startswith("zerolab: ")
    assert len(said.splitlines()) == 1
    assert not list(tmp_path.iterdir())


def test_a_rank_may_not_simulate():
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    try:
        with pytest.raises(RuntimeError, match="from the notebook, not on its ranks"):
            simulate(model="gpt-tiny")
    finally:
        torch.distributed.destroy_process_group()


def test_a_terminal_is_told_which_stage_runs_and_a_pipe_is_not(monkeypatch, capfd):
    def told(command, *more):
        assert main([command, "--stages", "ddp,zero3", "--model", "mlp-odd", "--world-size", "1", *more]) == 0
        return list(dict.fromkeys(re.findall(r"K(\w+): .*? steps .*?(\(\d of 2\))", capfd.readouterr().err)))

    assert told("simulate") == []  # that compare's pipe hears nothing is tested with its rows
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setattr("zerolab.runtime.waiting.SILENCE", 0.0)
    monkeypatch.setattr("zerolab.runtime.waiting.EVERY", 0.01)
    assert told("simulate") == told("compare", "--steps", "2") == [("ddp", "(1 of 2)"), ("zero3", "(2 of 2)")]


def test_rows_do_not_replace_the_recording_of_a_stage(tmp_path, capfd):
    given = ["--stages", "ddp,zero3", "--model", "mlp-odd", "--world-size", "2", "--out", str(tmp_path / "run.json")]
    assert main(["simulate", *given, "--json", str(tmp_path / "run-zero3.json")]) == 2
    assert "run-zero3.json', which --out names too: choose another file" in capfd.readouterr().err
    assert not list(tmp_path.iterdir()), "it is said before the work"
