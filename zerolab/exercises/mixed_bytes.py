"""Bytes in mixed precision.

Write a function that counts the bytes of model state that one rank holds at the update in bf16 with fp32 master copies.
It gets

* `stage`: `"ddp"`, `"zero1"`, `"zero2"` or `"zero3"`;
* `num_params`: the number of parameters, `Ψ`, a multiple of `world_size`;
* `world_size`: the number of ranks, `N`.

For each parameter there are 2 bytes of the parameter, 2 of its gradient, and 12 of optimizer state: the master copy and
Adam's two numbers, in fp32. Besides, the gradient of what a rank updates is cast to fp32 before the update: 4 bytes for
each parameter that this rank owns. Each stage shards what it shards in fp32, too. Nothing runs on ranks: `check` calls
your function with numbers that it draws.

Targets:

* the right number of bytes, for each of sixteen drawn inputs;
* `ddp` comes to `20Ψ`, and `zero3` to `20Ψ/N`.
"""

import random
from collections.abc import Callable
from typing import Any

from zerolab.exercises import FunctionTargets, Wrong


def mixed_bytes(stage: str, num_params: int, world_size: int) -> int:
    """Parameters, gradients, optimizer state, and the fp32 gradient of what is updated."""
    shard = num_params // world_size
    parameters = 2 * (shard if stage == "zero3" else num_params)
    gradients = 2 * (shard if stage in ("zero2", "zero3") else num_params)
    # Only what a rank updates needs an fp32 gradient; under DDP that is everything.
    owned = num_params if stage == "ddp" else shard
    return parameters + gradients + 12 * owned + 4 * owned


def draw(dice: random.Random) -> dict[str, Any]:
    """A stage, and a model that N divides."""
    world_size = dice.choice([1, 2, 4, 8, 64])
    num_params = world_size * dice.randrange(1000, 10_000_000)
    stage = dice.choice(["ddp", "zero1", "zero2", "zero3"])
    return {"stage": stage, "num_params": num_params, "world_size": world_size}


def sharded_by(wanted: str) -> Callable[..., bool]:
    """This stage, on several ranks."""
    return lambda stage, world_size, **_: stage == wanted and world_size > 1


edges = (
    lambda world_size, **_: world_size == 1,
    *map(sharded_by, ("ddp", "zero1", "zero2", "zero3")),
)
solution = mixed_bytes
hole = "count the bytes"
look_for = "Each row is one call. Compare `ddp` with the 16 bytes a parameter of fp32."
targets = FunctionTargets(
    draw=draw, edges=edges, tries=16, forbids=("zerolab.theory:state_bytes", "zerolab.theory:terms")
)
hints = (
    "Write down for each stage which of parameters, gradients and optimizer state are divided by `N`.",
    "A rank updates everything in `ddp`, and its own shard in the other stages. The 12 and the 4 bytes go with that.",
    "`zero2` and `zero3` shard the 2 bytes of gradients, too; only `zero3` shards the 2 bytes of parameters.",
)
wrong = (
    Wrong(says="forgets the fp32 gradient of what is updated", replace=" + 4 * owned", by=""),
    Wrong(
        says="counts 4 bytes for each parameter, as in fp32",
        replace='parameters = 2 * (shard if stage == "zero3" else num_params)',
        by='parameters = 4 * (shard if stage == "zero3" else num_params)',
    ),
    Wrong(
        says="casts the whole gradient to fp32, not only that of what a rank owns",
        replace="4 * owned",
        by="4 * num_params",
    ),
    Wrong(
        says="lets every rank of `zero1` update everything",
        replace='num_params if stage == "ddp" else shard',
        by='num_params if stage in ("ddp", "zero1") else shard',
    ),
    Wrong(says="shards the gradients in `zero1`, too", replace='("zero2", "zero3")', by='("zero1", "zero2", "zero3")'),
    Wrong(
        says="leaves the parameters whole in `zero3`",
        replace='(shard if stage == "zero3" else num_params)',
        by="num_params",
    ),
)
