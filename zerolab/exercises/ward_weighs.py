"""Case 11.

The cell below is what was examined: a loop over `fully_shard`, broken. Find the line, fix it, and take the `hole`
away.

* `inputs`, `targets`: of every step the tokens that this rank reads, and what the model should make of them.
* `counts`: of every step for each token 1 or 0: whether it counts. The others only fill a batch up, and each rank has
  a different number of them.
* `models.build("mlp-odd")` gives a small network, the same on every rank.

Return the model after the last step. Each token that counts must weigh the same, whichever rank reads it.

Targets, on 2, 3 and 4 ranks:

* its weights equal those of one process that reads the tokens of all ranks at once, to 1e-5.
"""

import random
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

from zerolab import models
from zerolab.exercises import Suspect, Wrong
from zerolab.exercises.harness import sharded
from zerolab.exercises.harness.sharded import GIVEN, Batches, like_one_process, trained


def train(inputs: torch.Tensor, targets: torch.Tensor, counts: torch.Tensor) -> nn.Module:
    """Divides by the tokens of all ranks; times N, because fully_shard takes the mean over ranks."""
    model = models.build("mlp-odd")
    for layer in model.children():
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for tokens, wanted, weights in zip(inputs, targets, counts, strict=True):
        optimizer.zero_grad()
        losses = (model(tokens) - wanted).square().mean(dim=1)
        number = weights.sum()
        dist.all_reduce(number)
        loss = (losses * weights).sum() / number * dist.get_world_size()
        loss.backward()
        optimizer.step()
    return model


def weighted(model: nn.Module, batches: Batches, *, filled: bool = False) -> None:
    """Over the tokens of all ranks that count; with `filled` also over those that do not."""
    tokens, wanted, counts = (torch.cat(each) for each in zip(*batches, strict=True))
    losses = (model(tokens) - wanted).square().mean(dim=1)
    ((losses if filled else losses * counts).sum() / counts.sum()).backward()


def by_rank(model: nn.Module, batches: Batches, *, counted: bool = True) -> None:
    """The mean of the ranks' own means: over the tokens that count, or over all in the batch."""
    for tokens, wanted, counts in batches:
        losses = (model(tokens) - wanted).square().mean(dim=1) * counts
        (losses.sum() / (counts.sum() if counted else counts.numel()) / len(batches)).backward()


def draw(dice: random.Random, world_size: int) -> list[tuple[Any, ...]]:
    """As for the others, and which tokens count: on rank r another number in each step."""
    drawn = []
    for rank, (rows, wanted) in enumerate(sharded.draw(dice, world_size)):
        counts = np.zeros(rows.shape[:2], dtype=np.float32)
        for step in range(len(counts)):
            counts[step, : 1 + (2 * rank + step) % rows.shape[1]] = 1
        drawn.append((rows, wanted, counts))
    return drawn


WEIGHTED = """        number = weights.sum()
        dist.all_reduce(number)
        loss = (losses * weights).sum() / number * dist.get_world_size()
"""

solution = train
given = GIVEN
look_for = "When it passes, each step has one more all-reduce, of a single number."
targets = like_one_process(weighted, draw=draw)
suspects = (
    Suspect(
        says="Tokens that only fill a batch up are learned from, too.",
        reply="their losses are multiplied by 0, so nothing of them reaches a gradient.",
    ),
    Suspect(
        says="A token weighs more on a rank that has few of them.",
        reply="each rank divides by its own number, and is told nobody else's: a mean of means is another mean. On "
        "your cluster this looks like nothing at all: a slightly worse model, and a loss that depends on how documents "
        "were packed.",
        guilty=True,
    ),
    Suspect(
        says="The ranks have models that have come apart.",
        reply="they gather the same weights: all ranks end with equal ones, and wrong ones.",
    ),
    Suspect(
        says="fully_shard adds gradients up instead of averaging them.",
        reply="then the steps would be N times as long. With equal numbers of tokens the weights are right.",
    ),
)
hints = (
    "How much does one token weigh on a rank with one token, and on a rank with six?",
    "Divide by the number of tokens on all ranks. Who knows it?",
    "`number = weights.sum()`, `dist.all_reduce(number)`; fully_shard then divides by N once more, so multiply by N.",
)
wrong = (
    Wrong(
        says="takes the mean of the ranks' means, in which a token weighs more where there are few",
        gives=lambda arguments, _rank: trained(arguments, by_rank),
        replace=WEIGHTED,
        by="        loss = (losses * weights).sum() / weights.sum()\n",
    ),
    Wrong(
        says="divides by N once more than it should: fully_shard takes the mean over ranks",
        gives=lambda arguments, _rank: trained(arguments, weighted, lr=0.5 / len(arguments)),
        replace=" * dist.get_world_size()",
        by="",
    ),
    Wrong(
        says="also learns from tokens that do not count",
        gives=lambda arguments, _rank: trained(arguments, partial(weighted, filled=True)),
        replace="(losses * weights).sum() / number",
        by="losses.sum() / number",
    ),
    Wrong(
        says="divides by the whole batch, those that do not count included",
        gives=lambda arguments, _rank: trained(arguments, partial(by_rank, counted=False)),
        replace=WEIGHTED,
        by="        loss = (losses * weights).mean()\n",
    ),
    Wrong(
        says="right is",
        replace="        dist.all_reduce(number)\n",
        by="        dist.all_reduce(number, op=dist.ReduceOp.MAX)\n",
    ),
    Wrong(says="right is", replace=" / number * dist.get_world_size()", by=" / number / dist.get_world_size()"),
)
