"""What the ranks run when they are measured. They import this module themselves, so that engines live between runs."""

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from zerolab import models
from zerolab.engines import ENGINES
from zerolab.recording import recorder
from zerolab.recording.ledger import COMMUNICATION, GRADIENTS, OPTIMIZER_STATE, PARAMETERS, Ledger

OWN = ("ddp", "zero1", "zero2", "zero3")
TORCH = ("torch-ddp", "torch-zero1", "fsdp2", "fsdp2-keep")
DEEPSPEED = ("deepspeed-0", "deepspeed-1", "deepspeed-2", "deepspeed-3")
OPTIONS: dict[str, dict[str, Any]] = {"fsdp2-keep": {"reshard_after_forward": False}}

_kept: dict[str, Any] = {}  # engines, and in a silent rank the group that still works


def trivial() -> int:
    """Nothing at all; what is measured is the way there and back."""
    return 0


def all_reduce_seconds() -> float:
    """Mean seconds of an all_reduce of 4 kB, of 200 after one another."""
    tensor = torch.ones(1000)
    dist.barrier()
    start = perf_counter()
    for _ in range(200):
        dist.all_reduce(tensor)
    return (perf_counter() - start) / 200


def interrupt() -> None:
    """From here on Linux may interrupt a thread of this rank for another, as it may outside of ranks."""
    for thread in Path("/proc/self/task").iterdir():
        os.sched_setscheduler(int(thread.name), os.SCHED_OTHER, os.sched_param(0))


def first_step() -> None:
    """A first step of AdamW, which imports what torch has left for it, done on every rank."""
    model = nn.Linear(8, 8)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(2, 8)).sum().backward()
    optimizer.step()
    dist.barrier()


def engine(variant: str, model: nn.Module) -> Any:
    """The engine that a variant names, with AdamW; `fsdp2-keep` is FSDP2 with reshard_after_forward=False."""
    stage = variant.removesuffix("-keep")
    return ENGINES[stage](model, torch.optim.AdamW, lr=1e-3, **OPTIONS.get(variant, {}))


def kept_step_seconds(variant: str, name: str, shape: dict[str, int], steps: int) -> float:
    """Median seconds of a training step of model `name`.

    The engine is made and warmed up the first time, and lives as long as the ranks.
    """
    if variant not in _kept:
        _kept[variant] = engine(variant, models.build(name))
        _silence_hook(_kept[variant])
        _seconds(_kept[variant], name, shape, 2)
    return median(_seconds(_kept[variant], name, shape, steps))


def _seconds(made: Any, name: str, shape: dict[str, int], steps: int) -> list[float]:
    """Seconds of each step on this rank; all ranks begin a step together, for a late one would count as waiting."""
    seconds = []
    for inputs, targets in models.batches(name, dist.get_world_size(), dist.get_rank(), steps, **shape):
        _barrier()
        start = perf_counter()
        made.training_step(inputs, targets, models.loss)
        seconds.append(perf_counter() - start)
    return seconds


def silence() -> None:
    """From here on this rank's collectives send nothing; numbers mean nothing any more.

    torch's fake process group takes the default group's place, so it is the same for every system. What a rank does
    to the bytes it has received (copies out of buffers, say) stays in the step.
    """
    from torch.testing._internal.distributed.fake_pg import FakeStore

    rank, world_size, _kept["group"] = dist.get_rank(), dist.get_world_size(), dist.group.WORLD
    # What is wrapped: a rank refuses both calls to learners, who would only end the group of their next run.
    dist.destroy_process_group.__wrapped__()
    dist.init_process_group.__wrapped__("fake", rank=rank, world_size=world_size, store=FakeStore())
    torch.set_flush_denormal(True)  # what was never received may be tiny numbers, which are slow to compute with


def _barrier() -> None:
    group = _kept.get("group")
    if group is not None:
        group.barrier().wait()
    else:
        dist.barrier()


def _silence_hook(made: Any) -> None:
    """DDP expects a result of its all_reduce, which the fake group has not: gives it the bucket as it is."""
    if "group" in _kept and isinstance(made.model, nn.parallel.DistributedDataParallel):
        made.model.register_comm_hook(None, _bucket_as_it_is)


def _bucket_as_it_is(_: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future


class WatchedLedger(Ledger):
    """The recorder's ledger, which also notes the highest sum of parameters, gradients, optimizer and communication."""

    made: "WatchedLedger | None" = None
    highest = 0

    def __init__(self, clock, *, apart=True):
        super().__init__(clock, apart=apart)
        WatchedLedger.made = self

    def see(self, tensor: torch.Tensor) -> None:
        """As `Ledger.see`."""
        super().see(tensor)
        self.note()

    def resized(self, storage: torch.UntypedStorage) -> str | None:
        """As `Ledger.resized`."""
        unit = super().resized(storage)
        self.note()
        return unit

    def assign(self, tensor: torch.Tensor, category: int, unit: str | None) -> None:
        """As `Ledger.assign`; a tensor may turn out to be model state, or lent to an exchange, only now."""
        super().assign(tensor, category, unit)
        self.note()

    def note(self) -> None:
        """Compares what is live now with the highest so far."""
        live = self.host.live
        now = live[PARAMETERS] + live[GRADIENTS] + live[OPTIMIZER_STATE] + live[COMMUNICATION]
        self.highest = max(self.highest, now)


@contextmanager
def _highest_from_now() -> Iterator[list[int]]:
    ledger, found = WatchedLedger.made, [0]
    if ledger is None:
        raise RuntimeError("no WatchedLedger was made: call watch() on the ranks before record()")
    ledger.settle()
    ledger.highest = 0
    yield found
    found[0] = ledger.highest


def watch() -> None:
    """Recordings of this rank use a `WatchedLedger` from here on."""
    recorder.Ledger = WatchedLedger


def model_peak(variant: str, name: str, shape: dict[str, int]) -> int:
    """Highest bytes of parameters + gradients + optimizer + communication in the second step, on this rank."""
    batches = models.batches(name, dist.get_world_size(), dist.get_rank(), 2, **shape)
    made = engine(variant, models.build(name))
    made.training_step(*batches[0], models.loss)
    with _highest_from_now() as found:
        made.training_step(*batches[1], models.loss)
    return found[0]


def grown(variant: str, width: int, rows: int, steps: int) -> tuple[float, int]:
    """Median step seconds and highest model bytes (see `model_peak`) of the benchmark MLP at another width.

    The first step, in which AdamW makes its state, counts for neither.
    """
    made = engine(variant, filled_mlp(width))
    inputs = torch.randn(rows, width, generator=torch.Generator().manual_seed(dist.get_rank()))
    made.training_step(inputs, inputs.sin(), models.loss)
    seconds = []
    with _highest_from_now() as found:
        for _ in range(steps):
            dist.barrier()
            start = perf_counter()
            made.training_step(inputs, inputs.sin(), models.loss)
            seconds.append(perf_counter() - start)
    del made
    gc.collect()  # an engine and its hooks form cycles
    return median(seconds), found[0]


def filled_mlp(width: int) -> nn.Module:
    """Six blocks of 8 width² + 5 width parameters, filled with one small number: random ones would take seconds."""
    with torch.device("meta"):
        blocks = (nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)) for _ in range(6))
        model = nn.Sequential(*blocks)
    model.to_empty(device="cpu")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(1 / (2 * width))
    return model


def plain_step_seconds(name: str, shape: dict[str, int], warm_up: int, steps: int) -> float:
    """Median seconds of a step of plain PyTorch on this rank's GPU: module, autograd and AdamW, nothing else."""
    model = models.build(name)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def step(inputs: torch.Tensor, targets: torch.Tensor) -> None:
        models.loss(model(inputs), targets).backward()
        optimizer.step()
        optimizer.zero_grad()

    return _gpu_seconds(step, name, shape, warm_up, steps)


def gpu_step_seconds(variant: str, name: str, shape: dict[str, int], warm_up: int, steps: int) -> float:
    """The same step by an engine."""
    made = engine(variant, models.build(name))
    return _gpu_seconds(
        lambda inputs, targets: made.training_step(inputs, targets, models.loss), name, shape, warm_up, steps
    )


def _gpu_seconds(step: Any, name: str, shape: dict[str, int], warm_up: int, steps: int) -> float:
    seconds = []
    for inputs, targets in models.batches(name, dist.get_world_size(), dist.get_rank(), warm_up + steps, **shape):
        _finish()
        start = perf_counter()
        step(inputs, targets)
        _finish()
        seconds.append(perf_counter() - start)
    return median(seconds[warm_up:])


def _finish() -> None:
    """Waits until the GPU has done what it was given."""
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()


def gpu_bytes(variant: str, name: str) -> tuple[int, int, int]:
    """After two steps: bytes that the allocator has beyond those it had before, the ledger's, and blocks allocated."""

    def trained() -> Any:
        made = engine(variant, models.build(name))
        for inputs, targets in models.batches(name, dist.get_world_size(), dist.get_rank(), 2):
            made.training_step(inputs, targets, models.loss)
        torch.cuda.synchronize()
        return made

    trained()  # what cuBLAS keeps for itself, up to 32 MiB for each thread that multiplies, is there from now on
    gc.collect()
    before, blocks = torch.cuda.memory_allocated(), torch.cuda.memory_stats()["allocation.all.current"]
    _made = trained()  # alive while we count
    ledger = WatchedLedger.made
    if ledger is None:
        raise RuntimeError("no WatchedLedger was made: call watch() on the ranks before record()")
    ledger.settle()
    blocks = torch.cuda.memory_stats()["allocation.all.current"] - blocks
    return torch.cuda.memory_allocated() - before, ledger.tallies["cuda"].total, blocks


def short_training(stage: str, steps: int) -> None:
    """Some steps of gpt-tiny, to be recorded."""
    made = engine(stage, models.build("gpt-tiny"))
    for inputs, targets in models.batches("gpt-tiny", dist.get_world_size(), dist.get_rank(), steps):
        made.training_step(inputs, targets, models.loss)
