"""Case 10.

The cell below is what was examined: a loop over `fully_shard`, broken. Find the line, fix it, and take the `hole`
away.

* `inputs`, `targets`: of every step the rows that this rank reads, and what the model should make of them.
* `models.build("mlp-odd")` gives a small network, the same on every rank.
* The gradient is clipped: if its norm is above 0.25, it is scaled down to 0.25. `to_local()` gives this rank's part of
  a tensor that `fully_shard` has cut.

Return the model after the last step.

Targets, on 2, 3 and 4 ranks:

* its weights equal those of one process that reads the rows of all ranks at once and clips, to 1e-5.
"""

import math
import random
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

from zerolab import models
from zerolab.exercises import Suspect, Wrong
from zerolab.exercises.harness import sharded
from zerolab.exercises.harness.sharded import (
    GIVEN,
    Batches,
    like_one_process,
    mean_error,
    trained,
)


def train(inputs: torch.Tensor, targets: torch.Tensor) -> nn.Module:
    """Adds up the squares of all ranks' shards, and clips by the norm of the whole gradient."""
    model = models.build("mlp-odd")
    for layer in model.children():
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for rows, wanted in zip(inputs, targets, strict=True):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(rows), wanted).backward()
        shards = [weight.grad.to_local() for weight in model.parameters()]
        squares = torch.stack([shard.square().sum() for shard in shards]).sum()
        dist.all_reduce(squares)
        for shard in shards:
            shard.mul_(min(1.0, 0.25 / squares.sqrt().item()))
        optimizer.step()
    return model


def draw(dice: random.Random, world_size: int) -> list[tuple[Any, ...]]:
    """As for the others, but on two ranks the first step's gradient is too small to be clipped."""
    drawn = sharded.draw(dice, world_size)
    if world_size == 2:  # which are tried first: whoever always scales is found out at once
        for rows, wanted in drawn:
            rows[0] *= 0.01
            wanted[0] *= 0.01
    return drawn


def clipped(model: nn.Module, batches: Batches, *, factor: float = 1.0, always: bool = False) -> None:
    """By the norm of the whole gradient, which is taken for `factor` times as large; if it is small too, `always`."""
    mean_error(model, batches)
    weights = list(model.parameters())
    norm = (
        factor * torch.stack([weight.grad.square().sum() for weight in weights if weight.grad is not None]).sum().sqrt()
    )
    for weight in weights:
        if weight.grad is not None:
            weight.grad.mul_(min(math.inf if always else 1.0, 0.25 / norm.item()))


def apart(model: nn.Module, batches: Batches, *, largest: bool = False) -> None:
    """Each rank's shard by its own norm, or all by the largest of these norms."""
    mean_error(model, batches)
    # fully_shard cuts each weight by rows, as torch.chunk does.
    shards: list[list[torch.Tensor]] = [[] for _ in batches]
    for weight in model.parameters():
        for rank, shard in enumerate(weight.grad.chunk(len(batches)) if weight.grad is not None else ()):
            shards[rank].append(shard)
    norms = [torch.stack([shard.square().sum() for shard in mine]).sum().sqrt().item() for mine in shards]
    for mine, norm in zip(shards, norms, strict=True):
        for shard in mine:
            shard.mul_(min(1.0, 0.25 / (max(norms) if largest else norm)))


solution = train
given = GIVEN
look_for = "When it passes, each step has one more all-reduce, of a single number."
targets = like_one_process(clipped, draw=draw)
suspects = (
    Suspect(
        says="Some ranks read the same rows.",
        reply="then the ranks' gradients would be wrong, but every shard by the same factor. Compare two shards.",
    ),
    Suspect(
        says="The mean over ranks is missing.",
        reply="fully_shard takes it; without the clipping the weights are those of one process.",
    ),
    Suspect(
        says="Each rank scales its shard by a factor of its own.",
        reply="there is no exchange between backward and update, so no rank can know the norm of the whole gradient. "
        "On your cluster this looks like a run that cannot be reproduced on another number of GPUs, and a logged "
        "gradient norm that falls as you add some.",
        guilty=True,
    ),
    Suspect(
        says="The clipping comes after the update.",
        reply="then the weights would be those of a training without any clipping, and they are not.",
    ),
)
hints = (
    "What must all ranks agree on before they may scale their shards?",
    "The norm of the whole gradient is the root of a sum of squares over all shards of all ranks.",
    "`dist.all_reduce(squares)` before the root is taken; or `torch.nn.utils.clip_grad_norm_`, which does it.",
)
wrong = (
    Wrong(
        says="clips each shard by its own norm",
        gives=lambda arguments, _rank: trained(arguments, apart),
        replace="        dist.all_reduce(squares)\n",
        by="",
    ),
    Wrong(
        says="makes its updates with gradients that are not clipped to 0.25",
        gives=lambda arguments, _rank: trained(arguments),
        replace="            shard.mul_(min(1.0, 0.25 / squares.sqrt().item()))\n",
        by="            shard.mul_(1.0)\n",
    ),
    Wrong(
        says="takes the mean of the ranks' squares, and so a norm that is too small",
        gives=lambda arguments, _rank: trained(arguments, partial(clipped, factor=len(arguments) ** -0.5)),
        replace="        dist.all_reduce(squares)\n",
        by="        dist.all_reduce(squares)\n        squares /= dist.get_world_size()\n",
    ),
    Wrong(
        says="takes the norm of the largest shard for that of all",
        gives=lambda arguments, _rank: trained(arguments, partial(apart, largest=True)),
        replace="        dist.all_reduce(squares)\n",
        by="        dist.all_reduce(squares, op=dist.ReduceOp.MAX)\n",
    ),
    Wrong(
        says="scales a gradient up that is small enough as it is",
        gives=lambda arguments, _rank: trained(arguments, partial(clipped, always=True)),
        replace="min(1.0, 0.25 / squares.sqrt().item())",
        by="0.25 / squares.sqrt().item()",
    ),
    Wrong(says="right is", replace="squares.sqrt().item()", by="squares.item()"),
    Wrong(
        says="numbers, the first",
        replace="    return model",
        by="    return torch.cat([weight.to_local().flatten() for weight in model.parameters()])",
    ),
)
