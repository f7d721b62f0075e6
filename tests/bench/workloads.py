"""What the ranks run when they are measured. Sent to them by value, so each function imports what it needs."""

from collections.abc import Callable, Sequence
from statistics import median
from time import perf_counter
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from zerolab import models
from zerolab.engines import ENGINES

OWN = ("ddp", "zero1", "zero2", "zero3")
TORCH = ("torch-ddp", "torch-zero1", "fsdp2-keep", "fsdp2")

Step = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def trivial() -> int:
    """Nothing at all; what is measured is the way there and back."""
    return 0


def step_seconds(variant: str, name: str, shape: dict[str, int], warm_up: int, steps: int) -> float:
    """Median seconds of a training step of model `name` under `variant`, after `warm_up` steps that do not count."""
    step = build_step(variant, models.build(name))
    feed = models.batches(name, dist.get_world_size(), dist.get_rank(), warm_up + steps, **shape)
    seconds = []
    for inputs, targets in feed:
        dist.barrier()  # all ranks begin a step together; a late one would count as communication
        start = perf_counter()
        step(inputs, targets)
        seconds.append(perf_counter() - start)
    return median(seconds[warm_up:])


def silent_step_seconds(variant: str, name: str, shape: dict[str, int], warm_up: int, steps: int) -> float:
    """As `step_seconds`, but no byte moves between ranks: everything else of the step, on numbers that mean nothing."""
    from zerolab.engines import collectives

    torch.set_flush_denormal(True)  # what was never received may be tiny numbers, which are slow to compute with
    start, collectives._start = collectives._start, lambda *_: []
    try:
        return step_seconds(f"{variant} silent", name, shape, warm_up, steps)
    finally:
        collectives._start = start


class Silence:
    """FSDP2's hook for a collective of one's own, here one that does nothing."""

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """The buffer that the collective would fill."""
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(self, *_: object, **__: object) -> None:
        """Moves nothing."""


def build_step(variant: str, model: nn.Module) -> Step:
    """A function that does one AdamW step on a batch: this project's engines, or torch's own."""
    stage = variant.removesuffix(" silent")
    if stage in OWN:
        engine = ENGINES[stage](model, torch.optim.AdamW, lr=1e-3)
        return lambda inputs, targets: engine.training_step(inputs, targets, models.loss)
    wrapped, optimizer = _torch_engine(variant, model)

    def step(inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        loss = models.loss(wrapped(inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return step


def _torch_engine(variant: str, model: nn.Module) -> tuple[nn.Module, Any]:
    """torch DDP, DDP with ZeroRedundancyOptimizer, or FSDP2 with and without reshard_after_forward."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.optim import ZeroRedundancyOptimizer
    from torch.nn.parallel import DistributedDataParallel

    from zerolab.engines.partition import find_units

    if variant in ("torch-ddp", "torch-zero1"):
        wrapped = DistributedDataParallel(model)  # these models have no buffers
        if variant == "torch-ddp":
            return wrapped, torch.optim.AdamW(wrapped.parameters(), lr=1e-3)
        return wrapped, ZeroRedundancyOptimizer(wrapped.parameters(), torch.optim.AdamW, lr=1e-3)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    reshard = variant != "fsdp2-keep"
    for part in [*map(model.get_submodule, find_units(model)), model]:
        fully_shard(part, mesh=mesh, reshard_after_forward=reshard)
        if variant.endswith("silent"):
            part.set_custom_all_gather(Silence())
            part.set_custom_reduce_scatter(Silence())
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3)


def short_training(stage: str, steps: int) -> None:
    """Some steps of gpt-tiny, to be recorded."""
    engine = ENGINES[stage](models.build("gpt-tiny"), torch.optim.AdamW, lr=1e-3)
    for inputs, targets in models.batches("gpt-tiny", dist.get_world_size(), dist.get_rank(), steps):
        engine.training_step(inputs, targets, models.loss)
