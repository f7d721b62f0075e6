"""Twenty-four.

Every rank has a number: rank 0 has 1, rank 1 has 2, rank 2 has 3, rank 3 has 4. Write a function that runs on all of
them and gives every rank the product of all numbers, which is 24 on four ranks. It gets

* `number`: this rank's number, a tensor of one element.

`dist.all_reduce(number)` is the sum that you have just seen; with `op=dist.ReduceOp.PRODUCT` as a second argument it
multiplies instead. The result is then in `number` itself, on every rank: return that.

Targets, on 4, 2, 3 and 1 ranks:

* every rank returns the product of all ranks' numbers: 24, 2, 6 and 1;
* one `all_reduce` on every rank.

When it passes, break it: put `if dist.get_rank() != 2:` before the call, so that rank 2 skips it, and run the next two
cells: the other ranks wait for rank 2, and `check` says so. Then take it out again, and run both once more.
"""

import math
import random
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from zerolab.exercises import RankTargets, Wrong


def product(number: torch.Tensor) -> torch.Tensor:
    """Every rank brings its number, and every rank gets the product."""
    dist.all_reduce(number, op=dist.ReduceOp.PRODUCT)
    return number


def draw(_dice: random.Random, world_size: int) -> list[tuple[Any, ...]]:
    """1, 2, 3, ...: nothing is drawn, so that what comes out is known by heart."""
    return [(np.array([rank + 1.0], dtype=np.float32),) for rank in range(world_size)]


def numbers(arguments: list[tuple[Any, ...]]) -> list[float]:
    """All ranks' numbers."""
    return [float(number.item()) for (number,) in arguments]


solution = product
hole = "multiply over all ranks"
given = "import torch\nimport torch.distributed as dist"
look_for = "Four ranks, one exchange. Press play, and see the timeline: nobody ends before the last one has begun."
targets = RankTargets(
    draw=draw,
    wanted=lambda arguments, _rank: torch.tensor([math.prod(numbers(arguments))]),
    collectives=lambda _world_size: ("all_reduce",),
    world_sizes=(4, 2, 3, 1),
)
hints = (
    "The function runs on every rank. There is no loop over ranks in it: each rank makes one call.",
    "`dist.all_reduce(number, op=dist.ReduceOp.PRODUCT)` changes `number` itself, and returns nothing to use.",
    "Call it, and in the next line `return number`.",
)
wrong = (
    Wrong(
        says="adds the numbers up; the product is asked for",
        replace=", op=dist.ReduceOp.PRODUCT",
        by="",
        gives=lambda arguments, _rank: torch.tensor([sum(numbers(arguments))]),
    ),
    Wrong(
        says="returns the number that this rank came with: nothing was exchanged",
        replace="    dist.all_reduce(number, op=dist.ReduceOp.PRODUCT)\n",
        by="",
        gives=lambda arguments, rank: torch.tensor([numbers(arguments)[rank]]),
    ),
    Wrong(
        says="returned nothing",
        replace="    dist.all_reduce(number, op=dist.ReduceOp.PRODUCT)\n    return number\n",
        by="    return dist.all_reduce(number, op=dist.ReduceOp.PRODUCT)\n",
    ),
    Wrong(
        says="multiplies twice",
        replace="    return number\n",
        by="    return number * number\n",
        gives=lambda arguments, _rank: torch.tensor([math.prod(numbers(arguments)) ** 2]),
    ),
    Wrong(
        says="`product` hangs",
        replace="    dist.all_reduce(number, op=dist.ReduceOp.PRODUCT)\n",
        by="    if dist.get_rank() != 2:\n        dist.all_reduce(number, op=dist.ReduceOp.PRODUCT)\n",
    ),
    Wrong(
        says="started nothing; the target is all_reduce",
        whole="""
def product(number):
    for rank in range(1, dist.get_world_size() + 1):
        number = number * rank / (rank if rank == dist.get_rank() + 1 else 1)
    return number
""",
    ),
    Wrong(
        says="started all_gather; the target is all_reduce",
        whole="""
def product(number):
    everyone = [torch.zeros_like(number) for _ in range(dist.get_world_size())]
    dist.all_gather(everyone, number)
    return torch.stack(everyone).prod(0)
""",
    ),
)
