"""Merged where it lies.

After training, an adapter is added to the weight that it stands beside: `weight + scale * up @ down`. Then the model is
as fast as before, and a plain one. The weight is large and sharded by rows, as under FSDP2, and must not be gathered
for this. Each rank merges its own rows. Your function gets

* `weight`, [rows / N, columns]: this rank's rows of the frozen weight, which it changes in place;
* `down`, [r / N, columns]: this rank's rows of the adapter's first matrix, [r, columns];
* `up`, [rows / N, r]: this rank's rows of the adapter's second matrix, [rows, r];
* `scale`: the factor of the product, alpha / r in LoRA.

Nothing is to be returned. `dist.all_gather(parts, part)` fills the list `parts`, one tensor for each rank, with the
`part` of each.

Targets, on 1, 2, 3 and 4 ranks:

* each rank's rows of the merged weight, to 1e-5;
* each rank sends its rows of `down` to every other rank, and nothing else.
"""

import random
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from zerolab.exercises import RankTargets, Wrong

Arguments = list[tuple[Any, ...]]


def merge_adapters(weight: torch.Tensor, down: torch.Tensor, up: torch.Tensor, scale: float) -> None:
    """A row of the product needs that row of `up`, which lies here, and all of `down`, which is small."""
    parts = [torch.empty_like(down) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, down)
    weight += scale * up @ torch.cat(parts)


def draw(dice: random.Random, world_size: int) -> Arguments:
    """A weight and an adapter of a few rows, both cut by rows."""
    numbers = np.random.default_rng(dice.randrange(2**31))
    rank, rows, columns = (world_size * dice.randrange(*most) for most in ((2, 4), (10, 16), (8, 14)))

    def normal(*shape: int) -> Any:
        return np.split(numbers.standard_normal(shape).astype(np.float32), world_size)

    scale = dice.choice([0.3, 0.7, 1.7])
    return [
        (*mine, scale) for mine in zip(normal(rows, columns), normal(rank, columns), normal(rows, rank), strict=True)
    ]


def merged(arguments: Arguments, rank: int, times: Any = None, order: int = 1) -> torch.Tensor:
    """A rank's rows of the merged weight; `times` in place of the scale, with an `order` of -1 `down` from its end."""
    weight, _, up, scale = arguments[rank]
    down = np.concatenate([each[1] for each in arguments[::order]])
    return torch.from_numpy(weight + (scale if times is None else times(scale)) * (up @ down))


def of_own_rows(arguments: Arguments, rank: int) -> torch.Tensor:
    """What comes of an adapter of which only this rank's rows of `down` are used."""
    weight, down, up, scale = arguments[rank]
    start = rank * len(down)
    return torch.from_numpy(weight + scale * (up[:, start : start + len(down)] @ down))


solution = merge_adapters
hole = "make `down` whole, and add the product to your rows"
given = "import torch\nimport torch.distributed as dist"
look_for = "When it passes, look at what was sent: rows of `down`. The weight has not moved."
targets = RankTargets(
    draw=draw,
    wanted=merged,
    in_place=0,
    sent=lambda arguments, world_size: (world_size - 1) * arguments[1].size,
    tolerance=1e-5,
)
hints = (
    "Row i of `up @ down` is row i of `up` times all of `down`. Which of the two is not here whole?",
    "All-gather `down`: its shards, end to end, are the whole of it.",
    "`weight += scale * up @ torch.cat(parts)` changes the rows where they lie.",
)
wrong = (
    Wrong(
        says="leaves the weight as it was: it makes a new tensor, where the rows should change in place",
        replace="weight += scale * up",
        by="weight = weight + scale * up",
        gives=lambda arguments, rank: torch.from_numpy(arguments[rank][0]),
    ),
    Wrong(
        says="leaves out the scale",
        replace="scale * up",
        by="up",
        gives=lambda arguments, rank: merged(arguments, rank, lambda _: 1),
    ),
    Wrong(
        says="takes the product away, which is how a merged adapter comes out again",
        replace="weight += scale",
        by="weight -= scale",
        gives=lambda arguments, rank: merged(arguments, rank, lambda scale: -scale),
    ),
    Wrong(
        says="uses this rank's rows of `down` only",
        whole="""
def merge_adapters(weight, down, up, scale):
    weight += scale * up.chunk(dist.get_world_size(), dim=1)[dist.get_rank()] @ down
""",
        gives=of_own_rows,
    ),
    Wrong(
        says="puts the parts of `down` end to end in another order than that of the ranks",
        replace="torch.cat(parts)",
        by="torch.cat(parts[::-1])",
        gives=lambda arguments, rank: merged(arguments, rank, order=-1),
    ),
    Wrong(
        says="adds the product twice",
        replace="scale * up",
        by="2 * scale * up",
        gives=lambda arguments, rank: merged(arguments, rank, lambda scale: 2 * scale),
    ),
    Wrong(
        says="divides by the scale",
        replace="scale * up",
        by="1 / scale * up",
        gives=lambda arguments, rank: merged(arguments, rank, lambda scale: 1 / scale),
    ),
    Wrong(
        says="gathers `up`, too, of which your own rows are enough",
        sends=lambda arguments, world_size: (world_size - 1) * (arguments[1].size + arguments[2].size),
        replace="    weight += scale * up @ torch.cat(parts)\n",
        by="    ups = [torch.empty_like(up) for _ in range(dist.get_world_size())]\n"
        "    dist.all_gather(ups, up)\n"
        "    weight += scale * ups[dist.get_rank()] @ torch.cat(parts)\n",
    ),
    Wrong(
        says="gathers the weight, which must stay where it lies",
        sends=lambda arguments, world_size: (world_size - 1) * sum(each.size for each in arguments[:3]),
        whole="""
def merge_adapters(weight, down, up, scale):
    def whole(mine):
        parts = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, mine)
        return torch.cat(parts)

    everything = whole(weight) + scale * whole(up) @ whole(down)
    weight.copy_(everything.chunk(dist.get_world_size())[dist.get_rank()])
""",
    ),
)
