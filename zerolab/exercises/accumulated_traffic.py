"""Traffic with accumulation.

A step may take several micro-batches: gradients add up, and only after the last one the optimizer updates. Write a
function that counts the elements that one rank sends in such a step. It gets

* `stage`: `"ddp"`, `"zero1"` or `"zero2"`;
* `num_params`: the number of parameters, `Ψ`, a multiple of `world_size`;
* `world_size`: the number of ranks, `N`;
* `micro_batches`: how many micro-batches a step takes, at least 1.

`ddp` and `zero1` add up whole gradients where they are, and bring them together after the last micro-batch: `ddp` by an
all-reduce, `zero1` by a reduce-scatter. `zero2` has only a shard to add up in, so it reduces every micro-batch. `zero1`
and `zero2` gather the updated parameters once a step. Nothing runs on ranks: `check` calls your function with numbers
that it draws, and `attempt.play()` shows them in a table.

Targets:

* the right number of elements, a whole number, for each of twelve drawn inputs;
* an all-reduce counts twice what a reduce-scatter or an all-gather counts, and a rank sends nothing to itself.
"""

import random
from typing import Any

from zerolab.exercises import FunctionTargets, Wrong


def accumulated_traffic(stage: str, num_params: int, world_size: int, micro_batches: int) -> int:
    """Passes of the model, times what one pass costs a rank."""
    one_pass = num_params // world_size * (world_size - 1)
    reduced = micro_batches if stage == "zero2" else 2 if stage == "ddp" else 1
    gathered = 0 if stage == "ddp" else 1
    return (reduced + gathered) * one_pass


def draw(dice: random.Random) -> dict[str, Any]:
    """A stage, a model that N divides, 1 to 16 ranks, 1 to 8 micro-batches."""
    world_size = dice.choice([1, 2, 3, 4, 8, 16])
    return {
        # `zero2` twice as often: it is the stage whose answer depends on the micro-batches.
        "stage": dice.choice(["ddp", "zero1", "zero2", "zero2"]),
        # A multiple of N, so that no answer can differ by how it rounds.
        "num_params": world_size * dice.randrange(1000, 10_000_000),
        "world_size": world_size,
        "micro_batches": dice.randrange(1, 9),
    }


edges = (
    lambda world_size, **_: world_size == 1,
    lambda stage, world_size, micro_batches, **_: stage == "zero2" and micro_batches == 1 and world_size > 1,
    lambda stage, world_size, micro_batches, **_: stage == "zero2" and micro_batches > 1 and world_size > 1,
    lambda stage, world_size, micro_batches, **_: stage == "zero1" and micro_batches > 1 and world_size > 1,
    lambda stage, world_size, micro_batches, **_: stage == "ddp" and micro_batches > 1 and world_size > 1,
)
solution = accumulated_traffic
hole = "count the elements that one rank sends"
look_for = "Each row is one call. Compare `zero1` and `zero2` where there are several micro-batches."
targets = FunctionTargets(
    draw=draw, edges=edges, forbids=("zerolab.theory:traffic_elements", "zerolab.theory:traffic_bytes")
)
hints = (
    "Count passes of the model first. One pass costs a rank `Ψ / N` elements for each of its N - 1 peers.",
    "`ddp` makes one all-reduce: two passes, however many micro-batches there are. `zero1` makes two passes, too.",
    "`zero2` makes a reduce-scatter for every micro-batch, and one all-gather.",
)
wrong = (
    Wrong(
        says="reduces only once in `zero2`, after the last micro-batch",
        replace='micro_batches if stage == "zero2" else 2',
        by="2",
    ),
    Wrong(
        says="gathers the parameters after every micro-batch",
        replace='gathered = 0 if stage == "ddp" else 1',
        by='gathered = 0 if stage == "ddp" else micro_batches if stage == "zero2" else 1',
    ),
    Wrong(says="counts an all-reduce as one pass", replace='2 if stage == "ddp" else 1', by="1"),
    Wrong(
        says="counts what a rank would send to itself",
        replace="num_params // world_size * (world_size - 1)",
        by="num_params",
    ),
    Wrong(
        says="forgets the all-gather of the updated parameters",
        replace='gathered = 0 if stage == "ddp" else 1',
        by="gathered = 0",
    ),
    Wrong(
        says="lets all stages reduce every micro-batch",
        replace='micro_batches if stage == "zero2" else 2 if stage == "ddp" else 1',
        by='micro_batches * (2 if stage == "ddp" else 1)',
    ),
    Wrong(
        says="lets all stages reduce and gather every micro-batch",
        replace="(reduced + gathered) * one_pass",
        by="2 * micro_batches * one_pass",
    ),
    Wrong(
        says="forgets the all-gather of the updated parameters in `zero2`",
        replace='gathered = 0 if stage == "ddp" else 1',
        by='gathered = 1 if stage == "zero1" else 0',
    ),
)
