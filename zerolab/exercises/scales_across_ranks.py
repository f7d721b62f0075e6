"""The same rounding on any number of ranks.

A flat is rounded to int8 in blocks of `block` elements. If every rank begins a block with its shard, four ranks have
other blocks than three, other scales, and other numbers. Let the blocks be those of the flat instead: element `i` is in
block `i // block`, wherever the flat is cut. A block may then lie on two ranks, and both need its one scale. Your
function gets

* `mine`: this rank's shard, of any size;
* `first`: how many elements of the flat lie before it;
* `numel`: how many elements the flat has;
* `block`: how many elements share a scale.

A block's scale is its largest absolute value, wherever that lies, divided by 127. Return this rank's shard rounded:
each element divided by the scale of its block, rounded to a whole number, and multiplied by the scale again.
`dist.all_reduce(tensor, op=dist.ReduceOp.MAX)` leaves in each place the largest of all ranks.

Targets, on 1, 2, 3 and 4 ranks:

* every rank returns its part of what one process would make of the whole flat;
* one `all_reduce` on every rank, of one number in fp32 for each block of the flat.
"""

import random
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from zerolab.exercises import RankTargets, Wrong
from zerolab.exercises.gather_in_8_bits import between_codes, rounded


def scales_across_ranks(mine: torch.Tensor, first: int, numel: int, block: int) -> torch.Tensor:
    """Each rank knows the largest of its part of a block; the largest of those is the block's own."""
    numbers = (first + torch.arange(len(mine))) // block
    largest = torch.zeros(-(-numel // block))
    largest.scatter_reduce_(0, numbers, mine.abs(), "amax")
    dist.all_reduce(largest, op=dist.ReduceOp.MAX)
    scales = (largest / 127)[numbers]
    return (mine / scales).round() * scales


def draw(dice: random.Random, world_size: int) -> list[tuple[Any, ...]]:
    """A flat that is cut in the middle of some blocks.

    On three ranks the last one has less than the others; on four the last block is whole, on one it never is.
    """
    block, blocks = 32, 32 * dice.randrange(6, 9)
    shard = blocks + (8 * dice.randrange(1, 4) if world_size == 4 else dice.randrange(1, 31))
    numel = shard * world_size - (block if world_size == 3 else 0)
    flat = between_codes(dice, -(-numel // block), block).flatten()[:numel]
    return [(flat[first : first + shard].copy(), first, numel, block) for first in range(0, numel, shard)]


def parts(
    arguments: list[tuple[Any, ...]],
    rank: int,
    scale: Any,
    to_whole: Any = np.round,
    *,
    codes: int = 127,
    back: bool = True,
) -> Any:
    """The rank's shard, rounded by the scales that `scale` gives each of its elements."""
    mine = arguments[rank][0]
    scales = scale(arguments, rank) / np.float32(codes)
    whole = to_whole(mine / scales)
    return torch.from_numpy((whole * scales if back else whole).astype(np.float32))


def of_blocks(
    arguments: list[tuple[Any, ...]], rank: int, *, from_shard: bool = False, merge: Any = np.max, size: Any = np.abs
) -> Any:
    """For each element of a shard the largest of its block, as `merge` makes it of the ranks' own."""
    count = -(-arguments[0][2] // arguments[0][3])
    numbers = [(np.arange(mine.size) + (0 if from_shard else first)) // block for mine, first, _, block in arguments]
    own = np.zeros((len(arguments), count), np.float32)
    for number, (mine, *_), row in zip(numbers, arguments, own, strict=True):
        np.maximum.at(row, number, size(mine))
    return merge(own, axis=0)[numbers[rank]]


def of_mine(arguments: list[tuple[Any, ...]], rank: int) -> Any:
    """The same without the other ranks."""
    mine, first, numel, block = arguments[rank]
    return of_blocks([(mine, first, numel, block)], 0)


def of_all(arguments: list[tuple[Any, ...]], _rank: int) -> Any:
    """The largest of the whole flat."""
    return np.float32(max(abs(mine).max() for mine, *_ in arguments))


def right(arguments: list[tuple[Any, ...]], rank: int) -> Any:
    """This rank's part of the flat, rounded as a whole."""
    mine, first, numel, block = arguments[rank]
    flat = np.pad(np.concatenate([part for part, *_ in arguments]), (0, -numel % block))
    return torch.from_numpy(rounded(flat, block)[first : first + mine.size].copy())


solution = scales_across_ranks
hole = "find the largest of each block over all ranks, then round"
given = "import torch\nimport torch.distributed as dist"
look_for = "When it passes, look at the all-reduce: what it takes to be as one process is one number for each block."
targets = RankTargets(
    draw=draw,
    wanted=right,
    collectives=lambda _world_size: ("all_reduce",),
    # An all-reduce of the blocks' numbers, rounded down as recorded.
    sent=lambda arguments, world_size: (2 * 4 * -(-arguments[2] // arguments[3]) * (world_size - 1) // world_size) / 4,
)
hints = (
    "In which block is element `i` of your shard? `numbers = (first + torch.arange(len(mine))) // block`.",
    "`largest.scatter_reduce_(0, numbers, mine.abs(), 'amax')` leaves in each block's place the largest of your part.",
    "Blocks that you have nothing of stay zero, which no maximum minds. `scales = (largest / 127)[numbers]`.",
)
wrong = (
    Wrong(
        says="takes for a block that lies on two ranks the largest of its own part alone",
        replace="    dist.all_reduce(largest, op=dist.ReduceOp.MAX)\n",
        by="",
        gives=lambda arguments, rank: parts(arguments, rank, of_mine),
    ),
    Wrong(
        says="begins a block with each shard, and mixes blocks that are not the same",
        replace="(first + torch.arange(len(mine)))",
        by="torch.arange(len(mine))",
        gives=lambda arguments, rank: parts(arguments, rank, lambda *which: of_blocks(*which, from_shard=True)),
    ),
    Wrong(
        says="adds up what the ranks have, which makes the scale of a shared block too large",
        replace=", op=dist.ReduceOp.MAX",
        by="",
        gives=lambda arguments, rank: parts(arguments, rank, lambda *which: of_blocks(*which, merge=np.sum)),
    ),
    Wrong(
        says="has one scale for the whole flat",
        replace="    scales = (largest / 127)[numbers]\n",
        by="    scales = largest.max() / 127\n",
        gives=lambda arguments, rank: parts(arguments, rank, of_all),
    ),
    Wrong(
        says="forgets that a number below zero may be the largest in size",
        replace="mine.abs()",
        by="mine",
        gives=lambda arguments, rank: parts(arguments, rank, lambda *which: of_blocks(*which, size=np.array)),
    ),
    Wrong(
        says="returns the whole numbers: each has to be multiplied by its scale again",
        replace="(mine / scales).round() * scales",
        by="(mine / scales).round()",
        gives=lambda arguments, rank: parts(arguments, rank, of_blocks, back=False),
    ),
    Wrong(
        says="divides the largest by 128, where its code is 127",
        replace="(largest / 127)",
        by="(largest / 128)",
        gives=lambda arguments, rank: parts(arguments, rank, of_blocks, codes=128),
    ),
    Wrong(
        says="cuts off what stands behind the point, and rounds towards zero",
        replace=".round()",
        by=".trunc()",
        gives=lambda arguments, rank: parts(arguments, rank, of_blocks, np.trunc),
    ),
    Wrong(
        says="rounds down, where a number is to be rounded to the nearest whole one",
        replace=".round()",
        by=".floor()",
        gives=lambda arguments, rank: parts(arguments, rank, of_blocks, np.floor),
    ),
    Wrong(
        says="started all_gather; the target is all_reduce",
        whole="""
def scales_across_ranks(mine, first, numel, block):
    parts = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, mine)
    flat = torch.nn.functional.pad(torch.cat(parts), (0, -numel % block)).view(-1, block)
    scales = flat.abs().amax(dim=1, keepdim=True) / 127
    return ((flat / scales).round() * scales).flatten()[first : first + len(mine)]
""",
    ),
    Wrong(says="the target is", replace="torch.zeros(-(-numel // block))", by="torch.zeros(numel)"),
)
