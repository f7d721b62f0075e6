"""One exchange for the log.

A log wants one number a step: the mean loss over **all tokens** of all micro-batches on all ranks. Scripts get it by an
exchange for each micro-batch, and often get another number. Write the function that makes it from what a rank has at
the end of a step:

* `losses`: of each micro-batch on this rank its loss, which is the mean over its own tokens;
* `counts`: of each of these how many tokens that were.

Both are tensors of the same length. Ranks have different numbers of tokens, and a micro-batch of which all is masked
has none; torch says `nan` for its loss. Return the mean, as a number, on every rank.

Targets, on 2, 3, 1 and 4 ranks:

* the mean over all tokens, to 1e-5, on every rank;
* one `all_reduce` on every rank, and no other exchange.
"""

import math
import random
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from zerolab.exercises import Wrong
from zerolab.exercises.harness.onranks import Arguments, RankTargets

PARTS = 4


def log_step(losses: torch.Tensor, counts: torch.Tensor) -> float:
    """The sum over tokens and their number, in one tensor; a micro-batch without tokens adds nothing."""
    some = counts > 0
    sums = torch.stack([(losses[some] * counts[some]).sum(), counts.sum()])
    dist.all_reduce(sums)
    mean: float = (sums[0] / sums[1]).item()
    return mean


def draw(dice: random.Random, world_size: int) -> Arguments:
    """Losses around 4 and very different counts; on one rank a micro-batch has no token, on one of four none has."""
    numbers = np.random.default_rng(dice.randrange(2**31))
    losses = numbers.uniform(2, 6, (world_size, PARTS)).astype(np.float32)
    counts = np.array([[dice.randrange(1, 40) * (1 + 3 * rank) for _ in range(PARTS)] for rank in range(world_size)])
    empty = dice.randrange(world_size), dice.randrange(PARTS)
    losses[empty], counts[empty] = np.nan, 0
    if world_size == 4:
        masked = dice.randrange(4)
        losses[masked], counts[masked] = np.nan, 0
    return list(zip(losses, counts.astype(np.float32), strict=True))


def mean(arguments: Arguments, _rank: int) -> float:
    """Over all tokens of all ranks; `nan` if there is none."""
    return sum(map(_total, arguments)) / (sum(float(counts.sum()) for _, counts in arguments) or math.nan)


def own(arguments: Arguments, rank: int) -> float:
    """Over the tokens of one rank."""
    return mean([arguments[rank]], 0)


def of_ranks(arguments: Arguments, _rank: int) -> float:
    """The mean of the ranks' own means."""
    return sum(own(arguments, rank) for rank in range(len(arguments))) / len(arguments)


def of_parts(arguments: Arguments, _rank: int) -> float:
    """The mean of the ranks' means over micro-batches."""
    means = [float(np.nansum(losses)) / ((counts > 0).sum() or math.nan) for losses, counts in arguments]
    return sum(means) / len(means)


def _total(argument: tuple[Any, ...]) -> float:
    losses, counts = argument
    return float(np.nansum(losses.astype(np.float64) * counts))


solution = log_step
hole = "bring sum and number together, then divide"
given = """import torch
import torch.distributed as dist"""
look_for = "When it passes, the timeline has one bar on each rank, of two numbers: what a log costs a step."
targets = RankTargets(
    draw=draw,
    wanted=mean,
    tolerance=1e-5,
    collectives=lambda _world_size: ("all_reduce",),
)
hints = (
    "A mean of means is another mean. What can be added up over ranks, and what not?",
    "The sum over tokens is loss times count. Sum and number of tokens can travel in one tensor.",
    "`torch.stack([(losses[some] * counts[some]).sum(), counts.sum()])` with `some = counts > 0`; one `all_reduce`.",
)
REDUCED = """    dist.all_reduce(sums)
"""
DIVIDED = "(sums[0] / sums[1]).item()"
wrong = (
    # First: of a rank without tokens the means below are no numbers either.
    Wrong(
        says="lets in a `nan`, of a micro-batch or of a rank without tokens",
        gives=lambda *_: math.nan,
        replace="(losses[some] * counts[some]).sum()",
        by="(losses * counts).sum()",
    ),
    Wrong(
        says="takes the mean of the micro-batches' means, in which a token weighs more where there are few",
        gives=of_parts,
        whole="""
def log_step(losses, counts):
    mean = losses.nanmean()
    dist.all_reduce(mean)
    return mean.item() / dist.get_world_size()
""",
    ),
    Wrong(
        says="takes the mean of the ranks' means, in which a token weighs more where there are few",
        gives=of_ranks,
        replace=f"{REDUCED}    mean: float = {DIVIDED}",
        by="    mean = sums[0] / sums[1]\n    dist.all_reduce(mean)\n    mean = mean.item() / dist.get_world_size()",
    ),
    Wrong(
        says="started 2 all_reduce; the target is all_reduce",
        replace=REDUCED,
        by="    for each in sums:\n        dist.all_reduce(each)\n",
    ),
    Wrong(
        says="tells each rank its own loss: nothing has brought the ranks together", gives=own, replace=REDUCED, by=""
    ),
    Wrong(
        says="divides by N once more: sum and number are over all ranks already",
        gives=lambda arguments, rank: mean(arguments, rank) / len(arguments),
        replace=DIVIDED,
        by=f"{DIVIDED} / dist.get_world_size()",
    ),
    Wrong(says="`log_step` hangs", replace=REDUCED, by="    if counts.min() > 0:\n        dist.all_reduce(sums)\n"),
    Wrong(
        says="`log_step` returned nothing on rank 1",
        replace="    return mean",
        by="    return mean if dist.get_rank() == 0 else None",
    ),
)
