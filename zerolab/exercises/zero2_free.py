"""Your own ZeRO-2.

Write the training loop of ZeRO-2 over several units. Your function gets

* `units`: a list with one tensor for each unit, its flat: all parameters of the unit end to end. Each has `world_size`
  equal shards, `unit.chunk(world_size)`; rank `r` owns shard `r` of every unit.
* `backwards`: an iterator with one backward pass a step. A backward pass is an iterator, too: it gives
  `(number, gradient)` from the last unit to the first, each as soon as autograd has it. `gradient` is as large as
  `units[number]`, new, and kept by nobody but you.
* `optimizer_cls`: called with a list of tensors it gives a torch optimizer over them. `step()` updates a tensor `t`
  from `t.grad`.

`reduce_scatter(tensor)`, `all_gather(tensor)` and `all_reduce(tensor)` work in place on a tensor of `world_size`
shards. They start the exchange; call `.wait()` on what they return.

After each step every rank must have the parameters that DDP would have. Return the optimizer.

Targets, for `Ψ` parameters in fp32, on 1, 2, 3 and 4 ranks:

* the optimizer of rank `r` updates shard `r` of each unit from the **mean** of all ranks' gradients;
* after each step the parameters equal those of DDP under SGD with momentum, to 1e-6;
* with Adam a rank keeps `4Ψ + 4Ψ/N + 8Ψ/N` bytes at the update: no variable may hold the whole gradient of a unit then.
  A copy of your own shards is free, and so is extra memory of one shard of the largest unit (scratch);
* it never holds whole gradients of more than two units;
* each step is one `reduce_scatter` and one `all_gather` for each unit: `2 (N-1)/N Ψ` elements sent.
"""

import torch

from zerolab.engines.collectives import all_gather, reduce_scatter
from zerolab.exercises import Wrong
from zerolab.exercises.harness.stages import COLLECTIVES, ZERO2, Backwards, OptimizerClass


def zero2(
    units: list[torch.Tensor], backwards: Backwards, optimizer_cls: OptimizerClass, rank: int, world_size: int
) -> torch.optim.Optimizer:
    """Trains as long as there are backwards; whole gradients go as soon as they are reduced."""
    mine = [unit.chunk(world_size)[rank] for unit in units]
    optimizer = optimizer_cls(mine)
    for backward in backwards:
        for number, gradient in backward:
            reduce_scatter(gradient).wait()
            # A new tensor, because a view would keep all of `gradient` in memory; without `del` the loop keeps it, too.
            mine[number].grad = gradient.chunk(world_size)[rank] / world_size
            del gradient
        optimizer.step()
        for unit in units:
            all_gather(unit).wait()
    return optimizer


solution = zero2
hole = "reduce each unit's gradient as it comes, keep your shard, let the rest go"
given = COLLECTIVES
look_for = (
    "When it passes, look at the gradients in the picture: during backward one unit's bar is whole, and of the units "
    "before it each rank has one shard."
)
targets = ZERO2
hints = (
    "It is ZeRO-1 for each unit: reduce_scatter when its gradient comes, all_gather after `step()`.",
    (
        "A shard that is a view, such as `gradient.chunk(world_size)[rank]`, keeps the whole gradient in memory. "
        "Dividing with `/` makes a new tensor; `div_` does not."
    ),
    "After a `for` loop its variables still exist: the last gradient stays in memory until `del gradient`.",
)
wrong = (
    Wrong(says="got the sum of all ranks' gradients, not their mean", replace=" / world_size", by=".clone()"),
    Wrong(says="got this rank's own gradient", replace="            reduce_scatter(gradient).wait()\n", by=""),
    Wrong(
        says="it keeps gradients for the whole flat",
        replace="gradient.chunk(world_size)[rank] / world_size",
        by="gradient.chunk(world_size)[rank].div_(world_size)",
    ),
    Wrong(says="too many units were whole at a time", replace="in backward:", by="in list(backward):"),
    Wrong(
        says="all_reduce where a reduce_scatter is enough",
        replace="reduce_scatter(gradient).wait()",
        by="all_reduce(gradient).wait()",
    ),
    Wrong(
        says="the other shards are as old as before the update",
        replace="        for unit in units:\n            all_gather(unit).wait()\n",
        by="",
    ),
    Wrong(
        says="updates a copy",
        replace="unit.chunk(world_size)[rank] for unit in units",
        by="unit.chunk(world_size)[rank].clone() for unit in units",
    ),
    Wrong(says="more than its own shard is still there", replace="            del gradient\n", by=""),
)
