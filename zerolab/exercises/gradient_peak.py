"""The highest gradients of ZeRO-2.

At the update ZeRO-2 holds `4Ψ/N` bytes of gradients. During backward there is more. Write a function that finds the
most bytes of gradients that a rank holds at one moment of a backward pass in fp32. It gets

* `units`: a list with the number of parameters of each unit, from the first to the last;
* `world_size`: the number of ranks, `N`.

Backward goes from the last unit to the first. Of a unit that is done the rank keeps its shard. Of the unit that has
just got its last gradient it holds the whole flat. The other units have no gradients yet. (That is the plain version:
what comes in from the peers counts as communication, and a unit is reduced before the next one begins.) A flat is
padded to a multiple of `N`. Nothing runs on ranks: `check` calls your function with numbers that it draws.

Targets:

* the right number of bytes, for each of twelve drawn inputs;
* at `N = 1` it is `4Ψ`: there is nobody to give anything to.
"""

import random
from typing import Any

from zerolab.exercises import FunctionTargets, Wrong


def gradient_peak(units: list[int], world_size: int) -> int:
    """The largest sum, over units, of one whole flat and the shards of those behind it."""
    highest = shards = 0
    for numel in reversed(units):
        shard = -(-numel // world_size)
        highest = max(highest, shards + shard * world_size)
        shards += shard
    return 4 * highest


def draw(dice: random.Random) -> dict[str, Any]:
    """One to seven units of very different sizes, 1 to 8 ranks."""
    # Very different sizes, so that the largest unit decides in some draws and the sum of shards in others.
    sizes = [dice.choice([dice.randrange(5, 60), dice.randrange(500, 3000)]) for _ in range(dice.randrange(1, 8))]
    return {"units": sizes, "world_size": dice.choice([1, 2, 3, 4, 8])}


edges = (
    lambda units, world_size: len(units) == 1 and world_size > 1,
    lambda units, world_size: len(units) > 1 and world_size == 1,
    lambda units, world_size: min(units) < world_size and len(units) > 1,
    lambda units, world_size: len(units) > 2 and units[-1] == max(units) and world_size > 1,
    # The peak is at the first unit, and rounding every shard up is not rounding their sum up.
    lambda units, world_size: units[0] == max(units) and sum(-unit % world_size for unit in units[1:]) >= world_size,
)
solution = gradient_peak
hole = "find the highest moment"
look_for = "Each row is one call. Where one unit is much larger than the others, it decides."
targets = FunctionTargets(draw=draw, edges=edges)
hints = (
    "Go through the units from the last to the first, and keep in a variable the shards of those that are done.",
    "A shard has as many elements as the padded flat divided by `N`: round up. The whole flat has `N` times that.",
    "At each unit there are its whole flat and the shards so far; the answer is the largest such sum, times 4 bytes.",
)
wrong = (
    Wrong(says="goes from the first unit to the last", replace="reversed(units)", by="units"),
    Wrong(
        says="forgets the padding",
        whole="""
def gradient_peak(units, world_size):
    highest = shards = 0
    for numel in reversed(units):
        highest = max(highest, shards + numel)
        shards += numel // world_size
    return 4 * highest
""",
    ),
    Wrong(says="counts the largest unit and no shards", replace="shards + shard * world_size", by="shard * world_size"),
    Wrong(
        says="adds all shards to the largest unit, those of units that have no gradient yet, too",
        whole="""
def gradient_peak(units, world_size):
    shards = [-(-numel // world_size) for numel in units]
    return 4 * (sum(shards) + max(shards) * world_size)
""",
    ),
    Wrong(
        says="keeps whole gradients until the end, as ZeRO-1 does",
        whole="""
def gradient_peak(units, world_size):
    return 4 * sum(-(-numel // world_size) * world_size for numel in units)
""",
    ),
    Wrong(says="counts elements, not bytes", replace="return 4 * highest", by="return highest"),
)
