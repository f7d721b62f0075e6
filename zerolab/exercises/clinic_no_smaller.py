"""Case 7.

The cell below is what was examined: ZeRO-3, broken. Find what is missing, fix it, and take the `hole` away. A unit has

* `unit.mine`, this rank's shard of its flat, which the optimizer updates;
* `unit.gather()`, which makes the flat whole on every rank by one `all_gather`, and `unit.release()`, which gives the
  whole flat's memory back. Each unit is released when the function begins;
* `unit.forward(inputs)`, and `unit.backward(output_gradient)`, which gives the gradients of inputs and parameters. The
  flat must be whole in both.

Each batch is `(inputs, loss_gradient)`; `loss_gradient(outputs)` is where backward begins.

Targets, on 2, 3, 1 and 4 ranks:

* after each step a rank's shards equal those of DDP under SGD with momentum, to 1e-6;
* with Adam a rank keeps `16Ψ/N` bytes, and **never more than two whole units** beside them;
* each step is two `all_gather` and one `reduce_scatter` for each unit.
"""

from dataclasses import replace

import torch

from zerolab.engines.collectives import reduce_scatter
from zerolab.exercises import Suspect, Wrong
from zerolab.exercises.harness.stages import ZERO3, Batches, OptimizerClass
from zerolab.exercises.harness.unit import ShardedUnit
from zerolab.recording.events import Event


def zero3(
    units: list[ShardedUnit], batches: Batches, optimizer_cls: OptimizerClass, rank: int, world_size: int
) -> torch.optim.Optimizer:
    """Releases a unit after each use, in forward, too."""
    optimizer = optimizer_cls([unit.mine for unit in units])
    for inputs, loss_gradient in batches:
        outputs = inputs
        for unit in units:
            unit.gather()
            outputs = unit.forward(outputs)
            unit.release()
        output_gradient = loss_gradient(outputs)
        for unit in reversed(units):
            unit.gather()
            output_gradient, gradient = unit.backward(output_gradient)
            unit.release()
            reduce_scatter(gradient).wait()
            unit.mine.grad = gradient.chunk(world_size)[rank] / world_size
            del gradient
        optimizer.step()
    return optimizer


def telling(event: Event) -> bool:
    """Rank 0 has passed through the last unit in the last forward."""
    return event.rank == 0 and event.op == "forward" and event.unit == "5" and event.step == 2


solution = zero3
given = "from zerolab.engines.collectives import all_reduce, reduce_scatter"
look_for = (
    "When it passes, the parameters in the picture are a wave: one unit is whole, then the next one, there and back."
)
targets = replace(ZERO3, shape="sharded")
suspects = (
    Suspect(
        says="The optimizer state is not sharded.",
        reply="it is a quarter on each rank, and so are the parameters and gradients at the update.",
    ),
    Suspect(
        says="Every unit that forward has gathered stays whole until backward has used it.",
        reply="at the end of forward all six units are whole on every rank. At the update nothing shows of it.",
        guilty=True,
    ),
    Suspect(
        says="Whole gradients stay in memory.",
        reply="a unit's gradient is gone before the next one comes.",
    ),
    Suspect(
        says="The activations take the memory, and ZeRO does nothing for them.",
        reply="that is often so. Here they are a small part; the high plateau has the colour of parameters.",
    ),
)
hints = (
    "At the update everything is as small as the formula says. Which moment of a step is the highest?",
    "What does the loop over units do in forward with a unit that it has used? And what in backward?",
    "Release a unit after its forward. Backward gathers it again: that is the third pass of ZeRO-3.",
)
wrong = (
    Wrong(
        says="too many units were whole at a time",
        replace="            outputs = unit.forward(outputs)\n            unit.release()\n",
        by="            outputs = unit.forward(outputs)\n",
    ),
    Wrong(
        says="used after release",
        replace="            unit.gather()\n            output_gradient, gradient",
        by="            output_gradient, gradient",
    ),
    Wrong(
        says="too many units were whole at a time",
        replace="""            outputs = unit.forward(outputs)
            unit.release()
""",
        by="""            outputs = unit.forward(outputs)
        for unit in units:
            unit.release()
""",
    ),
    Wrong(
        says="used after release",
        replace="            outputs = unit.forward(outputs)\n            unit.release()\n",
        by="            unit.release()\n            outputs = unit.forward(outputs)\n",
    ),
    Wrong(
        says="too many units were whole at a time",
        replace="""        for unit in reversed(units):
            unit.gather()
""",
        by="""        for unit in units:
            unit.gather()
        for unit in reversed(units):
""",
    ),
)
