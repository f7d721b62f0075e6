"""A weight whole again.

FSDP2 cuts a weight by rows: every rank but the last ones has `ceil(rows / N)` of them, and the last ones have what is
left, which may be none. Before a layer computes, all ranks gather the weight. Write the function that does it. It gets

* `mine`: this rank's rows, a tensor of shape [its rows, columns];
* `rows`: how many rows the whole weight has.

Return the whole weight, shape [rows, columns], on every rank. `dist.all_gather(parts, part)` fills the list `parts`,
one tensor for each rank, with the `part` of each, and all of them must have the same size.

Targets, on 1, 2, 3 and 4 ranks:

* every rank returns the weight, also where the last rank has no row at all;
* one `all_gather` on every rank, of `N` equal parts that are no larger than they must be.
"""

import random
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from zerolab.exercises import RankTargets, Wrong


def gather_rows(mine: torch.Tensor, rows: int) -> torch.Tensor:
    """All parts get the size of the first, so that what is filled up lies behind the last row."""
    world_size = dist.get_world_size()
    most = -(-rows // world_size)
    part = mine.new_zeros(most, mine.shape[1])
    part[: len(mine)] = mine
    parts = [torch.empty_like(part) for _ in range(world_size)]
    dist.all_gather(parts, part)
    return torch.cat(parts)[:rows]


def draw(dice: random.Random, world_size: int) -> list[tuple[Any, ...]]:
    """A weight whose rows two ranks do not divide, and three do; on four ranks the last one has none."""
    rows = 9 if world_size == 4 else dice.randrange(6, 12) * world_size + (world_size == 2)
    numbers = np.random.default_rng(dice.randrange(2**31))
    weight = numbers.standard_normal((rows, dice.randrange(800, 1200))).astype(np.float32)
    most = most_rows(rows, world_size)
    return [(weight[rank * most : (rank + 1) * most].copy(), rows) for rank in range(world_size)]


def most_rows(rows: int, world_size: int) -> int:
    """The rows of the first rank, which no other exceeds."""
    return -(-rows // world_size)


def whole(arguments: list[tuple[Any, ...]]) -> Any:
    """The weight."""
    return np.concatenate([mine for mine, _ in arguments])


def filled_up(arguments: list[tuple[Any, ...]]) -> Any:
    """The weight, and below it the rows of zeros that make all parts equal."""
    weight, world_size = whole(arguments), len(arguments)
    missing = world_size * most_rows(len(weight), world_size) - len(weight)
    return np.pad(weight, ((0, missing), (0, 0)))


def dealt(arguments: list[tuple[Any, ...]]) -> Any:
    """The rows as if they had been dealt out one by one."""
    everything, world_size = filled_up(arguments), len(arguments)
    parts = everything.reshape(world_size, -1, everything.shape[1])
    return parts.swapaxes(0, 1).reshape(everything.shape)[: len(whole(arguments))].copy()


solution = gather_rows
hole = "make all parts equal, gather, leave out what was filled up"
given = "import torch\nimport torch.distributed as dist"
look_for = "When it passes, look at the size of the all-gather where the last rank has nothing: padding travels, too."
targets = RankTargets(
    draw=draw,
    wanted=lambda arguments, _rank: torch.from_numpy(whole(arguments)),
    collectives=lambda _world_size: ("all_gather",),
    sent=lambda arguments, world_size: (world_size - 1) * most_rows(arguments[1], world_size) * arguments[0].shape[1],
)
hints = (
    "Parts of different sizes cannot be gathered. How large is the largest one? Rank 0 has it.",
    "`part = mine.new_zeros(most, mine.shape[1])` with `most = -(-rows // N)`, and `part[: len(mine)] = mine`.",
    "Only the last ranks lack rows, so all that was filled up ends up at the bottom: `torch.cat(parts)[:rows]`.",
)
wrong = (
    Wrong(
        says="leaves the rows in with which the parts were filled up",
        replace="[:rows]",
        by="",
        gives=lambda arguments, _rank: torch.from_numpy(filled_up(arguments)),
    ),
    Wrong(
        says="puts the parts together row by row, as if rows had been dealt out",
        replace="torch.cat(parts)",
        by="torch.stack(parts, dim=1).flatten(0, 1)",
        gives=lambda arguments, _rank: torch.from_numpy(dealt(arguments)),
    ),
    Wrong(says="must match the existing size", replace="-(-rows // world_size)", by="rows // world_size"),
    Wrong(says="`gather_rows` failed", replace="dist.all_gather(parts, part)", by="dist.all_gather(parts, mine)"),
    Wrong(says="returned nothing", replace="    return torch.cat(parts)[:rows]\n", by="    torch.cat(parts)[:rows]\n"),
    Wrong(
        says="started all_reduce; the target is all_gather",
        whole="""
def gather_rows(mine, rows):
    most = -(-rows // dist.get_world_size())
    whole = mine.new_zeros(rows, mine.shape[1])
    first = dist.get_rank() * most
    whole[first : first + len(mine)] = mine
    dist.all_reduce(whole)
    return whole
""",
    ),
    Wrong(
        says="fills every part up to the rows of the whole weight",
        sends=lambda arguments, world_size: (world_size - 1) * arguments[1] * arguments[0].shape[1],
        whole="""
def gather_rows(mine, rows):
    most = -(-rows // dist.get_world_size())
    part = mine.new_zeros(rows, mine.shape[1])
    part[: len(mine)] = mine
    parts = [torch.empty_like(part) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, part)
    return torch.cat([part[:most] for part in parts])[:rows]
""",
    ),
)
