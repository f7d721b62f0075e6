"""Your own data parallelism.

Write the training loop of `DDP` for one flat. Your function gets

* `parameters`: all parameters of a model in one tensor, the same on every rank;
* `gradients`: an iterator, for `for gradient in gradients:`. Each turn is one training step: it runs forward and
  backward on this rank's batch, with the parameters as they are then, and gives this rank's gradient, one tensor as
  large as `parameters`. You may write into it, and should, for there is no memory for a second gradient;
* `optimizer_cls`: called with a list of tensors it gives a torch optimizer over them. `step()` updates a tensor `t`
  from `t.grad`;
* `rank` and `world_size`.

`all_reduce(tensor)` adds the tensors of all ranks up, in place, on every rank. It starts the exchange; call `.wait()`
on what it returns.

All ranks begin with the same parameters, and after each step they must again. Return the optimizer.

Targets, for `Ψ` parameters in fp32, on 1, 2, 3 and 4 ranks:

* the optimizer of every rank updates all parameters from the **mean** of all ranks' gradients;
* after each step the parameters equal those of one process that saw all batches, to 1e-6;
* with Adam a rank keeps `4Ψ + 4Ψ + 8Ψ` bytes (and 4 bytes for Adam's step counter);
* each step is one `all_reduce`: `2 (N-1)/N Ψ` elements sent.
"""

import torch

from zerolab.engines.collectives import all_reduce
from zerolab.exercises import TrainingTargets, Wrong
from zerolab.exercises.harness.stages import Gradients, OptimizerClass


def my_ddp(
    parameters: torch.Tensor,
    gradients: Gradients,
    optimizer_cls: OptimizerClass,
    rank: int,  # noqa: ARG001  (all ranks do the same)
    world_size: int,
) -> torch.optim.Optimizer:
    """Every rank makes the same update, from the mean of what all of them saw."""
    optimizer = optimizer_cls([parameters])
    for gradient in gradients:
        all_reduce(gradient).wait()
        # In place, because `gradient / world_size` would be a second whole gradient.
        parameters.grad = gradient.div_(world_size)
        optimizer.step()
    return optimizer


solution = my_ddp
hole = "average the gradients, then update"
given = "from zerolab.engines.collectives import all_reduce"
look_for = "When it passes, all rows of the picture are alike: each rank holds everything, whole."
targets = TrainingTargets(stage="ddp", returns="the optimizer", shards=(), collectives=("all_reduce",))
hints = (
    "The optimizer is made once, before the loop, over `[parameters]`. It keeps its memory from step to step.",
    "`all_reduce(gradient).wait()` leaves the sum over all ranks in `gradient`. A mean is the sum divided by how many.",
    "Put the mean into `parameters.grad`, then call `optimizer.step()`.",
)
wrong = (
    Wrong(says="got the sum of all ranks' gradients, not their mean", replace=".div_(world_size)", by=""),
    Wrong(
        says="got this rank's own gradient: nothing came from the others",
        whole="""
def my_ddp(parameters, gradients, optimizer_cls, rank, world_size):
    optimizer = optimizer_cls([parameters])
    for gradient in gradients:
        parameters.grad = gradient
        optimizer.step()
    return optimizer
""",
    ),
    Wrong(
        says="got this rank's own gradient: nothing came from the others",
        whole="""
def my_ddp(parameters, gradients, optimizer_cls, rank, world_size):
    optimizer = optimizer_cls([parameters])
    for gradient in gradients:
        parameters.grad = gradient
        optimizer.step()
        all_reduce(parameters).wait()
        parameters.div_(world_size)
    return optimizer
""",
    ),
    Wrong(says="never waited for its all_reduce", replace="all_reduce(gradient).wait()", by="all_reduce(gradient)"),
    Wrong(
        says="the mean divided by `world_size` once too often",
        replace="gradient.div_(world_size)",
        by="gradient.div_(world_size).div_(world_size)",
    ),
    Wrong(
        says="the optimizer had forgotten the steps before",
        whole="""
def my_ddp(parameters, gradients, optimizer_cls, rank, world_size):
    for gradient in gradients:
        optimizer = optimizer_cls([parameters])
        all_reduce(gradient).wait()
        parameters.grad = gradient.div_(world_size)
        optimizer.step()
    return optimizer
""",
    ),
    Wrong(says="made no update", replace="        optimizer.step()\n", by=""),
    Wrong(
        says="updates a copy",
        replace="    optimizer = optimizer_cls([parameters])\n",
        by="    parameters = parameters.clone()\n    optimizer = optimizer_cls([parameters])\n",
    ),
    Wrong(
        says="holds a second copy of the whole gradient",
        replace="parameters.grad = gradient.div_(world_size)",
        by="parameters.grad = gradient / world_size",
    ),
)
