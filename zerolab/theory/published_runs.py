"""Runs that others have published, read from published_runs.csv: what was trained on what, its seconds and its bytes.

The planner's figures are held against them in docs/published-runs.md. Every other row of a source is fitted
(`PublishedRun.used_for_fitting`), the rest never: the rule goes by the place in the source, and not by the result.
Of a source, all runs are here that divide the data only (plain or hybrid sharding, ZeRO, DDP), in 16 bit; of MosaicML's
tables those of 7 to 70 billion parameters on cards of 80 GB with 2,048 to 8,192 tokens a row.

Where a source does not say, it is assumed: 400 Gb/s a GPU between MosaicML's H100s and torchtitan's A100s 200; every
other block checkpointed where it says "selective". fms-fsdp says "selective" of its compiled 34B and 70B, but its
table of utilisations has a third more operations done than counted there: that is every block, and so it stands here.
"""

from __future__ import annotations

import csv
from collections import Counter
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources

from zerolab import catalog
from zerolab.catalog import GIB, Architecture
from zerolab.theory import seconds

MIB = 2**20
NODE = 8  # GPUs, in all of them
STEPS_OF_NANO_GPT = 600_000

# mosaicml/llm-foundry, scripts/train/yamls/pretrain: width, heads, depth. Positions are learned; 50,368 words.
_MPT = {"7b": (4096, 32, 32), "13b": (5120, 40, 40), "30b": (7168, 56, 48), "70b": (8192, 64, 80)}
_OTHERS = {
    f"mpt-{size}": Architecture(f"mpt-{size}", "gpt", *shape, 2048, 50368, "mosaicml/llm-foundry, yamls/pretrain")
    for size, shape in _MPT.items()
}
_OTHERS["code-llama-34b"] = Architecture(
    "code-llama-34b", "llama", 8192, 64, 48, 4096, 32000, "fms-fsdp, config_utils.py, llama2_34b", 22016, 8
)


@dataclass(frozen=True, slots=True)
class PublishedRun:
    """One row of the file.

    Attributes:
        source: whose, as on GitHub; `table` is the file in it, its version after @, and the table or the variant.
        model: what was trained; its context is as long as the run's rows.
        setting: what on, and how.
        stage: ZeRO's; "zero3" for fully sharded data parallel.
        scheme: how parameters, gradients and Adam's state are kept, as `schemes` has it; DeepSpeed's is ours.
        logits: what becomes of the logits at the loss, as `activations` has it.
        caches: how many steps' keys and values, of all blocks, are there besides. ATorch's script leaves transformers'
            `use_cache` on, and its `outputs` hold those of the step before until the next forward is done.
        seconds: of a step, from what was published; None where no time was.
        memory_bytes: the most that a GPU had allocated (torchtitan: reserved); None where that was not published.
        fits: whether it ran.
        used_for_fitting: whether `seconds.FITTED` has seen it.
    """

    source: str
    table: str
    model: Architecture
    setting: seconds.Setting
    stage: str
    scheme: str
    logits: str
    caches: int
    seconds: float | None
    memory_bytes: float | None
    fits: bool
    used_for_fitting: bool

    @property
    def predicted_seconds(self) -> float:
        """Of a step, by the closed form."""
        return seconds.step(self.model, self.stage, self.setting).total

    @property
    def utilisation(self) -> float | None:
        """Part of the card's dense rate, counted as it is quoted; None without seconds."""
        if self.seconds is None:
            return None
        flops = seconds.quoted_flops(self.model) * tokens(self.model, self.setting)
        return flops / self.seconds / self.setting.rate


def published_utilisation(gpu: catalog.Gpu) -> tuple[float, float]:
    """The least and the most that runs on a chip like the GPU's reached of its dense rate, all waits included.

    What claims more than all of it is not counted.
    """
    chip = seconds.chip(gpu)
    found = [run.utilisation for run in runs() if run.utilisation and seconds.chip(run.setting.gpu) == chip]
    possible = [part for part in found if part < 1]
    return min(possible), max(possible)


def tokens(model: Architecture, setting: seconds.Setting) -> int:
    """Tokens that one GPU sees in a step."""
    return setting.micro_batches * setting.rows * model.context


@cache
def runs() -> tuple[PublishedRun, ...]:
    """All of them, in the order of the file."""
    seen: Counter[str] = Counter()
    found = []
    text = resources.files("zerolab.theory").joinpath("published_runs.csv").read_text(encoding="utf-8")
    for row in csv.DictReader(text.splitlines()):
        place = seen[row["source"]]
        seen[row["source"]] += 1
        found.append(_run(row, fitted=place % 2 == 0))
    return tuple(found)


def _run(row: dict[str, str], *, fitted: bool) -> PublishedRun:
    model = replace(_architecture(row["model"]), context=int(row["length"]))
    setting = _setting(row)
    memory = float(row["memory"]) * {"GiB": GIB, "MiB": MIB}[row["memory_unit"]] if row["memory"] else None
    return PublishedRun(
        row["source"],
        row["table"],
        model,
        setting,
        row["stage"],
        row["scheme"],
        row["logits"],
        int(row["caches"]),
        _seconds(row["published"], row["unit"], model, setting),
        memory,
        row["fits"] == "yes",
        fitted,
    )


def _architecture(name: str) -> Architecture:
    return _OTHERS[name] if name in _OTHERS else catalog.architecture(name)


def _setting(row: dict[str, str]) -> seconds.Setting:
    # What a network of the catalog's kind carries, at the rate that the source names.
    network = replace(catalog.link("infiniband-ndr"), bytes_per_second=float(row["gigabits"]) / 8 * 1e9)
    return seconds.Setting(
        catalog.gpu(row["gpu"]),
        int(row["gpus"]),
        network,
        NODE,
        int(row["batch"]),
        int(row["micro_batches"]),
        checkpointing=row["checkpointing"],
        kernels=row["kernels"],
        gradient_bytes=int(row["gradient_bytes"]),
        hybrid=row["sharding"] == "hybrid",
    )


def _seconds(published: str, unit: str, model: Architecture, setting: seconds.Setting) -> float | None:
    """Seconds of a step, from a figure as it was printed."""
    if not published:
        return None
    figure, count = float(published), tokens(model, setting)
    if unit == "s/step":
        return figure
    if unit == "days":
        return figure * 24 * 3600 / STEPS_OF_NANO_GPT
    if unit == "TFLOP/s/GPU":  # ATorch counts what is done: the blocks four times, forward twice, and the output three
        block = 2 * model.block_params + 4 * model.width * model.context
        done = 4 * model.depth * block + 3 * 2 * model.width * model.vocabulary
        return count * done / (figure * 1e12)
    return count / figure  # tokens/s/GPU
