"""Your own ZeRO-3, third rung: update.

Write the loop around the two. Your function gets the units **whole**, the same on every rank; `forward(units, inputs)`
and `backward(units, output_gradient)`, which are yours once they have passed, and ours until then; and

* `batches`: an iterator. Each step gives `(inputs, loss_gradient)`; `loss_gradient(outputs)` is the gradient of the
  loss with respect to the outputs, with which backward begins;
* `optimizer_cls`: of a list of tensors it gives a torch optimizer over them. `step()` updates a tensor `t` from
  `t.grad`. Plain tensors will do.

Give each unit its `mine`, a copy of this rank's shard of `unit.parameters`, and release the unit. Train as long as
there are batches. Return the optimizer.

What ours does in a step, as recorded:

    forward 0, forward 1, ..., forward 5, backward 5, ..., backward 1, backward 0, update

Targets, for `Ψ` parameters in fp32, on 1, 2, 3 and 4 ranks:

* the optimizer of rank `r` updates its copy of shard `r` of each unit from the **mean** of all ranks' gradients;
* after each step these shards equal those of DDP under SGD with momentum, to 1e-6;
* with Adam a rank keeps `16Ψ/N` bytes, and never whole parameters of more than two units;
* each step is two `all_gather` and one `reduce_scatter` for each unit: `3 (N-1)/N Ψ` elements sent. The update costs
  none, because forward gathers what is new.
"""

from collections.abc import Callable

import torch
import torch.distributed as dist

from zerolab.exercises import Wrong
from zerolab.exercises.harness.stages import COLLECTIVES, TRAIN, Batches, OptimizerClass
from zerolab.exercises.harness.unit import Unit


def zero3(
    units: list[Unit],
    batches: Batches,
    optimizer_cls: OptimizerClass,
    forward: Callable[[list[Unit], torch.Tensor], torch.Tensor],
    backward: Callable[[list[Unit], torch.Tensor], None],
) -> torch.optim.Optimizer:
    """Cuts the model up once; from there on each rank updates what it owns."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    for unit in units:
        # A clone: the flat is about to lose its memory, and a view would lose it with it.
        unit.mine = unit.parameters.chunk(world_size)[rank].clone()
        unit.release()
    optimizer = optimizer_cls([unit.mine for unit in units])
    for inputs, loss_gradient in batches:
        outputs = forward(units, inputs)
        backward(units, loss_gradient(outputs))
        optimizer.step()
    return optimizer


solution = zero3
hole = "cut the units up, then train"
given = f"import torch.distributed as dist\n\n{COLLECTIVES}"
look_for = (
    "When it passes, this is ZeRO-3. In the picture one unit after the other becomes whole and goes again, forwards "
    "and then backwards, and each rank keeps its own shard of every unit. With your forward and backward it is yours."
)
targets = TRAIN
hints = (
    "Before the loop: for each unit a clone of your shard, then `unit.release()`; the optimizer is over the clones.",
    "In the loop: forward, then backward from `loss_gradient(outputs)`, then `optimizer.step()`. Nothing is sent.",
    "`unit.mine = unit.parameters.chunk(world_size)[rank].clone()`; `optimizer_cls([unit.mine for unit in units])`.",
)
wrong = (
    Wrong(
        says="the optimizer's tensor for unit 0 lies in the flat, which is released",
        replace="[rank].clone()",
        by="[rank]",
    ),
    Wrong(says="too many units were whole at a time", replace="        unit.release()\n", by=""),
    Wrong(
        says="the optimizer had forgotten the steps before. Make it once, before the loop",
        replace="        optimizer.step()\n",
        by="        optimizer = optimizer_cls([unit.mine for unit in units])\n        optimizer.step()\n",
    ),
    Wrong(says="made no update", replace="        optimizer.step()\n", by=""),
    Wrong(
        says="the optimizer updates whole flats, and that of unit 0 is released",
        replace="[unit.mine for unit in units]",
        by="[unit.parameters for unit in units]",
    ),
    Wrong(says="this rank owns shard", replace="[rank].clone()", by="[(rank + 1) % world_size].clone()"),
    Wrong(
        says="was allocated again while its all_gather was still under way",
        replace="        optimizer.step()\n",
        by="""        optimizer.step()
        for unit in units:  # as in ZeRO-1, where everybody needs what is new
            unit.allocate()
            all_gather(unit.parameters)
""",
    ),
    Wrong(
        says="made 36 all_gather, 12 reduce_scatter; the target is 24 all_gather",
        replace="        optimizer.step()\n",
        by="""        optimizer.step()
        for unit in units:  # as in ZeRO-1, where everybody needs what is new
            unit.allocate()
            unit.parameters.chunk(world_size)[rank].copy_(unit.mine)
            all_gather(unit.parameters).wait()
            unit.release()
""",
    ),
    Wrong(says="differs from the mean over all ranks", replace="loss_gradient(outputs)", by="outputs"),
)
