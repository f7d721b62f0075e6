"""One reads, all keep their shard.

Only rank 0 can see the file. It sends the model unit by unit, and each rank keeps its shard of a unit before the next
one comes, so that no rank but rank 0 ever has two units. Your function gets

* `values`: on rank 0 the parameters of all units, end to end; on the other ranks an empty tensor;
* `sizes`: how many elements each unit has, a list that is the same on every rank; `N` divides each of them.

Return this rank's shards of all units, end to end: of each unit the `N`th part at this rank's place.
`dist.broadcast(tensor, src=0)` sends rank 0's tensor into that of all others.

Targets, on 1, 2, 3 and 4 ranks:

* every rank returns its shards;
* one `broadcast` for each unit, and nothing else;
* beside what it returns a rank has no more than one unit, and its shards a second time.
"""

import random
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from zerolab.exercises import RankTargets, Wrong

UNITS = 6


def keep_shards(values: torch.Tensor, sizes: list[int]) -> torch.Tensor:
    """A shard is copied, because a view of it would keep its whole unit."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    shards, start = [], 0
    for size in sizes:
        unit = values[start : start + size] if rank == 0 else torch.empty(size)
        dist.broadcast(unit, src=0)
        shards.append(unit.chunk(world_size)[rank].clone())
        start += size
    return torch.cat(shards)


def draw(dice: random.Random, world_size: int) -> list[tuple[Any, ...]]:
    """Units of different sizes, so large that the second one shows."""
    sizes = [world_size * dice.randrange(6000 // world_size, 7000 // world_size) for _ in range(UNITS)]
    values = np.random.default_rng(dice.randrange(2**31)).standard_normal(sum(sizes)).astype(np.float32)
    return [(values if rank == 0 else values[:0].copy(), sizes) for rank in range(world_size)]


def units_of(arguments: list[tuple[Any, ...]]) -> list[Any]:
    """The units."""
    values, sizes = arguments[0]
    return np.split(values, np.cumsum(sizes)[:-1])


def shards_of(arguments: list[tuple[Any, ...]], rank: int) -> Any:
    """What a rank owns of them."""
    return np.concatenate([np.split(unit, len(arguments))[rank] for unit in units_of(arguments)])


def cut_as_one(arguments: list[tuple[Any, ...]], rank: int) -> Any:
    """A rank's part if the model is cut, and not each unit."""
    return np.split(arguments[0][0], len(arguments))[rank].copy()


def first_part(arguments: list[tuple[Any, ...]], _rank: int) -> Any:
    """What rank 0 owns."""
    return shards_of(arguments, 0)


def room(arguments: tuple[Any, ...], world_size: int) -> int:
    """Bytes of one unit, and of the shards."""
    sizes: list[int] = arguments[1]
    return 4 * (max(sizes) + sum(sizes) // world_size)


solution = keep_shards
hole = "send each unit, keep your part of it"
given = "import torch\nimport torch.distributed as dist"
look_for = (
    "When it passes, follow the memory of rank 1: a unit comes, a shard of it stays, and the next unit takes its place."
)
targets = RankTargets(
    draw=draw,
    wanted=lambda arguments, rank: torch.from_numpy(shards_of(arguments, rank)),
    collectives=lambda _world_size: ("broadcast",) * UNITS,
    scratch=room,
)
hints = (
    "One loop over `sizes`. Rank 0's unit is a part of `values`; the others need an empty tensor of its size.",
    "After the broadcast, `unit.chunk(world_size)[rank]` is your shard: a view, which keeps the unit alive.",
    "`shards.append(unit.chunk(world_size)[rank].clone())`, and in the end `torch.cat(shards)`.",
)
wrong = (
    Wrong(says="bytes beside its arguments", replace="[rank].clone()", by="[rank]"),
    Wrong(
        says="cuts the model into `N` parts, and not each unit",
        gives=lambda arguments, rank: torch.from_numpy(cut_as_one(arguments, rank)),
        whole="""
def keep_shards(values, sizes):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    mine, start, part = [], 0, sum(sizes) // world_size
    for size in sizes:
        unit = values[start : start + size] if rank == 0 else torch.empty(size)
        dist.broadcast(unit, src=0)
        first, last = max(start, rank * part), min(start + size, (rank + 1) * part)
        mine.append(unit[max(0, first - start) : max(0, last - start)].clone())
        start += size
    return torch.cat(mine)
""",
    ),
    Wrong(
        says="keeps rank 0's part on every rank",
        replace="unit.chunk(world_size)[rank]",
        by="unit.chunk(world_size)[0]",
        gives=lambda arguments, rank: torch.from_numpy(first_part(arguments, rank)),
    ),
    Wrong(
        says="bytes beside its arguments",
        whole="""
def keep_shards(values, sizes):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    units = list(values.split(sizes)) if rank == 0 else [torch.empty(size) for size in sizes]
    for unit in units:
        dist.broadcast(unit, src=0)
    return torch.cat([unit.chunk(world_size)[rank] for unit in units])
""",
    ),
    Wrong(
        says="the target is 6 broadcast",
        whole="""
def keep_shards(values, sizes):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    whole = values if rank == 0 else torch.empty(sum(sizes))
    dist.broadcast(whole, src=0)
    return torch.cat([unit.chunk(world_size)[rank] for unit in whole.split(sizes)])
""",
    ),
    Wrong(says="`keep_shards` returned nothing", replace="    return torch.cat(shards)\n", by=""),
)
