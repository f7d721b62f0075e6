"""The last cell of each lesson, "The same on your GPUs", which no stored output shows: its code, without a GPU."""

import ast
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from contract import OnContract

import zerolab
from zerolab import comparison, models
from zerolab.engines import ENGINES

FOLDER = Path(__file__).resolve().parents[2] / "notebooks"
LESSONS = {path.stem: path for path in sorted(FOLDER.glob("*.ipynb"))}
GPU = "zerolab.gpu"  # the cell's tag
KEPT = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef)


def is_command(cell):
    """Whether a cell is a line for the shell, or a file that it writes, and no Python of its own."""
    return cell["source"][0].startswith(("!", "%%writefile"))


def cells(lesson):
    """The code of a lesson's own cells, without those of exercises."""
    all_cells = json.loads(LESSONS[lesson].read_text())["cells"]
    code = (cell for cell in all_cells if cell["cell_type"] == "code")
    return [
        "".join(cell["source"])
        for cell in code
        if cell["metadata"].get("tags", [GPU]) == [GPU] and not is_command(cell)
    ]


def gpu_cell(lesson):
    """The code for GPUs, written for another device: what stands behind "if there are two"."""
    [found] = [cell for cell in cells(lesson) if "device_count() >= 2" in cell]
    return found


def names(lesson, replaced):
    """What a lesson has imported and defined before its last cell; some names are replaced at once."""
    namespace = {"__name__": "__main__"}
    for cell in cells(lesson):
        kept = [statement for statement in ast.parse(cell).body if isinstance(statement, KEPT)]
        if "device_count() >= 2" not in cell:
            exec(compile(ast.Module(kept, []), lesson, "exec"), namespace)  # noqa: S102  (a lesson's own code)
        namespace.update(replaced)
    namespace["cluster"] = SimpleNamespace(close=lambda: None)
    return namespace


def run(lesson, device, **replaced):
    """Runs the cell for GPUs as if there were two, with `device` in the place of "cuda"."""
    code = gpu_cell(lesson).replace('device="cuda"', f'device="{device}"')
    exec(compile(code, lesson, "exec"), names(lesson, replaced))  # noqa: S102


@pytest.fixture(autouse=True)
def two_gpus(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)


class TwoRanks(OnContract):
    """What `Cluster()` is on a box with two GPUs, on this one: its collectives behave towards Python as NCCL's do."""

    def __init__(self, world_size=2, device="cpu"):
        super().__init__(world_size, device=device)


@pytest.mark.slow
@pytest.mark.parametrize("lesson", LESSONS)
def test_the_cell_for_gpus_runs_on_as_many_ranks_as_gpus(lesson, monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(OnContract, "folder", tmp_path)
    monkeypatch.setattr(comparison, "Cluster", TwoRanks)

    def compared(stages, *, world_size, model, device, steps=2):
        assert (world_size, device) == (2, "cpu"), "one rank a GPU, and on nothing else"
        return comparison.compare(stages, world_size, "mlp-odd", steps=2, device="cpu")

    monkeypatch.setattr(zerolab, "compare", compared)
    run(lesson, "cpu", Cluster=TwoRanks)
    printed = capsys.readouterr().out
    assert printed
    assert "nothing to run" not in printed


class OneStep:
    """An engine that only computes a loss, to see whether model and batch lie on one device."""

    def __init__(self, model, *_, **__):
        self.model = model

    def training_step(self, inputs, targets, loss_fn):
        OneStep.losses.append(loss_fn(self.model(inputs), targets).device.type)
        return SimpleNamespace(item=float)

    def state_dict(self):
        return {}


class OnMeta:
    """Stands for `Cluster()`: calls a function here, on a device that holds no numbers and mixes with no other."""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        models.train_on(torch.device("cpu"))

    def run(self, function, *arguments, **keywords):
        models.train_on(torch.device("meta"))
        return [function(*(OneStep if isinstance(a, type) else a for a in arguments), **keywords)]

    def record(self, function, *arguments, **keywords):
        self.run(function, *arguments, **keywords)
        return SimpleNamespace(memory=str, traffic=str)


@pytest.mark.parametrize("lesson", [lesson for lesson in LESSONS if "(train" in gpu_cell(lesson)])
def test_what_a_lesson_trains_on_a_gpu_and_its_batches_lie_on_one_device(lesson, monkeypatch):
    monkeypatch.setattr(dist, "get_world_size", lambda: 1)
    monkeypatch.setattr(dist, "get_rank", lambda: 0)
    OneStep.losses = []
    run(lesson, "meta", Cluster=OnMeta, DDP=OneStep, ENGINES=dict.fromkeys(ENGINES, OneStep), Zero1=OneStep)
    assert set(OneStep.losses) == {"meta"}
