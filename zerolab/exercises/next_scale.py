"""An overflow on one rank.

In fp16 the loss is multiplied by a scale, so that small gradients do not vanish. Where a gradient comes out too large
it is `inf` or `nan`; then the update is left out and the scale is halved. Under ZeRO every rank sees only its shard of
the gradient, and all must come to the same scale: a rank that decides for itself trains a different model. Your
function gets

* `mine`: this rank's shard of the mean gradient, in fp16;
* `scale`: the scale of this step.

Return the scale of the next step: `scale / 2` if any rank's shard has an `inf` or a `nan`, else `scale`. `op=` of
`dist.all_reduce(tensor, op=dist.ReduceOp.MAX)` takes the largest over all ranks in place of the sum.

Targets, on 1, 2, 3 and 4 ranks:

* every rank returns the same right scale, whoever has the overflow, and however many have one;
* one `all_reduce` on every rank, of one number in fp32.
"""

import random
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from zerolab.exercises import RankTargets, Wrong


def next_scale(mine: torch.Tensor, scale: float) -> float:
    """Whether all is finite is one number, and the worst of all ranks counts."""
    overflow = (~mine.isfinite()).any().float()
    dist.all_reduce(overflow, op=dist.ReduceOp.MAX)
    return scale / 2 if overflow else scale


def draw(dice: random.Random, world_size: int) -> list[tuple[Any, ...]]:
    """Shards with a `-inf` on one rank alone, none on three, an `inf` on one of two and a `nan` on two of four.

    Of these rank 0 has none: with one there, gloo's MAX gives `nan` to all, and it drops the `nan` of any other rank.
    """
    numbers, scale = np.random.default_rng(dice.randrange(2**31)), float(2 ** dice.randrange(8, 17))
    # Each number is far smaller than 65,504, the largest in fp16, and their sum is beyond it: most are below zero.
    size = 3000 + dice.randrange(500)
    signs = numbers.choice([1, -1], (world_size, size), p=[0.1, 0.9])
    shards = list((signs * numbers.uniform(40, 90, signs.shape)).astype(np.float16))
    overflow, ranks = {
        1: (-np.inf, [0]),
        2: (np.inf, [dice.randrange(2)]),
        3: (None, []),
        4: (np.nan, dice.sample([1, 2, 3], 2)),
    }[world_size]
    for rank in ranks:
        shards[rank][dice.randrange(size)] = overflow
    return [(mine, scale) for mine in shards]


def overflows(mine: Any) -> bool:
    """Whether a shard has an `inf` or a `nan`."""
    return not np.isfinite(mine).all()


def halved(arguments: list[tuple[Any, ...]], times: int) -> float:
    """The scale, halved so often."""
    return float(arguments[0][1] / 2**times)


solution = next_scale
hole = "let all ranks come to one decision"
given = "import torch\nimport torch.distributed as dist"
look_for = "When it passes, look at what an agreement costs: one number, whatever the model's size."
targets = RankTargets(
    draw=draw,
    wanted=lambda arguments, _rank: halved(arguments, any(overflows(mine) for mine, _ in arguments)),
    collectives=lambda _world_size: ("all_reduce",),
    # In elements of `mine`, which have two bytes: an all-reduce of one number of four bytes, rounded down as recorded.
    sent=lambda _arguments, world_size: (2 * 4 * (world_size - 1) // world_size) / 2,
)
hints = (
    "Each rank can say in one number whether its shard is all right: `mine.isfinite()` is false for `inf` and `nan`.",
    "`overflow = (~mine.isfinite()).any().float()` is 1.0 or 0.0. What must be 1.0 for all if it is 1.0 for one?",
    "`dist.all_reduce(overflow, op=dist.ReduceOp.MAX)`, on every rank and whatever it found, and then decide.",
)
wrong = (
    Wrong(
        says="decides by this rank's shard alone",
        replace="    dist.all_reduce(overflow, op=dist.ReduceOp.MAX)\n",
        by="",
        gives=lambda arguments, rank: halved(arguments, overflows(arguments[rank][0])),
    ),
    Wrong(
        says="does not see `nan`",
        replace="(~mine.isfinite()).any()",
        by="mine.isinf().any()",
        gives=lambda arguments, _rank: halved(arguments, any(np.isinf(mine).any() for mine, _ in arguments)),
    ),
    Wrong(
        says="does not see `-inf`, which is the smallest of all numbers",
        replace="(~mine.isfinite()).any()",
        by="(~mine.max().isfinite())",
        gives=lambda arguments, _rank: halved(arguments, any(not np.isfinite(mine.max()) for mine, _ in arguments)),
    ),
    Wrong(
        says="takes the scale for too large though every number is finite: the sum of many overflows in fp16",
        replace="(~mine.isfinite()).any()",
        by="(~mine.sum().isfinite())",
        gives=lambda arguments, _rank: halved(arguments, 1),
    ),
    Wrong(
        says="halves once for every rank that has an overflow",
        replace="    dist.all_reduce(overflow, op=dist.ReduceOp.MAX)\n    return scale / 2 if overflow else scale\n",
        by="    dist.all_reduce(overflow)\n    return scale / 2 ** overflow.item()\n",
        gives=lambda arguments, _rank: halved(arguments, sum(overflows(mine) for mine, _ in arguments)),
    ),
    Wrong(
        says="does not halve the scale where only some ranks have an overflow: one is enough",
        replace="ReduceOp.MAX",
        by="ReduceOp.MIN",
        gives=lambda arguments, _rank: halved(arguments, all(overflows(mine) for mine, _ in arguments)),
    ),
    Wrong(
        says="sends a number for each gradient, where one is enough",
        sends=lambda arguments, world_size: 2 * (world_size - 1) / world_size * arguments[0].size,
        whole="""
def next_scale(mine, scale):
    dist.all_reduce(mine)
    return scale if mine.float().isfinite().all() else scale / 2
""",
    ),
    Wrong(
        says="`next_scale` hangs",
        whole="""
def next_scale(mine, scale):
    overflow = (~mine.isfinite()).any().float()
    if overflow:
        dist.all_reduce(overflow, op=dist.ReduceOp.MAX)
    return scale / 2 if overflow else scale
""",
    ),
)
