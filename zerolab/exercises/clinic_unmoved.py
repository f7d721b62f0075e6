"""Case 5.

The cell below is what was examined: ZeRO-1 over several units, broken. It reduces four units at a time, because many
small exchanges are slow. Find what is missing, fix it, and take the `hole` away.

* `units`: each unit's flat, of `world_size` equal shards; rank `r` owns shard `r` of every unit.
* `backwards`: one backward pass a step. It gives `(number, gradient)` from the last unit to the first.

How many units are reduced at a time is up to you, and any number of units must do.

Targets, on 2, 3, 1 and 4 ranks:

* the optimizer of rank `r` updates shard `r` of **each** unit from the mean of all ranks' gradients;
* after each step the parameters equal those of DDP under SGD with momentum, to 1e-6;
* with Adam a rank keeps `4Ψ + 4Ψ + 8Ψ/N` bytes;
* each step is one `reduce_scatter` and one `all_gather` for each unit.
"""

from dataclasses import replace

import torch

from zerolab.engines.collectives import all_gather, reduce_scatter
from zerolab.exercises import Suspect, Wrong
from zerolab.exercises.harness.stages import COLLECTIVES, ZERO1, Backwards, OptimizerClass, last_update


def zero1(
    units: list[torch.Tensor], backwards: Backwards, optimizer_cls: OptimizerClass, rank: int, world_size: int
) -> torch.optim.Optimizer:
    """Reduces four units at a time, and at the end of backward what is left."""
    mine = [unit.chunk(world_size)[rank] for unit in units]
    optimizer = optimizer_cls(mine)

    def reduce(bucket: list[tuple[int, torch.Tensor]]) -> None:
        exchanges = [reduce_scatter(gradient) for _, gradient in bucket]
        for (number, gradient), exchange in zip(bucket, exchanges, strict=True):
            exchange.wait()
            mine[number].grad = gradient.chunk(world_size)[rank].div_(world_size)

    for backward in backwards:
        bucket = []
        for number, gradient in backward:
            bucket.append((number, gradient))
            if len(bucket) == 4:
                reduce(bucket)
                bucket = []
        reduce(bucket)
        optimizer.step()
        for unit in units:
            all_gather(unit).wait()
    return optimizer


solution = zero1
given = COLLECTIVES
telling = last_update
look_for = "When it passes, the optimizer state of every unit has an owner on each rank: no bar is empty any more."
targets = replace(ZERO1, shape="backward")
suspects = (
    Suspect(
        says="The first two units are frozen.",
        reply="they are in forward and backward like the others, and travel in every all_gather.",
    ),
    Suspect(
        says="Padding is missing: the shards at the end of each flat belong to nobody.",
        reply="then every unit would lack a bit. Four units have all of it, and two have nothing.",
    ),
    Suspect(
        says="Of the first two units no gradient is ever reduced, so nothing updates them.",
        reply="a step has four reduce_scatters for six units, and Adam has no state of the two units that come last.",
        guilty=True,
    ),
    Suspect(
        says="The updates of the first two units are not sent.",
        reply="a step has six all_gathers. What they bring for these two is as old as before.",
    ),
)
hints = (
    "Six units, four at a time. What happens to the rest?",
    "When backward has ended, the bucket may hold units that are still to be reduced. Who does that?",
    "Call `reduce(bucket)` once more after the inner loop, before the update; with an empty list it does nothing.",
)
wrong = (
    Wrong(
        says="unit 0: the optimizer updates nothing",
        replace="        reduce(bucket)\n        optimizer.step()\n",
        by="        optimizer.step()\n",
    ),
    Wrong(
        says="unit 0: the optimizer updates nothing",
        replace="""        reduce(bucket)
        optimizer.step()
        for unit in units:
            all_gather(unit).wait()
""",
        by="""        optimizer.step()
        for unit in units:
            all_gather(unit).wait()
    reduce(bucket)
""",
    ),
    Wrong(says="a gradient that was reduced twice", replace="                bucket = []\n", by=""),
    Wrong(
        says="this rank's own gradient divided by `world_size`",
        replace="        reduce(bucket)\n        optimizer.step()\n",
        by="""        for number, gradient in bucket:
            mine[number].grad = gradient.chunk(world_size)[rank].div_(world_size)
        optimizer.step()
""",
    ),
    Wrong(
        says="all_reduce where a reduce_scatter is enough",
        replace="        reduce(bucket)\n        optimizer.step()\n",
        by="""        for number, gradient in bucket:
            all_reduce(gradient).wait()
            mine[number].grad = gradient.chunk(world_size)[rank].div_(world_size)
        optimizer.step()
""",
    ),
)
