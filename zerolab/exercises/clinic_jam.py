"""Case 8.

The cell below is what was examined: ZeRO-2 over several units, broken. Find the line, fix it, and take the `hole`
away.

* `units`: each unit's flat, of `world_size` equal shards; rank `r` owns shard `r` of every unit.
* `backwards`: one backward pass a step. It gives `(number, gradient)` from the last unit to the first.
* `name=` says what travels, so that messages of two units cannot mix.

Targets, on 2, 3, 1 and 4 ranks:

* all ranks make the same exchanges **in the same order**, and wait for each (NCCL, which tells exchanges apart by their
  order alone, knows no other way);
* after each step the parameters equal those of DDP under SGD with momentum, to 1e-6;
* with Adam a rank keeps `4Ψ + 4Ψ/N + 8Ψ/N` bytes;
* each step is one `reduce_scatter` and one `all_gather` for each unit.
"""

import torch

from zerolab.engines.collectives import all_gather, reduce_scatter
from zerolab.exercises import Suspect, Wrong
from zerolab.exercises.harness.stages import COLLECTIVES, ZERO2, Backwards, OptimizerClass
from zerolab.recording.events import Event


def zero2(
    units: list[torch.Tensor], backwards: Backwards, optimizer_cls: OptimizerClass, rank: int, world_size: int
) -> torch.optim.Optimizer:
    """Gathers the units in one order, which all ranks share."""
    mine = [unit.chunk(world_size)[rank] for unit in units]
    optimizer = optimizer_cls(mine)
    for backward in backwards:
        for number, gradient in backward:
            reduce_scatter(gradient, name=f"unit {number}").wait()
            mine[number].grad = gradient.chunk(world_size)[rank] / world_size
            del gradient
        optimizer.step()
        for number, unit in enumerate(units):
            all_gather(unit, name=f"unit {number}").wait()
    return optimizer


def telling(event: Event) -> bool:
    """Rank 0's last event: it waits."""
    return event.rank == 0


solution = zero2
given = COLLECTIVES
look_for = "When it passes, read one moment of the timeline from top to bottom: all ranks exchange the same unit."
targets = ZERO2
suspects = (
    Suspect(
        says="One rank made no all_gather, and the others wait for it.",
        reply="the report has every rank in all_gather. Nobody is missing.",
    ),
    Suspect(
        says="The exchanges of the gradients are still under way.",
        reply="every reduce_scatter was waited for before the update, and the update is there on every rank.",
    ),
    Suspect(
        says="Every rank waits for another unit than its neighbours.",
        reply="all are in all_gather, each of another unit. A unit comes only when all ranks ask for it.",
        guilty=True,
    ),
    Suspect(
        says="A rank has more units than the others.",
        reply="all ranks have the same six units in the picture.",
    ),
)
hints = (
    "Which unit does rank 0 ask for first after the update? And rank 1?",
    "An exchange needs all ranks. Two ranks that wait for each other's later exchange wait for ever.",
    "The order of exchanges must not depend on `rank`: `for number, unit in enumerate(units)`.",
)
wrong = (
    Wrong(
        says="`zero2` hangs",
        replace="        for number, unit in enumerate(units):\n            all_gather(unit, name",
        by="""        for offset in range(len(units)):
            number = (offset + rank) % len(units)  # spreads the load: not all ranks want the same unit at once
            all_gather(units[number], name""",
    ),
    Wrong(
        says="`zero2` hangs",
        replace="        for number, unit in enumerate(units):\n",
        by="""        order = list(enumerate(units))
        for number, unit in order if rank % 2 == 0 else reversed(order):
""",
    ),
    Wrong(
        says="never waited for its all_gather",
        replace='            all_gather(unit, name=f"unit {number}").wait()\n',
        by="""            number = (number + rank) % len(units)
            all_gather(units[number], name=f"unit {number}")
""",
    ),
    Wrong(
        says="in another order",
        replace="""        for number, unit in enumerate(units):
            all_gather(unit, name=f"unit {number}").wait()
""",
        by="""        order = [(number + rank) % len(units) for number in range(len(units))]
        for exchange in [all_gather(units[number], name=f"unit {number}") for number in order]:
            exchange.wait()
""",
    ),
    Wrong(
        says="the other shards are as old as before the update",
        replace="""        for number, unit in enumerate(units):
            all_gather(unit""",
        by="""        for number, unit in enumerate(units[:world_size]):
            all_gather(unit""",
    ),
)
