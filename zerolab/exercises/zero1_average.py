"""Your own ZeRO-1.

Write the training loop of ZeRO-1 for one flat. Your function gets

* `parameters`: all parameters of a model in one tensor, the same on every rank. It has `world_size` equal shards,
  `parameters.chunk(world_size)`; rank `r` owns shard `r`.
* `gradients`: an iterator. Each step runs forward and backward on this rank's batch and gives this rank's gradient, one
  tensor as large as `parameters`. You may write into it.
* `optimizer_cls`: called with a list of tensors it gives a torch optimizer over them. `step()` updates a tensor `t`
  from `t.grad`.

`reduce_scatter(tensor)`, `all_gather(tensor)` and `all_reduce(tensor)` work in place on a tensor of `world_size`
shards. They start the exchange; call `.wait()` on what they return.

After each step every rank must have the parameters that DDP would have. Return the optimizer.

Targets, for `Ψ` parameters in fp32, on 1, 2, 3 and 4 ranks:

* the optimizer of rank `r` updates shard `r` from the **mean** of all ranks' gradients;
* after each step the parameters equal those of DDP under SGD with momentum, to 1e-6;
* with Adam a rank keeps `4Ψ + 4Ψ + 8Ψ/N` bytes (and 4 bytes for Adam's step counter). Extra memory of one shard
  (scratch) is fine, and so is a copy of your own shard. What lies outside of torch, in numpy arrays or lists,
  counts, too;
* each step is one `reduce_scatter` and one `all_gather`: `2 (N-1)/N Ψ` elements sent.
"""

import torch

from zerolab.engines.collectives import all_gather, reduce_scatter
from zerolab.exercises import Wrong
from zerolab.exercises.harness.stages import COLLECTIVES, ZERO1, Gradients, OptimizerClass


def zero1(
    parameters: torch.Tensor, gradients: Gradients, optimizer_cls: OptimizerClass, rank: int, world_size: int
) -> torch.optim.Optimizer:
    """Trains as long as there are gradients; this rank updates its own shard only."""
    # A view, not a copy: the update lands in `parameters` itself, and all_gather finds it in its place.
    mine = parameters.chunk(world_size)[rank]
    optimizer = optimizer_cls([mine])
    for gradient in gradients:
        reduce_scatter(gradient).wait()
        mine.grad = gradient.chunk(world_size)[rank].div_(world_size)
        optimizer.step()
        all_gather(parameters).wait()
    return optimizer


solution = zero1
hole = "average the gradients"
given = COLLECTIVES
look_for = (
    "When it passes, look at the picture: in every step each rank's timeline shows two bars of communication, and its "
    "optimizer state covers one shard of the flat and no more."
)
targets = ZERO1
hints = (
    "Only the owner updates a shard. Give the optimizer a shard of `parameters` itself, a view and not a copy.",
    "`reduce_scatter(gradient).wait()` leaves the sum of all gradients in this rank's shard. DDP takes the mean.",
    "After `step()` each rank has a new shard and N - 1 old ones. `all_gather(parameters).wait()` brings the new ones.",
)
wrong = (
    Wrong(says="got the sum of all ranks' gradients, not their mean", replace=".div_(world_size)", by=""),
    Wrong(says="got this rank's own gradient", replace="        reduce_scatter(gradient).wait()\n", by=""),
    Wrong(
        says="updates a copy",
        replace="mine = parameters.chunk(world_size)[rank]",
        by="mine = parameters.chunk(world_size)[rank].clone()",
    ),
    Wrong(
        says="updates shard 0",
        replace="mine = parameters.chunk(world_size)[rank]",
        by="mine = parameters.chunk(world_size)[0]",
    ),
    Wrong(
        says="the other shards are as old as before the update",
        replace="        all_gather(parameters).wait()\n",
        by="",
    ),
    Wrong(
        says="the optimizer had forgotten the steps before",
        whole="""
def zero1(parameters, gradients, optimizer_cls, rank, world_size):
    mine = parameters.chunk(world_size)[rank]
    for gradient in gradients:
        optimizer = optimizer_cls([mine])
        reduce_scatter(gradient).wait()
        mine.grad = gradient.chunk(world_size)[rank].div_(world_size)
        optimizer.step()
        all_gather(parameters).wait()
    return optimizer
""",
    ),
    Wrong(
        says="made no update before it took the next gradient",
        replace="for gradient in gradients:",
        by="for gradient in list(gradients):",
    ),
    Wrong(
        says="keeps optimizer state for the whole flat",
        whole="""
def zero1(parameters, gradients, optimizer_cls, rank, world_size):
    optimizer = optimizer_cls([parameters])
    for gradient in gradients:
        all_reduce(gradient).wait()
        parameters.grad = gradient.div_(world_size)
        optimizer.step()
    return optimizer
""",
    ),
    Wrong(
        says="holds a second copy of the whole gradient",
        replace="        reduce_scatter(gradient).wait()\n",
        by="        gradient = gradient.clone()\n        reduce_scatter(gradient).wait()\n",
    ),
    Wrong(
        says="a second copy of the whole gradient or of the parameters",
        replace="        optimizer.step()\n",
        by="        before = parameters.clone()\n        optimizer.step()\n",
    ),
    Wrong(
        says="all_reduce where a reduce_scatter is enough",
        replace="reduce_scatter(gradient).wait()",
        by="all_reduce(gradient).wait()",
    ),
)
