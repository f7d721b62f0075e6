"""What crosses between the groups.

HSDP makes groups of ranks, for example one on each host. Inside a group the model is sharded as in ZeRO-3; the groups
are copies of each other. Write a function that counts what one rank sends in a step. It gets

* `num_params`: the number of parameters, `Ψ`, a multiple of `world_size`;
* `world_size`: the number of ranks, `N`;
* `groups`: how many groups they make; it divides `N`.

Inside its group a rank takes part in two all-gathers of the model and one reduce-scatter of its gradients. Then each
shard of the gradients is all-reduced with the same shard in the other groups. Return two whole numbers: the elements
that the rank sends inside its group, and those that it sends to other groups. Nothing runs on ranks.

Targets:

* both numbers right, for each of twelve drawn inputs;
* with one group nothing crosses, and with as many groups as ranks everything does, as in DDP.
"""

import random
from typing import Any

from zerolab.exercises import FunctionTargets, Wrong


def hsdp_traffic(num_params: int, world_size: int, groups: int) -> tuple[int, int]:
    """Three passes inside the group; an all-reduce of one shard across."""
    members = world_size // groups
    shard = num_params // members
    inside = 3 * shard * (members - 1)
    across = 2 * (shard // groups) * (groups - 1)
    return inside, across


def draw(dice: random.Random) -> dict[str, Any]:
    """1 to 8 groups of 1 to 8 ranks, and a model that all of them divide."""
    # One group and groups of one are among them: FSDP and DDP, the two ends that the formula must meet.
    groups, members = dice.choice([1, 2, 4, 8]), dice.choice([1, 2, 4, 8])
    world_size = groups * members
    return {"num_params": world_size * dice.randrange(100, 100_000), "world_size": world_size, "groups": groups}


edges = (
    lambda world_size, **_: world_size == 1,
    lambda world_size, groups, **_: groups == 1 < world_size,
    lambda world_size, groups, **_: groups == world_size > 1,
    lambda world_size, groups, **_: 1 < groups < world_size and groups**2 != world_size,
)
solution = hsdp_traffic
hole = "count what a rank sends inside its group, and across"
look_for = "Each row is one call: what stays inside, and what crosses."
targets = FunctionTargets(draw=draw, edges=edges)
hints = (
    "A group has `N / groups` members. Inside it everything is as in ZeRO-3 with so many ranks: three passes.",
    "A pass over a buffer of `B` elements among `n` ranks costs each `(n - 1)/n B`; an all-reduce is two passes.",
    "What crosses is an all-reduce of one shard, `Ψ / members` elements, among `groups` ranks.",
)
wrong = (
    Wrong(
        says="all-reduces the whole gradient across the groups, not a shard of it",
        replace="2 * (shard // groups)",
        by="2 * (num_params // groups)",
    ),
    Wrong(
        says="counts the all-reduce across the groups as one pass",
        replace="2 * (shard // groups)",
        by="(shard // groups)",
    ),
    Wrong(
        says="shards the model over all ranks, not over the members of a group",
        replace="members = world_size // groups",
        by="members = world_size",
    ),
    Wrong(
        says="counts two passes inside a group; forward and backward gather the model once each",
        replace="3 * shard",
        by="2 * shard",
    ),
    Wrong(
        says="takes the number of groups for the number of members",
        replace="members = world_size // groups",
        by="members = groups",
    ),
    Wrong(
        says="counts what a rank would send to itself",
        replace="3 * shard * (members - 1)",
        by="3 * shard * members",
    ),
)
