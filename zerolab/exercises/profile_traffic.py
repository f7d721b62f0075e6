"""Read the traffic off a profile.

A profiler lists the collectives of a step with the sizes of what went in and what came out. Write a function that says
how many elements a rank sent. It gets

* `profile`: a list of `(op, elements_in, elements_out)`. `op` is `"all_reduce"`, `"reduce_scatter"` or `"all_gather"`;
* `world_size`: the number of ranks, `N`.

A reduce-scatter takes a whole buffer in, and a shard of it comes out. An all-gather takes a shard in, and the whole
buffer comes out. Of the whole buffer a rank sends `(N-1)/N` in each of the two. An all-reduce has the whole buffer on
both sides and costs as much as the two together. Nothing runs on ranks: `check` calls your function with profiles that
it draws.

Targets:

* the right number of elements, a whole number, for each of sixteen drawn profiles;
* one rank alone sends nothing.
"""

import random
from collections.abc import Callable
from typing import Any

from zerolab.exercises import FunctionTargets, Wrong


def elements_sent(profile: list[tuple[str, int, int]], world_size: int) -> int:
    """The larger side is the whole buffer; what an op costs is passes of it."""
    sent = 0
    for op, elements_in, elements_out in profile:
        # The op decides which side is whole, and the whole side is always the larger: no case distinction needed.
        whole = max(elements_in, elements_out)
        passes = 2 if op == "all_reduce" else 1
        sent += passes * whole * (world_size - 1) // world_size
    return sent


def draw(dice: random.Random) -> dict[str, Any]:
    """Up to six collectives over buffers that 1 to 8 ranks share evenly."""
    world_size = dice.choice([1, 2, 4, 8])
    profile = []
    for _ in range(dice.randrange(1, 7)):
        shard = dice.randrange(10, 5000)
        whole = shard * world_size
        sides = {"all_reduce": (whole, whole), "reduce_scatter": (whole, shard), "all_gather": (shard, whole)}
        op = dice.choice(list(sides))
        profile.append((op, *sides[op]))
    return {"profile": profile, "world_size": world_size}


def alone(wanted: str) -> Callable[..., bool]:
    """On more than two ranks, where one shard and the others are not of one size, a profile of one op."""
    return lambda profile, world_size: world_size > 2 and [op for op, _, _ in profile] == [wanted]


edges: tuple[Callable[..., bool], ...] = (
    lambda world_size, **_: world_size == 1,
    lambda world_size, **_: world_size == 2,
    *map(alone, ("all_reduce", "reduce_scatter", "all_gather")),
    lambda profile, world_size: world_size > 2 and len(profile) > len({op for op, _, _ in profile}) == 3,
)
solution = elements_sent
hole = "add up what was sent"
look_for = (
    "Each row is one profile. Where an op is alone on four or eight ranks, only an all-reduce sends more than its "
    "buffer holds."
)
targets = FunctionTargets(draw=draw, edges=edges, tries=16)
hints = (
    "Find the size of the whole buffer first. On which side does each of the three ops show it?",
    "The whole buffer is the larger of the two sides. A pass over it sends `(N-1)/N` of its elements.",
    "A reduce-scatter and an all-gather are one pass each, an all-reduce is two. Add up, in whole numbers.",
)
wrong = (
    Wrong(
        says="counts an all-reduce as one pass; it is a reduce-scatter and an all-gather",
        replace='2 if op == "all_reduce" else 1',
        by="1",
    ),
    Wrong(
        says="takes what goes in for the whole buffer, which of an all-gather is a shard",
        replace="max(elements_in, elements_out)",
        by="elements_in",
    ),
    Wrong(
        says="takes what comes out for the whole buffer, which of a reduce-scatter is a shard",
        replace="max(elements_in, elements_out)",
        by="elements_out",
    ),
    Wrong(
        says="has a rank send its own shard to itself, too",
        replace="passes * whole * (world_size - 1) // world_size",
        by="passes * whole",
    ),
    Wrong(
        says="counts what all ranks send together",
        replace="passes * whole * (world_size - 1) // world_size",
        by="passes * whole * (world_size - 1)",
    ),
    Wrong(says="counts two passes for each op", replace='2 if op == "all_reduce" else 1', by="2"),
    Wrong(says="adds both sides up", replace="max(elements_in, elements_out)", by="elements_in + elements_out"),
)
