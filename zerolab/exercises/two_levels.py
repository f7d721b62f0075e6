"""A sum on two levels.

Inside a node ranks are joined by fast links, between nodes by slow ones. An all-reduce that knows this sends little
between nodes: first each node adds up within itself and every rank keeps one part of the node's sum, then ranks of
different nodes that keep the same part add theirs up, and last each node hands the parts out. Your function gets

* `flat`: a tensor of `per_node` equal parts, with different numbers on every rank;
* `per_node`: how many ranks a node has. Ranks 0 to `per_node - 1` are the first node, and so on.

Afterwards `flat` itself must hold the sum over all ranks, on every rank.

`dist.new_subgroups_by_enumeration(lists)` makes a group of each list of ranks and returns this rank's one first; all
ranks call it with the same lists. `reduce_scatter(flat, group)` and `all_gather(flat, group)` are those of lesson 02
within a group: the part of a rank is the one of its number in the group. `dist.all_reduce(tensor, group=group)` adds up
in place. Wait for the first two with `.wait()`.

Targets, on 4, 2, 3 and 1 ranks:

* every rank's `flat` holds the sum;
* one `reduce_scatter` and one `all_gather` inside the node, and between nodes one `all_reduce` of a part, not more.
"""

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from zerolab.engines.collectives import all_gather, reduce_scatter
from zerolab.exercises import RankTargets, Wrong


def two_levels(flat: torch.Tensor, per_node: int) -> None:
    """Down to a part inside the node, across with that part alone, and out again inside the node."""
    ranks = list(range(dist.get_world_size()))
    nodes = [ranks[first : first + per_node] for first in ranks[::per_node]]
    inside, _ = dist.new_subgroups_by_enumeration(nodes)
    across, _ = dist.new_subgroups_by_enumeration([ranks[place::per_node] for place in range(per_node)])
    reduce_scatter(flat, inside).wait()
    mine = flat.chunk(per_node)[dist.get_rank() % per_node]
    dist.all_reduce(mine, group=across)
    all_gather(flat, inside).wait()


Groups = list[list[int]]
PER_NODE = {1: 1, 2: 1, 3: 3, 4: 2}
"""Ranks of a node, by the number of ranks: on two every rank is a node, on three all are one."""


def draw(dice: random.Random, world_size: int) -> list[tuple[Any, ...]]:
    """One flat for each rank."""
    # A multiple of 48, so that the share of each is a whole number.
    numel = 48 * dice.randrange(200, 400)
    numbers = np.random.default_rng(dice.randrange(2**31))
    return [(numbers.standard_normal(numel).astype(np.float32), PER_NODE[world_size]) for _ in range(world_size)]


def sum_of(arguments: list[tuple[Any, ...]]) -> Any:
    """The sum of all ranks' flats."""
    return sum(flat for flat, _ in arguments)


def nodes(count: int, per_node: int) -> Groups:
    """The ranks of each node."""
    return [list(range(first, first + per_node)) for first in range(0, count, per_node)]


def peers(count: int, per_node: int) -> Groups:
    """The ranks of each place in a node, that is those that keep the same part."""
    return [list(range(place, count, per_node)) for place in range(per_node)]


def levels(
    arguments: list[tuple[Any, ...]],
    rank: int,
    inside: Callable[[int, int], Groups] = nodes,
    across: Callable[[int, int], Groups] = peers,
    part: Callable[[int, int, int], tuple[int, int]] = lambda rank, _count, per_node: (rank % per_node, per_node),
    *,
    down: bool = True,
    out: bool = True,
) -> Any:
    """What a rank ends with by these groups; `part` says which of how many it adds up between the nodes."""
    count, per_node = len(arguments), arguments[0][1]
    flats = np.stack([flat for flat, _ in arguments])
    for group in inside(count, per_node) if down else []:
        sums = flats[group].sum(0).reshape(len(group), -1)
        for number, member in enumerate(group):
            flats[member].reshape(len(group), -1)[number] = sums[number]
    for group in across(count, per_node):
        numbers = {member: part(member, count, per_node) for member in group}
        parts = [flats[member].reshape(of, -1)[number] for member, (number, of) in numbers.items()]
        total = sum(parts)
        for mine in parts:
            mine[:] = total
    for group in inside(count, per_node) if out else []:
        gathered = np.concatenate([flats[each].reshape(len(group), -1)[number] for number, each in enumerate(group)])
        flats[group] = gathered
    return torch.from_numpy(flats[rank])


def sent(arguments: tuple[Any, ...], world_size: int, whole: bool = False) -> int:
    """Twice (n-1)/n of the flat inside the node, and of a part between the nodes, or of the whole flat."""
    per_node: int = arguments[1]
    nodes = world_size // per_node
    part = len(arguments[0]) // per_node
    return 2 * (per_node - 1) * part + 2 * (nodes - 1) * (len(arguments[0]) if whole else part) // nodes


def due(rank: int, count: int, per_node: int) -> dict[str, tuple[int, ...]]:
    """Among which ranks each exchange of a rank is due."""
    node, same_part = (next(tuple(g) for g in groups(count, per_node) if rank in g) for groups in (nodes, peers))
    return {"reduce_scatter": node, "all_reduce": same_part, "all_gather": node}


solution = two_levels
hole = "add up inside the node, across the nodes, and hand out inside the node"
given = "import torch.distributed as dist\nfrom zerolab.engines.collectives import all_gather, reduce_scatter"
look_for = "On four ranks, look at the groups in the captions: the all-reduce joins 0 with 2, and 1 with 3."
targets = RankTargets(
    draw=draw,
    wanted=lambda arguments, _rank: torch.from_numpy(sum_of(arguments)),
    in_place=0,
    collectives=lambda _world_size: ("reduce_scatter", "all_reduce", "all_gather"),
    groups=lambda arguments, rank, count: due(rank, count, arguments[1]),
    sent=sent,
    world_sizes=(4, 2, 3, 1),
    tolerance=1e-5,  # sums in another order
)
hints = (
    "Two lists of groups: the nodes, [[0, 1], [2, 3]], and those that keep the same part, [[0, 2], [1, 3]].",
    "After `reduce_scatter(flat, inside).wait()` the node's sum is in part `rank % per_node` of `flat` alone.",
    "`mine = flat.chunk(per_node)[dist.get_rank() % per_node]`, then `dist.all_reduce(mine, group=across)`.",
)
wrong = (
    Wrong(
        says="adds up within the node alone, or leaves the sum over the nodes in a copy of the part",
        replace="    dist.all_reduce(mine, group=across)\n",
        by="",
        gives=lambda arguments, rank: levels(arguments, rank, across=lambda *_: []),
    ),
    Wrong(
        says="leaves the sum in this rank's part; the node has to hand the parts out",
        replace="    all_gather(flat, inside).wait()\n",
        by="",
        gives=lambda arguments, rank: levels(arguments, rank, out=False),
    ),
    Wrong(
        says="adds up over the nodes what the node itself has not added up: `reduce_scatter` comes first",
        replace="    reduce_scatter(flat, inside).wait()\n",
        by="",
        gives=lambda arguments, rank: levels(arguments, rank, down=False),
    ),
    Wrong(
        says="adds up the whole flat between the nodes, of which each rank has one part to bring",
        sends=lambda arguments, world_size: sent(arguments, world_size, whole=True),
        replace="dist.all_reduce(mine, group=across)",
        by="dist.all_reduce(flat, group=across)",
    ),
    Wrong(
        says="started all_reduce; the target is",
        whole="""
def two_levels(flat, per_node):
    dist.all_reduce(flat)
""",
    ),
    Wrong(
        says="the target is reduce_scatter, all_reduce, all_gather",
        whole="""
def two_levels(flat, per_node):
    ranks = list(range(dist.get_world_size()))
    inside, _ = dist.new_subgroups_by_enumeration([ranks[n : n + per_node] for n in ranks[::per_node]])
    across, _ = dist.new_subgroups_by_enumeration([ranks[n::per_node] for n in range(per_node)])
    dist.all_reduce(flat, group=inside)
    dist.all_reduce(flat, group=across)
""",
    ),
    Wrong(
        says="adds up parts that are not the same: between nodes, only ranks that keep the same part are a group",
        replace="ranks[place::per_node] for place in range(per_node)",
        by="ranks",
        gives=lambda arguments, rank: levels(arguments, rank, across=lambda count, _per_node: [list(range(count))]),
    ),
    Wrong(
        says="takes the part of its node's number; a rank keeps that of its own number in the node",
        replace="[dist.get_rank() % per_node]",
        by="[dist.get_rank() // per_node]",
        # On two ranks a node has one part: there such an answer raises an error, and what this gives is of no matter.
        gives=lambda arguments, rank: levels(
            arguments, rank, part=lambda rank, _count, per_node: (rank // per_node % per_node, per_node)
        ),
    ),
    Wrong(
        says="takes the first part on every rank; a rank keeps that of its own number in the node",
        replace="[dist.get_rank() % per_node]",
        by="[0]",
        gives=lambda arguments, rank: levels(arguments, rank, part=lambda _rank, _count, per_node: (0, per_node)),
    ),
    Wrong(
        says="cuts the flat into as many parts as there are ranks; a node has `per_node` of them",
        replace="flat.chunk(per_node)[dist.get_rank() % per_node]",
        by="flat.chunk(dist.get_world_size())[dist.get_rank()]",
        gives=lambda arguments, rank: levels(arguments, rank, part=lambda rank, count, _per_node: (rank, count)),
    ),
    Wrong(
        says="takes ranks of different nodes for a node, and those of one node for different ones",
        replace="    reduce_scatter(flat, inside).wait()\n",
        by="    inside, across = across, inside\n    reduce_scatter(flat, inside).wait()\n",
        gives=lambda arguments, rank: levels(arguments, rank, inside=peers, across=nodes),
    ),
    Wrong(
        # All is as it should be but for who is near: on four ranks it sends as much.
        says="started reduce_scatter in the group [0, 2]; it is due in [0, 1]",
        whole="""
def two_levels(flat, per_node):
    ranks = list(range(dist.get_world_size()))
    across, _ = dist.new_subgroups_by_enumeration([ranks[n : n + per_node] for n in ranks[::per_node]])
    inside, _ = dist.new_subgroups_by_enumeration([ranks[n::per_node] for n in range(per_node)])
    reduce_scatter(flat, inside).wait()
    mine = flat.chunk(len(ranks) // per_node)[dist.get_rank() // per_node]
    dist.all_reduce(mine, group=across)
    all_gather(flat, inside).wait()
""",
    ),
)
