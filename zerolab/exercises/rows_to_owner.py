"""Rows to the owner, and back.

FSDP2 gives each rank some rows of a matrix, and Muon's update needs the whole. One rank, the matrix's owner, puts it
together, makes it orthogonal and hands the rows of the result out. Your function gets

* `mine`: this rank's rows of what is to be made orthogonal, as `torch.chunk` cuts them: the last rank may have fewer;
* `rows`: how many rows the whole matrix has;
* `owner`: the rank that makes it orthogonal;
* `orthogonal(matrix)`: gives the orthogonal matrix that lies nearest;
* `rank`: this rank, of `dist.get_world_size()`.

Return this rank's rows of `orthogonal(whole)`. `dist.send(tensor, rank)` and `dist.recv(tensor, rank)` send and receive
a tensor; they return when that is done.

Targets, on 1, 2, 3 and 4 ranks:

* every rank returns its rows, to 1e-4;
* every other rank sends its own rows, and no more; the owner sends every other rank that rank's rows.
"""

import random
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from zerolab.exercises import RankTargets, Wrong


def through_owner(mine: torch.Tensor, rows: int, owner: int, orthogonal: Any, rank: int) -> Any:
    """The owner alone ever has the whole matrix."""
    world_size = dist.get_world_size()
    size = -(-rows // world_size)
    counts = [min(size, rows - size * each) for each in range(world_size)]
    if rank != owner:
        dist.send(mine, owner)
        dist.recv(mine, owner)
        return mine
    pieces = [mine if each == rank else mine.new_empty(counts[each], mine.shape[1]) for each in range(world_size)]
    for each in range(world_size):
        if each != rank:
            dist.recv(pieces[each], each)
    parts = orthogonal(torch.cat(pieces)).split(counts)
    for each in range(world_size):
        if each != rank:
            dist.send(parts[each].contiguous(), each)
    return parts[rank]


def nearest(matrix: torch.Tensor) -> torch.Tensor:
    """The orthogonal matrix that lies nearest: what Muon's Newton-Schulz iterations come close to."""
    left, _, right = torch.linalg.svd(matrix, full_matrices=False)
    product: torch.Tensor = left @ right
    return product


def draw(dice: random.Random, world_size: int) -> list[tuple[Any, ...]]:
    """A matrix whose rows the ranks do not divide, and an owner that is not rank 0 where there is another."""
    rows = world_size * dice.randrange(8, 12) - (dice.randrange(1, world_size) if world_size > 1 else 0)
    owner = dice.randrange(1, world_size) if world_size > 1 else 0
    whole = np.random.default_rng(dice.randrange(2**31)).standard_normal((rows, 48)).astype(np.float32)
    return [(cut(whole, rank, world_size), rows, owner, nearest, rank) for rank in range(world_size)]


def cut(whole: Any, rank: int, world_size: int) -> Any:
    """A rank's rows, a copy."""
    size = -(-len(whole) // world_size)
    return whole[rank * size : (rank + 1) * size].copy()


def right(arguments: list[tuple[Any, ...]], order: list[int], rank: int) -> Any:
    """A rank's rows of the orthogonal matrix that is nearest to these ranks' rows, in this order."""
    whole = np.concatenate([arguments[each][0] for each in order])
    return torch.from_numpy(cut(nearest(torch.from_numpy(whole)).numpy(), rank, len(arguments)))


def sent(arguments: tuple[Any, ...], owner: int) -> int:
    """The elements that a rank sends: its rows, and the owner what is not its own."""
    mine, rows, _, _, rank = arguments
    return int(48 * rows - mine.size if rank == owner else mine.size)


def own_rows_first(arguments: list[tuple[Any, ...]], rank: int) -> Any:
    """What comes of an owner that puts its own rows in front."""
    owner, ranks = arguments[0][2], range(len(arguments))
    return right(arguments, [owner, *(each for each in ranks if each != owner)], rank)


solution = through_owner
hole = "bring the rows to their owner, and the rows of the result back"
given = "import torch\nimport torch.distributed as dist"
look_for = "When it passes, look at who sends what: rows go to one rank and come back. No other has the whole."
targets = RankTargets(
    draw=draw,
    wanted=lambda arguments, rank: right(arguments, list(range(len(arguments))), rank),
    sent=lambda arguments, _world_size: sent(arguments, arguments[2]),
    tolerance=1e-4,
)
hints = (
    "Every rank but the owner sends once and receives once. The owner receives from all others, in order of rank.",
    "A chunk has `-(-rows // world_size)` rows, the last what is left: the owner needs that to receive and to cut.",
    "The owner: `parts = orthogonal(torch.cat(pieces)).split(counts)`, then `parts[each]` to each other rank.",
)
wrong = (
    Wrong(
        says="makes each rank's rows orthogonal by themselves, where the whole matrix is to be",
        whole="""
def through_owner(mine, rows, owner, orthogonal, rank):
    return orthogonal(mine)
""",
        gives=lambda arguments, rank: nearest(torch.from_numpy(arguments[rank][0])),
    ),
    Wrong(
        says="puts the owner's rows in front of the others'",
        replace="torch.cat(pieces)).split(counts)",
        by="torch.cat([mine, *pieces[:rank], *pieces[rank + 1 :]])).split(counts)",
        gives=own_rows_first,
    ),
    Wrong(
        says="orthogonalises nothing",
        replace="orthogonal(torch.cat(pieces))",
        by="torch.cat(pieces)",
        gives=lambda arguments, rank: torch.from_numpy(arguments[rank][0]),
    ),
    Wrong(
        says="gathers the matrix on every rank, where its owner alone needs it",
        sends=lambda arguments, world_size: (world_size - 1) * 48 * -(-arguments[1] // world_size),
        whole="""
def through_owner(mine, rows, owner, orthogonal, rank):
    world_size = dist.get_world_size()
    size = -(-rows // world_size)
    part = mine.new_zeros(size, mine.shape[1])
    part[: len(mine)] = mine
    whole = mine.new_empty(size * world_size, mine.shape[1])
    dist.all_gather_into_tensor(whole, part)
    return orthogonal(whole[:rows])[rank * size : (rank + 1) * size]
""",
    ),
    Wrong(
        says="brings the rows to rank 0, whoever the owner is",
        sends=lambda arguments, _world_size: sent(arguments, 0),
        replace="    size = -(-rows // world_size)\n",
        by="    owner, size = 0, -(-rows // world_size)\n",
    ),
    Wrong(
        says="`through_owner` hangs",
        replace="        dist.recv(mine, owner)\n        return mine\n",
        by="        dist.recv(mine, owner)\n        dist.recv(mine, owner)\n        return mine\n",
    ),
    Wrong(says="It is `mine` as your function got it", replace="    return parts[rank]\n", by="    return mine\n"),
)
