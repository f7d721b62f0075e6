"""Case 6.

The cell below is what was examined: ZeRO-1 over several units, broken. It was written so that exchanges run while
backward goes on. Find what is wrong, fix it, and take the `hole` away.

* `units`: each unit's flat, of `world_size` equal shards; rank `r` owns shard `r` of every unit.
* `backwards`: one backward pass a step. It gives `(number, gradient)` from the last unit to the first.
* `reduce_scatter(gradient)` starts the exchange and returns it. When its `wait()` has returned, and not before, this
  rank's shard of `gradient` is the sum.

Targets, on 2, 3, 1 and 4 ranks:

* every exchange is waited for, and the optimizer gets the **mean** of all ranks' gradients;
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
    """Starts every reduction as early as it can, and waits for all of them before the update."""
    mine = [unit.chunk(world_size)[rank] for unit in units]
    optimizer = optimizer_cls(mine)
    for backward in backwards:
        under_way = []
        for number, gradient in backward:
            under_way.append((number, gradient, reduce_scatter(gradient)))
        for number, gradient, exchange in under_way:
            exchange.wait()
            mine[number].grad = gradient.chunk(world_size)[rank].div_(world_size)
        optimizer.step()
        for unit in units:
            all_gather(unit).wait()
    return optimizer


solution = zero1
given = COLLECTIVES
telling = last_update
look_for = "When it passes, look where the waits for reduce_scatter end in the timeline, and where the update begins."
targets = replace(ZERO1, shape="backward")
suspects = (
    Suspect(
        says="Too many exchanges are under way at once, and their messages mix.",
        reply="every unit's exchange ends with what was sent for that unit. Look when it ends.",
    ),
    Suspect(
        says="The update takes the gradients before the sums have arrived.",
        reply="in the timeline the waits for all six reduce_scatters come after the update.",
        guilty=True,
    ),
    Suspect(
        says="Some exchanges are never waited for.",
        reply="six were started in a step and six were waited for. Look when.",
    ),
    Suspect(
        says="The parameters travel before they are updated.",
        reply="the six all_gathers are the last thing in a step.",
    ),
)
hints = (
    "What does this rank's shard of `gradient` hold while the exchange is under way? Its own numbers, and no others.",
    "Waiting late is fine, waiting after the sum was used is not. Who uses the sum first?",
    "First start all, then for each: wait, divide, set `grad`. Then the update.",
)
wrong = (
    Wrong(
        says="this rank's own gradient divided by `world_size`",
        replace="""            under_way.append((number, gradient, reduce_scatter(gradient)))
        for number, gradient, exchange in under_way:
            exchange.wait()
            mine[number].grad = gradient.chunk(world_size)[rank].div_(world_size)
        optimizer.step()
""",
        by="""            under_way.append(reduce_scatter(gradient))
            mine[number].grad = gradient.chunk(world_size)[rank].div_(world_size)
        optimizer.step()
        for exchange in under_way:
            exchange.wait()
""",
    ),
    Wrong(
        says="this rank's own had been divided: divide after `wait()`",
        replace="""            exchange.wait()
            mine[number].grad = gradient.chunk(world_size)[rank].div_(world_size)
""",
        by="""            mine[number].grad = gradient.chunk(world_size)[rank].div_(world_size)
            exchange.wait()
""",
    ),
    Wrong(
        says="never waited for its reduce_scatter",
        replace="            exchange.wait()\n            mine[number]",
        by="            mine[number]",
    ),
    Wrong(
        says="never waited for its reduce_scatter",
        replace="""        for number, gradient, exchange in under_way:
            exchange.wait()
""",
        by="""        under_way[-1][-1].wait()
        for number, gradient, _ in under_way:
""",
    ),
    Wrong(says="the sum of all ranks' gradients, not their mean", replace=".div_(world_size)", by=""),
)
