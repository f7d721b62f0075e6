"""Case 15.

The cell below is what was examined: a loop over `fully_shard`, broken. Find the line, fix it, and take the `hole`
away.

* `inputs`, `targets`: of every step the rows that this rank reads, and what the model should make of them.
* `models.build("mlp-odd")` gives a small network of three layers, the same on every rank.
* The six rows of a step are cut into three micro-batches, and their gradients add up.

Return the model after the last step.

Targets, on 2, 3 and 4 ranks:

* its weights equal those of one process that reads the rows of all ranks at once, to 1e-5;
* in a step each layer's gradient is reduced once: three `reduce_scatter`.
"""

# mypy: disable-error-code="operator"
# (To mypy a model does not have what `fully_shard` adds.)

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard

from zerolab import models
from zerolab.exercises import Suspect, Wrong
from zerolab.exercises.harness.onranks import Arguments
from zerolab.exercises.harness.recorded import started
from zerolab.exercises.harness.sharded import GIVEN, STEPS, Batches, like_one_process, mean_error, trained
from zerolab.exercises.harness.targets import Judgement

if TYPE_CHECKING:
    from zerolab.recording.recording import Recording

LAYERS = PARTS = 3


def train(inputs: torch.Tensor, targets: torch.Tensor) -> nn.Module:
    """Reduces with the last micro-batch, when all of them have been added up."""
    model = models.build("mlp-odd")
    for layer in model.children():
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for rows, wanted in zip(inputs, targets, strict=True):
        optimizer.zero_grad()
        for number in range(3):
            model.set_requires_gradient_sync(number == 2)
            loss = nn.functional.mse_loss(model(rows[number::3]), wanted[number::3])
            (loss / 3).backward()
        optimizer.step()
    return model


def seen(recording: "Recording", _arguments: Arguments) -> Iterator[Judgement]:
    """How often the last step reduced; nothing of what did not train."""
    if recording.info.steps < STEPS:
        return
    made = [event.op for event in started(recording.ranks[0]) if event.step == STEPS].count("reduce_scatter")
    why = f"a step made {made} reduce_scatter; {LAYERS} are enough, one for each layer, with the last micro-batch."
    yield "reductions", why if made > LAYERS else ""


class Late:
    """The gradients of a loop that reduces with the first micro-batch: those after it come a step later."""

    def __init__(self) -> None:
        self.left: list[torch.Tensor] = []

    def __call__(self, model: nn.Module, batches: Batches) -> None:
        """The first micro-batch's, and what the step before had left."""
        first, rest = self._parts(model, batches)
        for weight, now, late in zip(
            model.parameters(), first, self.left or [torch.zeros(())] * len(first), strict=True
        ):
            weight.grad = now + late
        self.left = rest

    @staticmethod
    def _parts(model: nn.Module, batches: Batches) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        rows, wanted = (torch.stack(each) for each in zip(*batches, strict=True))
        losses = [
            nn.functional.mse_loss(model(rows[:, number::PARTS]), wanted[:, number::PARTS]) / PARTS
            for number in range(PARTS)
        ]
        weights = list(model.parameters())
        first = torch.autograd.grad(losses[0], weights)
        return list(first), list(torch.autograd.grad(torch.stack(losses[1:]).sum(), weights))


def only(model: nn.Module, batches: Batches, *, part: int) -> None:
    """The gradient of one micro-batch alone, with the weight that it has among all."""
    mean_error(model, [(rows[part::PARTS], wanted[part::PARTS]) for rows, wanted in batches])
    for weight in model.parameters():
        if weight.grad is not None:
            weight.grad /= PARTS


def one_by_one(model: nn.Module, batches: Batches) -> None:
    """Updates after each micro-batch; the gradient of the last one is left for the update of the step."""
    for part in range(PARTS):
        for weight in model.parameters():
            if part and weight.grad is not None:
                weight.data.add_(weight.grad, alpha=-0.5)
        model.zero_grad()
        only(model, batches, part=part)


solution = train
given = GIVEN
look_for = "When it passes, the reductions stand in the last of the three backward passes, just before the update."
targets = like_one_process(mean_error, seen=seen)
suspects = (
    Suspect(
        says="The losses are not divided by the number of micro-batches.",
        reply="then even a step that reduces in the right place would be too long. Look at when it reduces.",
    ),
    Suspect(
        says="Every micro-batch is reduced.",
        reply="a step has three reduce_scatter, one for each layer. If every micro-batch were reduced, it had nine.",
    ),
    Suspect(
        says="The gradients are reduced before all of them are there.",
        reply="the reductions come in the first of three backward passes. What the other two add is not sent before "
        "the next step, where it no longer fits the weights. On your cluster this looks like nothing in the profile: "
        "the right number of exchanges, a loss that falls a little slower, and worse with every micro-batch that you "
        "add.",
        guilty=True,
    ),
    Suspect(
        says="Gradients are cleared between the micro-batches.",
        reply="then the reductions could still come in the last backward pass. Here they come in the first.",
    ),
)
hints = (
    "Between which two passes must the gradients be reduced, so that the update has all of them?",
    "`set_requires_gradient_sync(True)` lets the next backward reduce. For which `number` should that be?",
    "`model.set_requires_gradient_sync(number == 2)`: with the last of three.",
)
SYNC = "            model.set_requires_gradient_sync(number == 2)\n"
LOSS = """            loss = nn.functional.mse_loss(model(rows[number::3]), wanted[number::3])
            (loss / 3).backward()
"""
wrong = (
    Wrong(
        says="reduces with the first micro-batch, and sends the others a step late",
        gives=lambda arguments, _rank: trained(arguments, Late()),
        replace="number == 2",
        by="number == 0",
    ),
    Wrong(says="3 are enough, one for each layer, with the last micro-batch", replace=SYNC, by=""),
    Wrong(
        says="never reduces: the optimizer gets no gradient, and the weights stay as they are",
        gives=lambda arguments, _rank: trained(arguments, lr=0.0),
        replace="number == 2",
        by="False",
    ),
    Wrong(
        says="uses one micro-batch of three",
        gives=lambda arguments, _rank: trained(arguments, lambda model, batches: only(model, batches, part=2)),
        replace="range(3)",
        by="range(2, 3)",
    ),
    Wrong(
        says="does not divide the losses by the number of micro-batches",
        gives=lambda arguments, _rank: trained(arguments, lr=0.5 * PARTS),
        replace="(loss / 3)",
        by="loss",
    ),
    Wrong(
        says="makes an update after each micro-batch, where a step has one",
        gives=lambda arguments, _rank: trained(arguments, one_by_one),
        replace=f"{SYNC}{LOSS}        optimizer.step()\n",
        by=f"{LOSS}            optimizer.step()\n            optimizer.zero_grad()\n",
    ),
)
