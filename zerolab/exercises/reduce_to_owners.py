"""Reduce each piece to its owner.

A reduce-scatter needs equal parts. A bucket of gradients whose parameters belong to different ranks has pieces of any
size, so DeepSpeed's ZeRO-1 and 2 reduce the whole bucket on all ranks, or, with `use_multi_rank_bucket_allreduce` off,
each piece to its owner. Write the second way. Your function gets

* `bucket`: this rank's gradients, end to end;
* `sizes`: how many elements of it belong to rank 0, to rank 1, and so on, in this order.

Return the mean over all ranks of the piece that belongs to this rank. `dist.reduce(tensor, dst=rank)` adds a tensor up
over all ranks; only `dst` gets the sum, in place, and what the others' tensors hold afterwards is not defined.

Targets, on 1, 2, 3 and 4 ranks:

* every rank returns the mean of its own piece;
* `N` calls of `reduce` on every rank, in the same order, and together half of what an all-reduce of the bucket sends.
"""

import random
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from zerolab.exercises import RankTargets, Wrong


def mean_of_mine(bucket: torch.Tensor, sizes: list[int]) -> torch.Tensor:
    """Everybody takes part in the reduction of every piece, and keeps one result."""
    pieces: tuple[torch.Tensor, ...] = bucket.split(sizes)
    for owner, piece in enumerate(pieces):
        dist.reduce(piece, dst=owner)
    return pieces[dist.get_rank()] / dist.get_world_size()


def draw(dice: random.Random, world_size: int) -> list[tuple[Any, ...]]:
    """A bucket for each rank, cut into pieces of different sizes."""
    # Multiples of 12, so that (N-1)/N of them are whole numbers.
    sizes = [12 * size for size in dice.sample(range(100, 400), world_size)]
    numbers = np.random.default_rng(dice.randrange(2**31))
    return [(numbers.standard_normal(sum(sizes)).astype(np.float32), sizes) for _ in range(world_size)]


def piece(whole: Any, arguments: list[tuple[Any, ...]], rank: int) -> Any:
    """What belongs to `rank` of something as large as the bucket."""
    sizes = arguments[rank][1]
    return whole[sum(sizes[:rank]) : sum(sizes[: rank + 1])]


def total(arguments: list[tuple[Any, ...]]) -> Any:
    """The sum of all ranks' buckets."""
    return sum(bucket for bucket, _ in arguments)


def in_equal_parts(arguments: list[tuple[Any, ...]], rank: int) -> Any:
    """What comes of cutting the bucket into equal parts."""
    return torch.from_numpy(total(arguments) / len(arguments)).chunk(len(arguments))[rank]


solution = mean_of_mine
hole = "reduce every piece to its owner"
given = "import torch\nimport torch.distributed as dist"
look_for = "When it passes, compare the bytes sent with those of one all-reduce over the bucket: half."
targets = RankTargets(
    draw=draw,
    wanted=lambda arguments, rank: torch.from_numpy(piece(total(arguments), arguments, rank) / len(arguments)),
    collectives=lambda world_size: ("reduce",) * world_size,
    sent=lambda arguments, world_size: sum(arguments[1]) * (world_size - 1) // world_size,
    tolerance=1e-5,  # gloo adds in an order of its own
)
hints = (
    "A reduction is a collective: every rank calls it for every piece, in the same order, and keeps one sum.",
    "`bucket.split(sizes)` gives views, so the sum of your piece lands in the bucket itself.",
    "`for owner, piece in enumerate(bucket.split(sizes)): dist.reduce(piece, dst=owner)`; then divide your own by N.",
)
wrong = (
    Wrong(
        says="returns the sum over all ranks; the mean is asked for",
        replace=" / dist.get_world_size()",
        by="",
        gives=lambda arguments, rank: torch.from_numpy(piece(total(arguments), arguments, rank)),
    ),
    Wrong(
        says="reduces nothing: it returns this rank's own gradient, divided",
        replace="    for owner, piece in enumerate(pieces):\n        dist.reduce(piece, dst=owner)\n",
        by="",
        gives=lambda arguments, rank: torch.from_numpy(piece(arguments[rank][0], arguments, rank) / len(arguments)),
    ),
    Wrong(
        says="cuts the bucket into equal parts, where `sizes` says what belongs to whom",
        replace="bucket.split(sizes)",
        by="bucket.chunk(dist.get_world_size())",
        gives=in_equal_parts,
    ),
    Wrong(says="right is", replace="dst=owner", by="dst=0"),
    Wrong(
        says="started all_reduce; the target is",
        replace="    for owner, piece in enumerate(pieces):\n        dist.reduce(piece, dst=owner)\n",
        by="    dist.all_reduce(bucket)\n",
    ),
    Wrong(
        says="the target is 2 reduce",
        replace="    for owner, piece in enumerate(pieces):\n        dist.reduce(piece, dst=owner)\n",
        by="    for piece in pieces:\n        dist.all_reduce(piece)\n",
    ),
    Wrong(
        says="tensors of different sizes",
        replace="    for owner, piece in enumerate(pieces):\n        dist.reduce(piece, dst=owner)\n",
        by="    dist.reduce(pieces[dist.get_rank()], dst=dist.get_rank())\n",
    ),
)
