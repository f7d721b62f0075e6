"""Case 4.

The cell below is what was examined: ZeRO-1 over one flat, broken. Find the line, fix it, and take the `hole` away.

* `parameters`: the flat, of `world_size` equal shards; rank `r` owns shard `r`.
* `gradients`: each step brings `(gradient, rows)`: this rank's gradient, which is the mean over the rows of its own
  batch, and a list with the number of rows of every rank's batch, `rows[rank]` being this rank's.

A right step is the one that a single process would make on all the rows at once: each **row** weighs the same.

Targets, on 2, 3, 1 and 4 ranks:

* the optimizer gets the mean gradient over all rows of all ranks;
* after each step the parameters equal those of one process, under SGD with momentum, to 1e-6;
* with Adam a rank keeps `4Ψ + 4Ψ + 8Ψ/N` bytes;
* each step is one `reduce_scatter` and one `all_gather`.
"""

from dataclasses import replace

import torch

from zerolab.engines.collectives import all_gather, reduce_scatter
from zerolab.exercises import Suspect, Wrong
from zerolab.exercises.harness.stages import COLLECTIVES, ZERO1, GradientsWithRows, OptimizerClass
from zerolab.recording.events import Event


def zero1(
    parameters: torch.Tensor, gradients: GradientsWithRows, optimizer_cls: OptimizerClass, rank: int, world_size: int
) -> torch.optim.Optimizer:
    """Weighs each rank's mean by its share of all rows; the sum of these is the mean over all rows."""
    mine = parameters.chunk(world_size)[rank]
    optimizer = optimizer_cls([mine])
    for gradient, rows in gradients:
        gradient.mul_(rows[rank] / sum(rows))
        reduce_scatter(gradient).wait()
        mine.grad = gradient.chunk(world_size)[rank]
        optimizer.step()
        all_gather(parameters).wait()
    return optimizer


def telling(event: Event) -> bool:
    """Rank 0 ends the forward of the last step."""
    return event.rank == 0 and event.op == "forward" and event.step == 2


solution = zero1
given = COLLECTIVES
look_for = "The picture is as before, byte for byte: this fault is one of numbers. The check compared them."
targets = replace(ZERO1, shape="rows", batches="uneven")
suspects = (
    Suspect(
        says="The sum of the gradients was taken, not a mean.",
        reply="then step 1 would be wrong already, by far: it equals DDP's.",
    ),
    Suspect(
        says="In step 2 the ranks have batches of different sizes, and all ranks weigh the same.",
        reply="rank 0's activations are many times rank 3's, its forward takes longer, and only this step is wrong.",
        guilty=True,
    ),
    Suspect(
        says="In step 2 a rank did not take part in the exchange.",
        reply="all four rows of the timeline show the same exchanges in both steps.",
    ),
    Suspect(
        says="The gradient of step 1 was still in the buffer in step 2.",
        reply="that would spoil every step but the first, and in an epoch only the last one is wrong.",
    ),
)
hints = (
    "A mean of means is the mean of all only where all have as many terms.",
    "Make of each rank's mean what it adds to the mean over all rows, before it travels.",
    "A rank with `rows[rank]` of `sum(rows)` rows counts `rows[rank] / sum(rows)`; no further division.",
)
wrong = (
    Wrong(
        says="a rank with few rows weighs as much as one with many",
        replace="""        gradient.mul_(rows[rank] / sum(rows))
        reduce_scatter(gradient).wait()
        mine.grad = gradient.chunk(world_size)[rank]
""",
        by="""        reduce_scatter(gradient).wait()
        mine.grad = gradient.chunk(world_size)[rank].div_(len(rows))
""",
    ),
    Wrong(
        says="the mean divided by `world_size` once too often",
        replace="mine.grad = gradient.chunk(world_size)[rank]",
        by="mine.grad = gradient.chunk(world_size)[rank].div_(world_size)",
    ),
    Wrong(says="the sum over all rows, not their mean", replace="rows[rank] / sum(rows)", by="rows[rank]"),
    Wrong(
        says="all weighed by this rank's rows: weigh each by those of its own rank",
        replace="""        gradient.mul_(rows[rank] / sum(rows))
        reduce_scatter(gradient).wait()
""",
        by="""        reduce_scatter(gradient).wait()
        gradient.mul_(rows[rank] / sum(rows))
""",
    ),
    Wrong(
        says="the sum over all rows divided by the number of ranks",
        replace="rows[rank] / sum(rows)",
        by="rows[rank] / world_size",
    ),
)
