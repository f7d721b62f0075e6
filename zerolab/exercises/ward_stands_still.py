"""Case 13.

The cell below is what was examined: a loop over `fully_shard`, broken. Find the line, fix it, and take the `hole`
away.

* `inputs`, `targets`: of every step the rows that this rank reads, and what the model should make of them. In one step
  one rank has a row that is not a number, and its loss comes out as `nan`.
* `models.build("mlp-odd")` gives a small network, the same on every rank.

A step in which the loss of **any** rank is `nan` is left out by all of them: no rank makes an update. Return the model
after the last step.

Targets, on 4, 2 and 3 ranks:

* it ends;
* its weights equal those of one process that reads the rows of all ranks at once and leaves out the same step, to 1e-5.
"""

import random
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

from zerolab import models
from zerolab.exercises import Suspect, Wrong
from zerolab.exercises.harness import sharded
from zerolab.exercises.harness.plain import Words
from zerolab.exercises.harness.sharded import GIVEN, STEPS, Batches, like_one_process, trained, whole
from zerolab.recording.events import Event

SPOILED = Words("weights that are nan")


def train(inputs: torch.Tensor, targets: torch.Tensor) -> nn.Module:
    """A sum with a nan in it is nan on every rank: all of them leave the step out, or none."""
    model = models.build("mlp-odd")
    for layer in model.children():
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for rows, wanted in zip(inputs, targets, strict=True):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(rows), wanted)
        total = loss.detach().clone()
        dist.all_reduce(total)
        if total.isnan():
            continue
        loss.backward()
        optimizer.step()
    return model


FORWARD = "        loss = nn.functional.mse_loss(model(rows), wanted)\n"
TOGETHER = """        total = loss.detach().clone()
        dist.all_reduce(total)
        if total.isnan():
            continue
"""


def draw(dice: random.Random, world_size: int) -> list[tuple[Any, ...]]:
    """As for the others, but a row of rank 1 is nan: not in the first step, and not in the last."""
    drawn = sharded.draw(dice, world_size)
    rows, _ = drawn[1]
    rows[dice.randrange(1, STEPS - 1), 0] = np.nan
    return drawn


def without_it(model: nn.Module, batches: Batches, *, others: bool = False) -> None:
    """No gradient where a loss is nan; with `others` that of the other ranks, with zeros for the one that has it."""
    good = [batch for batch in batches if not batch[0].isnan().any()]
    if others or len(good) == len(batches):
        rows, wanted = (torch.cat(each) for each in zip(*good, strict=True))
        (nn.functional.mse_loss(model(rows), wanted) * len(good) / len(batches)).backward()


def or_spoiled(model: Any) -> Any:
    """All weights, or that some are nan: no number equals that."""
    weights = whole(model)
    return SPOILED if isinstance(weights, torch.Tensor) and weights.isnan().any() else weights


def telling(event: Event) -> bool:
    """Rank 1's last event: it waits."""
    return event.rank == 1


solution = train
given = GIVEN
look_for = "When it passes, each step has one more all-reduce, and in one step no rank has a backward pass."
targets = like_one_process(without_it, draw=draw, reads=or_spoiled, world_sizes=(4, 2, 3))
suspects = (
    Suspect(
        says="Rank 1 is slower than the others, and would have come.",
        reply="it is not behind, it is ahead: it has begun a forward pass while the others are in a backward pass.",
    ),
    Suspect(
        says="Rank 1 left out a backward pass, and went on to its next batch.",
        reply="its timeline has two forward passes in a row, and the others have a backward pass there. Something "
        "that only rank 1 saw made it decide alone. On your cluster this looks like a run that stands still after "
        "hours or days, at another step each time, and never on clean data. The flight recorder has a reduce-scatter "
        "on all ranks but one, and on that one an all-gather under the same number. If the sizes differ as well, a "
        "rank may die of it instead.",
        guilty=True,
    ),
    Suspect(
        says="The last layer has a different size on rank 1.",
        reply="then the first step would have failed, which exchanged every layer. All ranks made that update.",
    ),
    Suspect(
        says="Rank 1 has raised an error in its backward pass.",
        reply="a rank that raises is reported with its error. This one waits in an exchange, in forward.",
    ),
)
hints = (
    "In the picture, what does rank 1 do where the others go backward? Which line lets a rank do that?",
    "Only the rank with the bad row sees a loss of nan. What must the others be told, and before which line?",
    "Sum the losses with `dist.all_reduce` on a detached copy. A sum with a nan in it is nan, on every rank.",
)
wrong = (
    Wrong(says="`train` hangs", replace=TOGETHER, by="        if loss.isnan():\n            continue\n"),
    Wrong(
        says="makes the step with the nan in it",
        gives=lambda _arguments, _rank: SPOILED,
        replace="        if total.isnan():\n            continue\n",
        by="",
    ),
    Wrong(
        says="makes the step with the other ranks' rows alone",
        gives=lambda arguments, _rank: trained(arguments, partial(without_it, others=True)),
        replace=FORWARD + TOGETHER,
        by="""        bad = rows.isnan().any()
        loss = nn.functional.mse_loss(model(rows.nan_to_num()), wanted) * (not bad)
""",
    ),
    Wrong(
        says="`train` hangs",
        replace=TOGETHER,
        by="""        if loss.isnan():
            dist.all_reduce(loss.detach().clone())
            continue
""",
    ),
    Wrong(says="right is", replace="            continue\n", by="            break\n"),
    Wrong(
        says="makes the step with the nan in it",
        gives=lambda _arguments, _rank: SPOILED,
        replace="        dist.all_reduce(total)\n        if total.isnan():\n",
        by="        bad = total.isnan().float()\n        dist.all_reduce(bad, op=dist.ReduceOp.MIN)\n        if bad:\n",
    ),
)
