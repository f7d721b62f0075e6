"""What to shard, and when.

Shard a model with torch's `fully_shard`, so that it trains as before and no rank ever has much of it. Your function
gets

* `model`: a `first` layer, equal `blocks`, and a `last` layer, the same on every rank.

`fully_shard(module)` makes one unit of all parameters of the module that are in no unit yet. A unit is gathered before
its module's forward and released after it, and again in backward; the root, which is the outermost, stays from forward
to backward. Return the model; it is then trained for three steps.

Targets, on 2, 3 and 4 ranks:

* a rank keeps its rows of **every** parameter, and nothing else, at the update;
* beside them it never has more than two whole blocks, and `first` and `last`;
* a step makes at most three exchanges for each block, and six for the rest;
* the weights equal those of one process that reads the rows of all ranks at once, to 1e-5.
"""

import copy
import random
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.fsdp import fully_shard

from zerolab.exercises import Wrong
from zerolab.exercises.harness.onranks import Arguments, RankTargets
from zerolab.exercises.harness.plain import Words
from zerolab.exercises.harness.recorded import started
from zerolab.exercises.harness.sharded import STACK_STEPS as STEPS
from zerolab.exercises.harness.sharded import Batches, Stack, all_have, judge_kept, mean_error, no_model, whole
from zerolab.exercises.harness.targets import Judgement

if TYPE_CHECKING:
    from zerolab.recording.recording import Recording


def shard(model: Stack) -> Stack:
    """A unit for each block, and the whole model last, which takes what is left."""
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    return model


def draw(dice: random.Random, world_size: int) -> Arguments:
    """The same model for each rank, with rows of its own."""
    model = Stack(dice.randrange(20, 33), dice.randrange(4, 7), dice.randrange(2**31))
    return [(model.reading(rank),) for rank in range(world_size)]


def trained(model: Any) -> Any:
    """All weights after three steps, which all ranks must take."""
    is_model = isinstance(model, Stack)
    if not (all_have(is_model) and is_model):
        return Words("a model, which not all ranks returned") if is_model else no_model(model)
    _train(model, [[batch] for batch in model.batches])
    return whole(model)


def alone(arguments: Arguments, _rank: int) -> Any:
    """The weights that one process ends with."""
    models = [copy.deepcopy(model) for (model,) in arguments]
    _train(models[0], [list(batches) for batches in zip(*(model.batches for model in models), strict=True)])
    return whole(models[0])


def _train(model: Stack, steps: list[Batches]) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batches in steps:
        optimizer.zero_grad()
        mean_error(model, batches)
        optimizer.step()


def seen(recording: "Recording", arguments: Arguments) -> Iterator[Judgement]:
    """What the ranks kept, had at their highest moment, and exchanged; nothing of what did not train."""
    if recording.info.steps < STEPS:
        return
    model: Stack = arguments[0][0]
    rows, most_whole = model.held(recording.world_size)
    made = [event.op for event in started(recording.ranks[0]) if event.step == STEPS]
    gathers, reductions = made.count("all_gather"), made.count("reduce_scatter")
    yield "shards", judge_kept(recording.state["parameters"], rows, reductions)
    held, allowed = recording.highest("parameters"), rows + most_whole
    yield "peak", _explain_peak(held, allowed, gathers, reductions) if held > allowed else ""
    most = 3 * len(model.blocks) + 6
    why = (
        f"a step made {gathers} all_gather and {reductions} reduce_scatter; {most} together are enough. Units smaller "
        "than a block save next to nothing, and each exchange has its latency."
    )
    yield "exchanges", why if gathers + reductions > most else ""


def _explain_peak(held: int, allowed: int, gathers: int, reductions: int) -> str:
    why = f"a rank held up to {held:,} bytes of parameters; {allowed:,} are enough. "
    if reductions == 1:
        return f"{why}The whole model is one unit, and is whole while any of it is used. Make a unit of each block."
    if gathers == reductions:
        return (
            f"{why}Units stay whole from forward to backward, as a root does: let `reshard_after_forward` be, and let "
            "the model be the only root."
        )
    return f"{why}More than two blocks were whole at a time. Make a unit of each block, and of each by itself."


solution = shard
hole = "shard the blocks, and the rest"
given = "from torch.distributed.fsdp import fully_shard"
look_for = "When it passes, each block becomes whole for its forward, goes, and comes back for its backward."
targets = RankTargets(
    draw=draw,
    wanted=alone,
    reads=trained,
    seen=seen,
    tolerance=1e-5,
    world_sizes=(2, 3, 4),
    allows=("torch.distributed.fsdp",),
)
hints = (
    "Without a unit for each block all parameters are gathered at once. Which modules should be units?",
    "`fully_shard(block)` for each block. `first` and `last` are in none: who shards them?",
    "After the blocks, not before them, `fully_shard(model)`: it takes what is left.",
)
BLOCKS = """    for block in model.blocks:
        fully_shard(block)
"""
wrong = (
    Wrong(says="The whole model is one unit", replace=BLOCKS, by=""),
    Wrong(says="What is in no unit stays whole on every rank", replace="    fully_shard(model)\n", by=""),
    Wrong(
        says="Units stay whole from forward to backward, as a root does: let `reshard_after_forward` be",
        replace="fully_shard(block)",
        by="fully_shard(block, reshard_after_forward=False)",
    ),
    Wrong(
        says="Units smaller than a block save next to nothing, and each exchange has its latency",
        replace="        fully_shard(block)\n",
        by="        fully_shard(block.up)\n        fully_shard(block.down)\n",
    ),
    Wrong(
        says="More than two blocks were whole at a time",
        replace=BLOCKS,
        by="    fully_shard(list(model.blocks[:3]))\n    for block in model.blocks[3:]:\n        fully_shard(block)\n",
    ),
    Wrong(
        says="`fully_shard` met a parameter that is in a unit already",
        replace=BLOCKS + "    fully_shard(model)\n",
        by="    fully_shard(model)\n" + BLOCKS,
    ),
    Wrong(says="Nothing is sharded", replace=BLOCKS + "    fully_shard(model)\n", by=""),
    Wrong(
        says="`shard` returned nothing on rank 0. Is a `return` missing?",
        replace="    return model",
        by="    model.train()",
    ),
)
