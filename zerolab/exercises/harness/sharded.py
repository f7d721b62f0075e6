"""What the patients of the clinic's second ward share: a small model, what they are judged by, and one process beside.

They are loops over torch's `fully_shard`, which is to train as one process would on the rows of all ranks.
"""

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.distributed.tensor import DTensor

from zerolab import models
from zerolab.exercises.harness.onranks import RankTargets

STEPS, ROWS, WIDTH, OUT = 4, 6, 6, 5
GIVEN = """import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from zerolab import models"""

Batches = list[tuple[torch.Tensor, ...]]
"""What each rank reads in a step."""

Step = Callable[[nn.Module, Batches], None]
"""Of a model and what each rank reads in a step, leaves the gradients that the update is made with."""


def whole(model: Any) -> Any:
    """All weights of a model end to end, sharded or not; every rank must ask. Anything else as it is."""
    if not isinstance(model, nn.Module):
        return model
    weights = [weight.detach() for weight in model.parameters()]
    return torch.cat([(w.full_tensor() if isinstance(w, DTensor) else w).flatten() for w in weights])


def draw(dice: random.Random, world_size: int) -> list[tuple[Any, ...]]:
    """For each rank rows of every step, and what the model should make of them."""
    numbers = np.random.default_rng(dice.randrange(2**31))
    rows = numbers.standard_normal((world_size, STEPS, ROWS, WIDTH)).astype(np.float32)
    wanted = numbers.standard_normal((world_size, STEPS, ROWS, OUT)).astype(np.float32)
    return list(zip(rows, wanted, strict=True))


def mean_error(model: nn.Module, batches: Batches) -> None:
    """The gradient of the mean squared error over all rows of all ranks."""
    rows, wanted = (torch.cat(each) for each in zip(*batches, strict=True))
    nn.functional.mse_loss(model(rows), wanted).backward()


def trained(arguments: list[tuple[Any, ...]], step: Step = mean_error, *, lr: float = 0.5, forgets: bool = True) -> Any:
    """The weights that one process ends with, if `step` makes the gradients; `forgets` those of the step before."""
    model = models.build("mlp-odd")
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    for number in range(STEPS):
        if forgets:
            optimizer.zero_grad()
        step(model, [tuple(torch.from_numpy(each[number]) for each in of_rank) for of_rank in arguments])
        optimizer.step()
    return whole(model)


def like_one_process(step: Step, **options: Any) -> RankTargets:
    """Targets that are reached by whoever ends with the weights of one process on the rows of all ranks."""
    shared: dict[str, Any] = {"draw": draw, "world_sizes": (2, 3, 4), "tolerance": 1e-5}
    shared |= {"allows": ("torch.distributed.fsdp",), "reads": whole}
    return RankTargets(wanted=lambda arguments, _rank: trained(arguments, step), **shared | options)
