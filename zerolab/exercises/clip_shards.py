"""Clip what is sharded.

Clipping scales all gradients of a model down when their norm is too large: the square root of the sum of all squares.
Under ZeRO-1 a rank has the mean gradient of its own shard only. Write a function that clips it as one process with the
whole gradient would. It gets

* `mine`: this rank's shard of the mean gradient. The shards of all ranks together are the gradient;
* `max_norm`: the largest norm allowed.

If the norm of the whole gradient is larger than `max_norm`, multiply `mine`, in place, by `max_norm` over the norm;
otherwise leave it alone. `dist.all_reduce(tensor)` adds a tensor of any size up over all ranks, in place, and returns
when that is done. There is nothing to return.

Targets, on 1, 2, 3 and 4 ranks:

* every rank's `mine` is its shard of the clipped gradient;
* one `all_reduce` on every rank, whatever its own shard is like; extra memory as large as `mine` is fine.
"""

import random
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from zerolab.exercises import RankTargets, Wrong


def clip_shard(mine: torch.Tensor, max_norm: float) -> None:
    """One number goes round, the sum of squares; the same factor comes out on every rank."""
    squares = mine.square().sum()
    dist.all_reduce(squares)
    norm = squares.sqrt()
    if norm > max_norm:
        mine.mul_(max_norm / norm)


def draw(dice: random.Random, world_size: int) -> list[tuple[Any, ...]]:
    """For each rank a shard, the later ones larger, and a limit that some shards alone are below and some above.

    On four ranks one of the shards is all zeros.
    """
    shard = dice.randrange(6000, 8000)
    numbers = np.random.default_rng(dice.randrange(2**31))
    shards = [(numbers.standard_normal(shard) * (rank + 1)).astype(np.float32) for rank in range(world_size)]
    if world_size == 4:  # one that has nothing: a collective must not depend on what a rank has
        shards[dice.randrange(4)][:] = 0
    # On three ranks nothing is to be clipped, so that whoever always scales is found out by the second run.
    limit = norm_of(shards) * (1.5 if world_size == 3 else 0.6)
    return [(mine, limit) for mine in shards]


def norm_of(shards: list[Any]) -> float:
    """The norm of all shards together, in float64."""
    return float(np.sqrt(sum(np.square(shard, dtype=np.float64).sum() for shard in shards)))


def scaled(arguments: list[tuple[Any, ...]], rank: int, norm: float) -> Any:
    """The rank's shard, clipped as if the gradient's norm were `norm`."""
    mine, limit = arguments[rank]
    return torch.from_numpy(mine * np.float32(min(1.0, limit / norm) if norm else 1.0))


def whole(arguments: list[tuple[Any, ...]]) -> float:
    """The norm of the whole gradient."""
    return norm_of([mine for mine, _ in arguments])


def sum_of_norms(arguments: list[tuple[Any, ...]]) -> float:
    """What comes of adding up the norms, and not their squares."""
    return sum(norm_of([mine]) for mine, _ in arguments)


solution = clip_shard
hole = "scale by one factor on all ranks"
given = "import torch\nimport torch.distributed as dist"
look_for = "When it passes, look at how little was sent: the all-reduce carries one number."
targets = RankTargets(
    draw=draw,
    wanted=lambda arguments, rank: scaled(arguments, rank, whole(arguments)),
    in_place=0,
    collectives=lambda _world_size: ("all_reduce",),
    scratch=lambda arguments, _world_size: arguments[0].nbytes,
    # Sums of squares in fp32 come out a little different from those in fp64.
    tolerance=1e-5,
)
hints = (
    "A norm cannot be added up over ranks, but a sum of squares can. Take the root afterwards.",
    "`squares = mine.square().sum()` is a tensor of one number; `dist.all_reduce(squares)` makes it the whole model's.",
    "Every rank now has the same norm, `squares.sqrt()`, and takes the same decision: `mine.mul_(max_norm / norm)`.",
)
wrong = (
    Wrong(
        says="clips by the norm of this rank's own shard, so that each rank scales by another factor",
        replace="    dist.all_reduce(squares)\n",
        by="",
        gives=lambda arguments, rank: scaled(arguments, rank, norm_of([arguments[rank][0]])),
    ),
    Wrong(
        says="adds up the norms of the shards; it is their squares that add up",
        whole="""
def clip_shard(mine, max_norm):
    norm = mine.norm()
    dist.all_reduce(norm)
    if norm > max_norm:
        mine.mul_(max_norm / norm)
""",
        gives=lambda arguments, rank: scaled(arguments, rank, sum_of_norms(arguments)),
    ),
    Wrong(
        says="takes the sum of squares for the norm: the root is missing",
        replace="squares.sqrt()",
        by="squares",
        gives=lambda arguments, rank: scaled(arguments, rank, whole(arguments) ** 2),
    ),
    Wrong(
        says="takes the mean of the ranks' sums of squares; the whole gradient has all of them",
        replace="squares.sqrt()",
        by="(squares / dist.get_world_size()).sqrt()",
        gives=lambda arguments, rank: scaled(arguments, rank, whole(arguments) / np.sqrt(len(arguments))),
    ),
    Wrong(
        says="scales a gradient up that is small enough as it is",
        replace="    if norm > max_norm:\n        mine.mul_(max_norm / norm)\n",
        by="    mine.mul_(max_norm / norm)\n",
        gives=lambda arguments, rank: torch.from_numpy(
            arguments[rank][0] * np.float32(arguments[rank][1] / whole(arguments))
        ),
    ),
    Wrong(
        says="leaves `mine` as it was; it is to be multiplied in place",
        replace="mine.mul_(max_norm / norm)",
        by="mine = mine * (max_norm / norm)",
        gives=lambda arguments, rank: torch.from_numpy(arguments[rank][0]),
    ),
    Wrong(
        says="`clip_shard` hangs",
        whole="""
def clip_shard(mine, max_norm):
    squares = mine.square().sum()
    if squares.sqrt() > max_norm:
        dist.all_reduce(squares)
        mine.mul_(max_norm / squares.sqrt())
""",
    ),
    Wrong(
        says="started all_gather; the target is all_reduce",
        whole="""
def clip_shard(mine, max_norm):
    shards = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(shards, mine)
    norm = torch.cat(shards).norm()
    if norm > max_norm:
        mine.mul_(max_norm / norm)
""",
    ),
)
