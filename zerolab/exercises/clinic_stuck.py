"""Case 1.

The cell below is what was examined: ZeRO-1 over several units, broken. Find the line, fix it, and take the `hole`
away.

* `units`: each unit's flat, of `world_size` equal shards; rank `r` owns shard `r` of every unit.
* `backwards`: one backward pass a step. It gives `(number, gradient)` from the last unit to the first. **A unit that
  this rank's batch did not pass through gives nothing**: there is no gradient of it, on this rank, in this step. As in
  DDP that counts as a gradient of zeros.
* `name=` says what travels, so that messages of two units cannot mix.

Targets, on 2, 3, 1 and 4 ranks:

* every rank makes the same exchanges, whatever its batch passed through, and nobody waits for ever;
* after each step the parameters equal those of DDP under SGD, to 1e-6;
* with Adam a rank keeps `4Ψ + 4Ψ + 8Ψ/N` bytes;
* each step is one `reduce_scatter` and one `all_gather` for each unit.
"""

from dataclasses import replace

import torch

from zerolab.engines.collectives import all_gather, reduce_scatter
from zerolab.exercises import Suspect, Wrong
from zerolab.exercises.harness.stages import COLLECTIVES, ZERO1, Backwards, OptimizerClass
from zerolab.recording.events import Event


def zero1(
    units: list[torch.Tensor], backwards: Backwards, optimizer_cls: OptimizerClass, rank: int, world_size: int
) -> torch.optim.Optimizer:
    """Reduces every unit on every rank: where there is no gradient, zeros take its place."""
    mine = [unit.chunk(world_size)[rank] for unit in units]
    optimizer = optimizer_cls(mine)
    for backward in backwards:
        there = dict(backward)
        for number in reversed(range(len(units))):
            gradient = there.get(number, torch.zeros_like(units[number]))
            reduce_scatter(gradient, name=f"unit {number}").wait()
            mine[number].grad = gradient.chunk(world_size)[rank].div_(world_size)
        optimizer.step()
        for number, unit in enumerate(units):
            all_gather(unit, name=f"unit {number}").wait()
    return optimizer


def telling(event: Event) -> bool:
    """Rank 1 begins the step that never ends: from here it can be played."""
    return event.rank == 1 and event.op == "forward" and event.step == 2 and event.unit == "0"


solution = zero1
given = f"import torch\n\n{COLLECTIVES}"
look_for = (
    "When it passes, all timelines show the same exchanges in step 2, although each rank left out a different unit."
)
targets = replace(
    ZERO1,
    shape="backward",
    batches="skipping",
    scratch_shards=24,  # zeros for all units, on up to four ranks: they may be there before the gradients are
)
suspects = (
    Suspect(
        says="The model is too large: the exchange takes longer than the timeout.",
        reply="step 1 made the same exchanges, of the same sizes, in milliseconds.",
    ),
    Suspect(
        says="Rank 1 has ended, and the others wait for a dead process.",
        reply="the report says what rank 1 is doing: it waits, too.",
    ),
    Suspect(
        says="Rank 1 left out one exchange, and is one unit ahead of the others.",
        reply="all wait in reduce_scatter, but rank 1's timeline lacks a unit that the others have. Nobody will send "
        "for it.",
        guilty=True,
    ),
    Suspect(
        says="Two ranks own the same shard of a unit.",
        reply="in step 1 every shard of every unit has one owner.",
    ),
)
hints = (
    "On rank 1 the loop over `backward` runs once less. Which exchange does it then not make?",
    "How many exchanges there are must not depend on the batch: loop over all units, from the last to the first.",
    "`dict(backward)` has the gradients that there are. For the others reduce `torch.zeros_like(units[number])`.",
)
wrong = (
    Wrong(
        says="`zero1` hangs",
        replace="""        there = dict(backward)
        for number in reversed(range(len(units))):
            gradient = there.get(number, torch.zeros_like(units[number]))
""",
        by="        for number, gradient in backward:\n",
    ),
    Wrong(
        says="`zero1` hangs",
        replace="""        for number in reversed(range(len(units))):
            gradient = there.get(number, torch.zeros_like(units[number]))
""",
        by="""        missing = [number for number in range(len(units)) if number not in there]
        for number in [*there, *missing]:
            gradient = there.get(number, torch.zeros_like(units[number]))
""",
    ),
    Wrong(
        says="never waited for its reduce_scatter",
        replace="""        there = dict(backward)
        for number in reversed(range(len(units))):
            gradient = there.get(number, torch.zeros_like(units[number]))
            reduce_scatter(gradient, name=f"unit {number}").wait()
""",
        by="""        for number, gradient in backward:
            reduce_scatter(gradient, name=f"unit {number}")
""",
    ),
    Wrong(
        says="the mean gradient of the step before: set `grad` in each step",
        replace="            mine[number].grad = ",
        by="            if number in there:\n                mine[number].grad = ",
    ),
    Wrong(
        says="all_reduce where a reduce_scatter is enough", replace="reduce_scatter(gradient", by="all_reduce(gradient"
    ),
)
