"""Case 3.

The cell below is what was examined: ZeRO-2 over several units, broken. It also collects something for a plot of the
gradients. Find the line, fix it, and take the `hole` away.

* `units`: each unit's flat, of `world_size` equal shards; rank `r` owns shard `r` of every unit.
* `backwards`: one backward pass a step. It gives `(number, gradient)` from the last unit to the first; each `gradient`
  is a new tensor that nobody keeps but you.

What you keep for the plot is not checked: one number for each gradient, its norm, is enough. What stays in memory is.

Targets, on 2, 3, 1 and 4 ranks:

* after each step the parameters equal those of DDP under SGD, to 1e-6;
* with Adam a rank keeps `4Ψ + 4Ψ/N + 8Ψ/N` bytes, and never whole gradients of more than two units;
* each step is one `reduce_scatter` and one `all_gather` for each unit.
"""

import torch

from zerolab.engines.collectives import all_gather, reduce_scatter
from zerolab.exercises import Suspect, Wrong
from zerolab.exercises.harness.stages import COLLECTIVES, ZERO2, Backwards, OptimizerClass, last_update


def zero2(
    units: list[torch.Tensor], backwards: Backwards, optimizer_cls: OptimizerClass, rank: int, world_size: int
) -> torch.optim.Optimizer:
    """Keeps of each gradient its own shard and, for a plot, one number."""
    mine = [unit.chunk(world_size)[rank] for unit in units]
    optimizer = optimizer_cls(mine)
    plot = []
    for backward in backwards:
        for number, gradient in backward:
            plot.append(gradient.norm().item())
            reduce_scatter(gradient).wait()
            mine[number].grad = gradient.chunk(world_size)[rank] / world_size
            del gradient
        optimizer.step()
        for unit in units:
            all_gather(unit).wait()
    return optimizer


solution = zero2
given = COLLECTIVES
telling = last_update
look_for = "When it passes, press **Memory**: the gradients rise and fall, and step 2 ends as high as step 1 did."
targets = ZERO2
suspects = (
    Suspect(
        says="Adam's memory: it exists only from the first update on.",
        reply="Adam's bytes appear once, in step 1, and stay. What grows in step 2 again has another colour.",
    ),
    Suspect(
        says="Gradients of units that are done are still in memory, those of the step before, too.",
        reply="the gradients rise with each unit, in both steps, and fall at none.",
        guilty=True,
    ),
    Suspect(
        says="The buffers of the exchanges are not given back.",
        reply="communication falls to zero after each wait.",
    ),
    Suspect(
        says="The activations stay after backward.",
        reply="they rise in forward and are gone when backward ends.",
    ),
)
hints = (
    "Which line keeps something beyond the step?",
    "A list that has a tensor in it keeps all of it in memory. A view of a tensor does so, too.",
    "`gradient.norm().item()` is a number, and keeps nothing.",
)
wrong = (
    Wrong(
        says="whole gradients of what is done are still there",
        replace="plot.append(gradient.norm().item())",
        by="plot.append(gradient)",
    ),
    Wrong(
        says="whole gradients of what is done are still there",
        replace="plot.append(gradient.norm().item())",
        by="plot.append(gradient.detach())",
    ),
    Wrong(
        says="a second copy of the whole gradient",
        replace="plot.append(gradient.norm().item())",
        by="plot.append(gradient.clone())",
    ),
    Wrong(
        says="whole gradients of what is done are still there",
        replace="plot.append(gradient.norm().item())",
        by="plot.append(gradient[:1])",
    ),
    Wrong(
        says="whole gradients of what is done are still there",
        replace="""    plot = []
    for backward in backwards:
        for number, gradient in backward:
            plot.append(gradient.norm().item())
""",
        by="""    for backward in backwards:
        plot = []
        for number, gradient in backward:
            plot.append(gradient)
""",
    ),
)
