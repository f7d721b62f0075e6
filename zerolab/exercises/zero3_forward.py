"""Your own ZeRO-3, first rung: forward.

A rank keeps `unit.mine`, its shard of each unit, and no more: when your function begins, every unit is released. Run
the units one after the other, each whole only while it is used, and return the outputs of the last.

* `unit.parameters` is the unit's flat, of `dist.get_world_size()` equal shards, by rank. `unit.allocate()` takes memory
  for it, with nothing in particular in it; `unit.release()` gives it back.
* `all_gather(tensor).wait()` sends the shard at this rank's place in the tensor to all, and fills the other places.
* `unit.forward(inputs)` gives the unit's outputs; the flat must be whole.

What ours does, as recorded, for the first two of six units (`gather` is `allocate`, `mine` and `all_gather` together):

    gather 0, forward 0, release 0, gather 1, forward 1, release 1, ...

Targets, on 1, 2, 3 and 4 ranks; backward and update are ours here:

* the outputs are those of the whole model, to 1e-6;
* a rank never has the whole parameters of more than two units;
* one `all_gather` for each unit: `(N-1)/N Ψ` elements sent.
"""

import torch
import torch.distributed as dist

from zerolab.engines.collectives import all_gather
from zerolab.exercises import Wrong
from zerolab.exercises.harness.stages import COLLECTIVES, FORWARD
from zerolab.exercises.harness.unit import Unit


def forward(units: list[Unit], inputs: torch.Tensor) -> torch.Tensor:
    """A unit is whole only while it is used."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    outputs = inputs
    for unit in units:
        unit.allocate()
        # Fresh memory has nothing of this rank in it, and all_gather sends what stands at this rank's place.
        unit.parameters.chunk(world_size)[rank].copy_(unit.mine)
        all_gather(unit.parameters).wait()
        outputs = unit.forward(outputs)
        unit.release()
    return outputs


solution = forward
hole = "gather each unit, use it, release it"
given = f"import torch.distributed as dist\n\n{COLLECTIVES}"
look_for = (
    "When it passes, the player has yours beside ours. Follow the parameters through forward: one unit after the other "
    "becomes whole on every rank, and goes again."
)
targets = FORWARD
hints = (
    "One loop over `units`. Within it: make the unit whole, `outputs = unit.forward(outputs)`, release it.",
    (
        "Whole means: `unit.allocate()`, then your shard to its place, then `all_gather(unit.parameters).wait()`. "
        "After `allocate()` nothing of yours is in the flat."
    ),
    "Your place is `unit.parameters.chunk(world_size)[rank]`, and `.copy_(unit.mine)` fills it.",
)
wrong = (
    Wrong(
        says="`all_gather` sends what stands at this rank's place in the flat, so copy `unit.mine` there before",
        replace="        unit.parameters.chunk(world_size)[rank].copy_(unit.mine)\n",
        by="",
    ),
    Wrong(says="too many units were whole at a time", replace="        unit.release()\n", by=""),
    Wrong(
        says="used after release",
        replace="        outputs = unit.forward(outputs)\n        unit.release()\n",
        by="        unit.release()\n        outputs = unit.forward(outputs)\n",
    ),
    Wrong(
        says="while its all_gather was still under way: call wait() on every all_gather",
        replace="all_gather(unit.parameters).wait()",
        by="all_gather(unit.parameters)",
    ),
    Wrong(says="`forward` returned nothing", replace="    return outputs\n", by=""),
    Wrong(
        says="too many units were whole at a time",
        whole="""
def forward(units, inputs):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    for unit in units:
        unit.allocate()
        unit.parameters.chunk(world_size)[rank].copy_(unit.mine)
        all_gather(unit.parameters).wait()
    for unit in units:
        inputs = unit.forward(inputs)
        unit.release()
    return inputs
""",
    ),
    Wrong(says="Call `unit.allocate()` before anything is written", replace="        unit.allocate()\n", by=""),
)
