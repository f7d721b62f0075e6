"""Your own ZeRO-3, second rung: backward.

Your forward has run, and every unit is released again. Go back from the last unit to the first, each whole only while
it is used, and leave in `unit.mine.grad` the **mean** of all ranks' gradients of this rank's shard.

* `unit.backward(output_gradient)` gives `(input_gradient, gradient)`: what the unit in front of it gets, and this
  rank's gradient of the whole unit, a new tensor as large as the flat. The flat must be whole again.
* `reduce_scatter(tensor).wait()` leaves the sum over all ranks at this rank's place in the tensor.
* `allocate`, `release`, `mine` and `all_gather` are as before. Nothing is to be returned.

What ours does, as recorded, for the last two of six units:

    gather 5, backward 5, release 5, reduce 5, gather 4, backward 4, release 4, reduce 4, ...

Targets, on 1, 2, 3 and 4 ranks; the update is ours here, and so is forward until yours has passed:

* the optimizer gets the mean gradient, and after each step the shards equal those of DDP under SGD, to 1e-6;
* with Adam a rank keeps `16Ψ/N` bytes, and never whole parameters or whole gradients of more than two units;
* one `all_gather` and one `reduce_scatter` for each unit: `2 (N-1)/N Ψ` elements sent.
"""

import torch
import torch.distributed as dist

from zerolab.engines.collectives import all_gather, reduce_scatter
from zerolab.exercises import Wrong
from zerolab.exercises.harness.stages import BACKWARD, COLLECTIVES
from zerolab.exercises.harness.unit import Unit


def backward(units: list[Unit], output_gradient: torch.Tensor) -> None:
    """Each unit is gathered a second time; of its gradient this rank's shard stays."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    for unit in reversed(units):
        unit.allocate()
        unit.parameters.chunk(world_size)[rank].copy_(unit.mine)
        all_gather(unit.parameters).wait()
        output_gradient, gradient = unit.backward(output_gradient)
        unit.release()
        reduce_scatter(gradient).wait()
        # A new tensor: a view would keep the whole gradient in memory.
        unit.mine.grad = gradient.chunk(world_size)[rank] / world_size
        del gradient  # or the next unit's would come beside it


solution = backward
hole = "gather each unit again, use it, release it, reduce its gradient"
given = f"import torch.distributed as dist\n\n{COLLECTIVES}"
look_for = (
    "When it passes, look at the gradients in the picture: a whole one comes with each unit, and when its exchange is "
    "over, each rank keeps a quarter of it. A peak above ours? Then a whole gradient outlives its turn of the loop."
)
targets = BACKWARD
hints = (
    "The loop is that of forward over `reversed(units)`, the same three lines to make a unit whole included.",
    "`output_gradient, gradient = unit.backward(output_gradient)`: the first goes on to the next turn of the loop.",
    "Reduce-scatter `gradient`, wait, and set `unit.mine.grad = gradient.chunk(world_size)[rank] / world_size`.",
)
GATHER = """        unit.allocate()
        unit.parameters.chunk(world_size)[rank].copy_(unit.mine)
        all_gather(unit.parameters).wait()
"""
wrong = (
    Wrong(says="used after release", replace=GATHER, by=""),
    Wrong(says="got the sum of all ranks' gradients, not their mean", replace=" / world_size", by=".clone()"),
    Wrong(
        says="all_reduce where a reduce_scatter is enough",
        replace="reduce_scatter(gradient).wait()",
        by="all_reduce(gradient).wait()",
    ),
    Wrong(says="got this rank's own gradient", replace="        reduce_scatter(gradient).wait()\n", by=""),
    Wrong(
        says="never waited for its reduce_scatter",
        replace="reduce_scatter(gradient).wait()",
        by="reduce_scatter(gradient)",
    ),
    Wrong(says="go from the last unit to the first", replace="reversed(units)", by="units"),
    Wrong(
        says="give each the input gradient of the unit behind it",
        replace="        output_gradient, gradient = unit",
        by="        _, gradient = unit",
    ),
    Wrong(
        says="it keeps gradients for the whole flat, not for its own shard",
        replace=" / world_size",
        by=".div_(world_size)",
    ),
    Wrong(
        says="the sum of this step's gradient and of the one before",
        replace="        unit.mine.grad = gradient",
        by="        unit.mine.grad = (0 if unit.mine.grad is None else unit.mine.grad) + gradient",
    ),
    Wrong(says="units are still whole. Release each", replace="        unit.release()\n", by=""),
)
