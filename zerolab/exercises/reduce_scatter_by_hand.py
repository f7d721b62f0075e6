"""Your own reduce-scatter.

Now the half that adds, from messages between two ranks. Your function gets

* `flat`: a tensor of `world_size` equal parts, `flat.chunk(world_size)`, with different numbers on every
  rank;
* `rank` and `world_size`.

Return one part: on rank `r` the sum over all ranks of part `r`. What `flat` holds afterwards does not matter.

`dist.isend(tensor, dst=peer)` and `dist.irecv(tensor, src=peer)` start a message and return at once; call `.wait()` on
what they return. A receive writes into a tensor that you make, such as `torch.empty_like(part)`. Start everything
before you wait for anything: a rank that waits for a message that nobody has started waits for ever.

Targets, on 1, 2, 3 and 4 ranks:

* every rank returns the sum of its own part;
* each rank sends `N - 1` messages and receives `N - 1`, and waits for all of them;
* `(N-1)/N` of the flat sent, with at most `N` parts of extra memory (scratch) beside the part that you return.
"""

# mypy: disable-error-code="union-attr"
# (To torch a message may be None, for who is not of the group.)

import random
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from zerolab.exercises import RankTargets, Wrong


def my_reduce_scatter(flat: torch.Tensor, rank: int, world_size: int) -> torch.Tensor:
    """Sends each part to its owner, and adds up what the others send."""
    parts = flat.chunk(world_size)
    peers = [peer for peer in range(world_size) if peer != rank]
    received = [torch.empty_like(parts[rank]) for _ in peers]
    works = [dist.irecv(buffer, src=peer) for buffer, peer in zip(received, peers, strict=True)]
    works += [dist.isend(parts[peer], dst=peer) for peer in peers]
    for work in works:
        work.wait()
    total = parts[rank].clone()
    for buffer in received:
        total += buffer
    return total


def draw(dice: random.Random, world_size: int) -> list[tuple[Any, ...]]:
    """One flat for each rank, its number and how many there are."""
    # Large enough that a second copy of the flat shows above the small change.
    part = dice.randrange(4000, 6000)
    numbers = np.random.default_rng(dice.randrange(2**31))
    flats = [numbers.standard_normal(part * world_size).astype(np.float32) for _ in range(world_size)]
    return [(flat, rank, world_size) for rank, flat in enumerate(flats)]


def own_parts(arguments: list[tuple[Any, ...]], rank: int) -> list[Any]:
    """Part `rank` of every rank."""
    return [np.split(flat, world_size)[rank] for flat, _, world_size in arguments]


def own_sum(arguments: list[tuple[Any, ...]], rank: int) -> Any:
    """The sum of part `rank` over all ranks."""
    return torch.from_numpy(sum(own_parts(arguments, rank)))


solution = my_reduce_scatter
hole = "send each part to its owner"
given = "import torch\nimport torch.distributed as dist"
look_for = (
    "Each rank's timeline shows as many sends as there are other ranks, and as many receives, all under way at once."
)
targets = RankTargets(
    draw=draw,
    wanted=own_sum,
    collectives=lambda world_size: ("send", "recv") * (world_size - 1),
    sent=lambda arguments, world_size: (world_size - 1) * (len(arguments[0]) // world_size),
    scratch=lambda arguments, _world_size: arguments[0].nbytes,
)
hints = (
    "Who needs part `p` of this rank's flat? Rank `p`, and nobody else.",
    "For each peer: `dist.isend(parts[peer], dst=peer)`, and a receive into a new tensor. Collect what both return.",
    "The sum has `N` terms: `N - 1` were received, the last is this rank's own part. Begin with `parts[rank].clone()`.",
)
wrong = (
    Wrong(
        says="forgets its own part: the sum has one term too few",
        replace="total = parts[rank].clone()",
        by="total = torch.zeros_like(parts[rank])",
        gives=lambda arguments, rank: own_sum(arguments, rank) - torch.from_numpy(own_parts(arguments, rank)[rank]),
    ),
    Wrong(
        says="sends its own part to everybody, in place of the part that each one owns",
        replace="dist.isend(parts[peer], dst=peer)",
        by="dist.isend(parts[rank], dst=peer)",
        gives=lambda arguments, _rank: sum(torch.from_numpy(own_parts(arguments, r)[r]) for r in range(len(arguments))),
    ),
    Wrong(
        says="gives the mean; the sum was asked for",
        replace="    return total\n",
        by="    return total / world_size\n",
        gives=lambda arguments, rank: own_sum(arguments, rank) / len(arguments),
    ),
    Wrong(
        says="gives this rank's own part: nothing of the others is in it",
        replace="        total += buffer\n",
        by="        pass\n",
        gives=lambda arguments, rank: torch.from_numpy(own_parts(arguments, rank)[rank]),
    ),
    Wrong(says="never waited for its recv", replace="for work in works:", by="for work in works[len(received):]:"),
    Wrong(
        says="sends the whole flat to every other rank, which needs one part of it",
        sends=lambda arguments, world_size: (world_size - 1) * len(arguments[0]),
        whole="""
def my_reduce_scatter(flat, rank, world_size):
    peers = [peer for peer in range(world_size) if peer != rank]
    received = [torch.empty_like(flat) for _ in peers]
    works = [dist.irecv(buffer, src=peer) for buffer, peer in zip(received, peers)]
    works += [dist.isend(flat, dst=peer) for peer in peers]
    for work in works:
        work.wait()
    total = flat.chunk(world_size)[rank].clone()
    for buffer in received:
        total += buffer.chunk(world_size)[rank]
    return total
""",
    ),
    Wrong(
        says="`my_reduce_scatter` hangs",
        replace="    works += [dist.isend",
        by="    for work in works:\n        work.wait()\n    works = [dist.isend",
    ),
    Wrong(
        says="started all_reduce",
        whole="""
def my_reduce_scatter(flat, rank, world_size):
    copy = flat.clone()
    dist.all_reduce(copy)
    return copy.chunk(world_size)[rank]
""",
    ),
)
