"""Published runs, read from published_runs.csv: what was trained on what, its seconds and its bytes.

docs/published-runs.md compares the planner's figures with them. Every other row of a source was used for fitting
(`PublishedRun.used_for_fitting`), the rest never: the place in the source decides, not the result. The runs of
torchtitan's commit messages came after the fit, and none of them was used. Of each source, all purely data-parallel
runs (sharded, hybrid, ZeRO, DDP) in 16 bits and without offload are here; of MosaicML's tables, those of 7 to 70
billion parameters on cards of 80 GB with 2,048 to 8,192 tokens per row; of commit messages, those of a dense Llama of 7
billion parameters or more that give the memory, each once, the allocated bytes where both they and the reserved are
given. Of torchtitan's runs with tensor or context parallelism, which multiply in Float8, only the bytes are here: no
seconds are predicted for Float8.

Assumed where a source does not say: 400 Gb/s per GPU between MosaicML's H100s, and 200 between torchtitan's A100s;
"selective" checkpointing of every other block. MosaicML's loss is flash-attn's; so llm.c's counts too, though it
overwrites the logits. fms-fsdp says "selective" of its compiled 34B and 70B, but its table of utilisations has a third
more operations done than counted there: that is every block, and so it is listed here.

`norms` is what each source's code has, where torch's operations run one by one: "unfused" in Hugging Face's Llama,
which ATorch and the gist train (`LlamaRMSNorm`; of it ATorch replaces attention alone), in fms-fsdp's
(`LayerNormParameterized`), and in torchtitan's wherever its configuration of that date says `rmsnorm`, not
`fused_rmsnorm`. What is compiled is one kernel.
"""

from __future__ import annotations

import csv
from collections import Counter
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from zerolab import catalog
from zerolab.catalog import GIB, Architecture
from zerolab.theory import seconds
from zerolab.theory.job import Job

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
        source: the repository on GitHub; `table` is the file in it, its version after @, and the table or the variant.
        job: what was trained, on what, and how; the model's context is the length of the run's rows.
        stage: ZeRO's stage; "zero3" for fully sharded data parallel.
        caches: how many steps' keys and values, of all blocks, are also in memory. ATorch's script leaves
            transformers' `use_cache` on, and its `outputs` keep those of the last step until the next forward ends.
        seconds: of a step, as published; None without a published time.
        memory_bytes: the most that a GPU had allocated, or reserved in torchtitan's rows without "peak active"; None
            where that was not published.
        fits: whether it ran.
        used_for_fitting: whether `seconds.FITTED` was fitted to it.
    """

    source: str
    table: str
    job: Job
    stage: str
    caches: int
    seconds: float | None
    memory_bytes: float | None
    fits: bool
    used_for_fitting: bool

    @property
    def predicted_seconds(self) -> float:
        """Seconds of a step by the closed form."""
        return seconds.step(self.job, self.stage).total

    @property
    def utilisation(self) -> float | None:
        """Part of the card's dense rate, counted as in papers; None without seconds."""
        if self.seconds is None:
            return None
        flops = seconds.quoted_flops(self.job.shape, self.job.length) * tokens(self.job)
        return flops / self.seconds / self.job.rate


def published_utilisation(chip: str) -> tuple[float, float]:
    """The lowest and the highest utilisation of published runs on a chip, without impossible ones above 1."""
    found = [run.utilisation for run in runs() if run.utilisation and seconds.chip(run.job.gpu) == chip]
    possible = [part for part in found if part < 1]
    return min(possible), max(possible)


def tokens(job: Job) -> int:
    """Tokens of one GPU in a step."""
    return job.micro_batches * job.rows * job.length


@cache
def runs() -> tuple[PublishedRun, ...]:
    """All published runs, in the order of the file."""
    seen: Counter[str] = Counter()
    found = []
    for row in csv.DictReader(Path(__file__).with_suffix(".csv").read_text(encoding="utf-8").splitlines()):
        place = seen[row["source"]]
        seen[row["source"]] += 1
        found.append(_run(row, fitted=place % 2 == 0 and not row["table"].startswith("commit")))
    return tuple(found)


def _run(row: dict[str, str], *, fitted: bool) -> PublishedRun:
    job = _job(row)
    memory = float(row["memory"]) * {"GiB": GIB, "MiB": MIB}[row["memory_unit"]] if row["memory"] else None
    return PublishedRun(
        row["source"],
        row["table"],
        job,
        row["stage"],
        int(row["caches"]),
        _seconds(row["published"], row["unit"], job),
        memory,
        row["fits"] == "yes",
        fitted,
    )


def _job(row: dict[str, str]) -> Job:
    shape, length = _OTHERS.get(row["model"]) or catalog.architecture(row["model"]), int(row["length"])
    # A network of the catalog, at the source's rate.
    network = replace(catalog.link("infiniband-ndr"), bytes_per_second=float(row["gigabits"]) / 8 * 1e9)
    return Job(
        replace(shape, context=length),
        int(row["gpus"]),
        "bf16",
        int(row["batch"]),
        length,
        row["checkpointing"],
        row["scheme"],
        norms=row["norms"],
        logits=row["logits"],
        sharding=row["sharding"],
        tensor=int(row["tensor"]),
        context=int(row["context"]),
        gpus_per_node=NODE,
        micro_batches=int(row["micro_batches"]),
        gpu=catalog.gpu(row["gpu"]),
        kernels=row["kernels"],
        network=network,
        gradient_bytes=int(row["gradient_bytes"]),
    )


def _seconds(published: str, unit: str, job: Job) -> float | None:
    """Seconds of a step, from the published figure."""
    if not published:
        return None
    figure, count, model = float(published), tokens(job), job.shape
    if unit == "s/step":
        return figure
    if unit == "days":
        return figure * 24 * 3600 / STEPS_OF_NANO_GPT
    if unit == "TFLOP/s/GPU":  # ATorch counts what is computed: each block's forward four times, the output's three
        block = 2 * model.block_params + 4 * model.width * model.context
        done = 4 * model.depth * block + 3 * 2 * model.width * model.vocabulary
        return count * done / (figure * 1e12)
    return count / figure  # tokens/s/GPU
