"""The highest parameters of ZeRO-3.

A rank keeps its shard of every unit. What else it holds of the parameters depends on the units: the one in use is
whole, and so are those that were gathered ahead. Write a function that finds the most bytes of parameters that a rank
holds during a forward pass in fp32. It gets

* `units`: a list with the number of parameters of each unit, in the order in which forward uses them;
* `world_size`: the number of ranks, `N`;
* `prefetch`: how many of the units that come next are gathered while one is in use: 0, 1 or 2.

A shard is kept beside the gathered flat, which has a place for all `N` shards. A flat is padded to a multiple of `N`. A
unit is released before the next one is used. Nothing runs on ranks: `check` calls your function with numbers that it
draws.

Targets:

* the right number of bytes, for each of twelve drawn inputs;
* with one unit and `N = 1` it is `8Ψ`: the shard is the whole unit, and the gathered flat lies beside it.
"""

import random
from typing import Any

from zerolab.exercises import FunctionTargets, Wrong


def zero3_peak(units: list[int], world_size: int, prefetch: int) -> int:
    """All shards, and the largest sum of neighbours that are whole at a time."""
    shards = [-(-numel // world_size) for numel in units]
    whole = [shard * world_size for shard in shards]
    # Windows, and not the largest units: only neighbours are whole at the same time.
    windows = [sum(whole[first : first + 1 + prefetch]) for first in range(len(whole))]
    return 4 * (sum(shards) + max(windows))


def draw(dice: random.Random) -> dict[str, Any]:
    """One to seven units of very different sizes, 1 to 8 ranks, up to two units ahead."""
    sizes = [dice.choice([dice.randrange(5, 60), dice.randrange(500, 3000)]) for _ in range(dice.randrange(1, 8))]
    return {"units": sizes, "world_size": dice.choice([1, 2, 3, 4, 8]), "prefetch": dice.randrange(3)}


edges = (
    lambda units, world_size, **_: len(units) == 1 and world_size > 1,
    lambda units, world_size, **_: len(units) > 1 and world_size == 1,
    lambda units, prefetch, **_: 1 < len(units) <= prefetch,
    lambda units, prefetch, **_: len(units) == 1 and prefetch > 0,
    lambda units, world_size, **_: min(units) < world_size and len(units) > 1,
    lambda units, prefetch, **_: len(units) > 2 and prefetch and units[-1] == max(units),
    lambda units, world_size, **_: sum(-unit % world_size for unit in units) >= world_size,
)
solution = zero3_peak
hole = "find the highest moment"
look_for = "Each row is one call. Compare rows with the same units count and another `prefetch`."
targets = FunctionTargets(draw=draw, edges=edges)
hints = (
    "Three lists help: the shard of each unit (round up), its whole flat (`N` shards), and what is whole at a time.",
    "While unit `i` is in use, the units `i` to `i + prefetch` are whole, as far as there are so many.",
    "The answer is the sum of all shards and the largest of those windows, times 4 bytes.",
)
wrong = (
    Wrong(says="forgets the shards that a rank always keeps", replace="sum(shards) + max(windows)", by="max(windows)"),
    Wrong(
        says="counts the unit in use, and not those that are gathered ahead",
        replace="first + 1 + prefetch",
        by="first + 1",
    ),
    Wrong(
        says="adds up the largest units, although they are not neighbours",
        replace="windows = [sum(whole[first : first + 1 + prefetch]) for first in range(len(whole))]",
        by="windows = [sum(sorted(whole)[-1 - prefetch :])]",
    ),
    Wrong(
        says="forgets the padding",
        whole="""
def zero3_peak(units, world_size, prefetch):
    windows = [sum(units[first : first + 1 + prefetch]) for first in range(len(units))]
    return 4 * (sum(numel // world_size for numel in units) + max(windows))
""",
    ),
    Wrong(says="never releases: all units are whole", replace="max(windows)", by="sum(whole)"),
    Wrong(
        says="counts a gathered unit without the own shard, although its flat has a place for all shards",
        replace="shard * world_size for",
        by="shard * (world_size - 1) for",
    ),
)
