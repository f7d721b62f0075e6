"""Case 2.

The cell below is what was examined: ZeRO-1 over one flat, broken. Find the line, fix it, and take the `hole` away.

* `parameters`: the flat, of `world_size` equal shards; rank `r` owns shard `r`.
* `gradients`: each step brings this rank's gradient, as large as the flat.
* `optimizer_cls`: gives a torch optimizer over a list of tensors.

Return the optimizer. After each step all ranks must have the same parameters again, and they must be those of DDP.

Targets, on 2, 3, 1 and 4 ranks:

* after each step the parameters equal those of DDP under SGD with momentum, to 1e-6, on every rank;
* with Adam a rank keeps `4Ψ + 4Ψ + 8Ψ/N` bytes;
* each step is one `reduce_scatter` and one `all_gather`: fixing it costs no traffic.
"""

import torch

from zerolab.engines.collectives import all_gather, reduce_scatter
from zerolab.exercises import Suspect, Wrong
from zerolab.exercises.harness.stages import COLLECTIVES, ZERO1, Gradients, OptimizerClass, last_update


def zero1(
    parameters: torch.Tensor, gradients: Gradients, optimizer_cls: OptimizerClass, rank: int, world_size: int
) -> torch.optim.Optimizer:
    """Updates this rank's shard, and only then fetches the others'."""
    mine = parameters.chunk(world_size)[rank]
    optimizer = optimizer_cls([mine])
    for gradient in gradients:
        reduce_scatter(gradient).wait()
        mine.grad = gradient.chunk(world_size)[rank].div_(world_size)
        optimizer.step()
        all_gather(parameters).wait()
    return optimizer


solution = zero1
given = COLLECTIVES
telling = last_update
look_for = "When it passes, look at the end of each step in the timeline: which bar comes last now?"
targets = ZERO1
suspects = (
    Suspect(
        says="A rank updates a shard that another rank owns.",
        reply="in the picture every rank's optimizer state covers its own shard, in its own colour.",
    ),
    Suspect(
        says="The parameters travel before they are updated.",
        reply="in each step the bar of all_gather ends before the update begins. What arrives is as old as before.",
        guilty=True,
    ),
    Suspect(
        says="The gradients are not brought together.",
        reply="every step has its reduce_scatter, and each rank waits for it before it updates.",
    ),
    Suspect(
        says="The parameters are never brought together.",
        reply="every step has its all_gather, of the whole flat. Look at when.",
    ),
)
hints = (
    "What does a rank have of the shards that it does not own, when a step is over?",
    "`all_gather` sends what lies in a shard at that moment. When is the new value there?",
    "The order of a step is: reduce_scatter, update, all_gather.",
)
wrong = (
    Wrong(
        says="the other shards are as old as before the update",
        replace="""        optimizer.step()
        all_gather(parameters).wait()
""",
        by="""        all_gather(parameters).wait()
        optimizer.step()
""",
    ),
    Wrong(
        says="a step made reduce_scatter, all_gather, all_gather",
        replace="        optimizer.step()\n",
        by="        all_gather(parameters).wait()\n        optimizer.step()\n",
    ),
    Wrong(
        says="the mean of one new copy and of old ones",
        replace="        all_gather(parameters).wait()\n",
        by="        all_reduce(parameters).wait()\n        parameters.div_(world_size)\n",
    ),
    Wrong(
        says="the other shards are as old as before the update",
        replace="all_gather(parameters)",
        by="all_gather(parameters.clone())",
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
)
