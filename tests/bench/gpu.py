"""On a GPU: a step at N=1 beside plain PyTorch, and the allocator beside the ledger with 4 ranks on one GPU."""

from collections.abc import Iterator

import torch
import workloads
from measuring import Figure, interleaved

from zerolab import Cluster

STAGES = ("zero1", "zero2", "zero3")
ROUNDING = 512  # bytes: torch's caching allocator rounds every block up to a multiple of this
NOT_RUN = "not run: no GPU"


def gpu(rounds: int) -> Iterator[Figure]:
    """A step at N=1 against plain PyTorch, and allocator bytes against the ledger; says so where there is no GPU."""
    limits = dict.fromkeys(STAGES, 1.05)
    step = Figure("gpu_step", "AdamW step of gpt-10m, 8x128 tokens, one rank on a GPU", "seconds", "plain", limits)
    about = "Allocator bytes beyond the ledger's, gpt-10m, 4 ranks on one GPU, for each block that is allocated"
    rounding = Figure("gpu_bytes", about, "bytes a block", None, dict.fromkeys(STAGES, float(ROUNDING)))
    if not torch.cuda.is_available():
        step.note = rounding.note = NOT_RUN
    else:
        _fill_step(step, rounds)
        _fill_rounding(rounding)
    yield step
    yield rounding


def _fill_step(figure: Figure, rounds: int) -> None:
    with Cluster(world_size=1, device="cuda", timeout=120) as cluster:
        call = ("gpt-10m", {"rows": 8, "length": 128}, 3, 20)

        def measure(variant: str) -> float:
            if variant == "plain":
                return max(cluster.run(workloads.plain_step_seconds, *call))
            return max(cluster.run(workloads.gpu_step_seconds, variant, *call))

        for variant, seconds in interleaved(["plain", *STAGES], rounds, measure):
            figure.add(variant, seconds)


def _fill_rounding(figure: Figure) -> None:
    """Each rank's difference divided by its blocks: between 0 and the rounding, if the ledger is right."""
    for stage in STAGES:
        with Cluster(world_size=4, device="cuda", timeout=120) as cluster:
            cluster.run(workloads.watch)
            for allocated, counted, blocks in cluster.record(workloads.gpu_bytes, stage, "gpt-10m").results:
                figure.add(stage, abs(allocated - counted) / max(blocks, 1))
