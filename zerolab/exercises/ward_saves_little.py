"""Case 14.

The cell below is what was examined: a loop over `fully_shard`, broken. Find the line, fix it, and take the `hole`
away.

* `inputs`, `targets`: of every step the rows that this rank reads, and what the model should make of them.
* `models.build("mlp-odd")` gives a small network of three layers, the same on every rank.

Return the model after the last step.

Targets, on 2, 3 and 4 ranks:

* its weights equal those of one process that reads the rows of all ranks at once, to 1e-5;
* a rank keeps its own rows of each layer, and beside them never holds more than the two largest layers whole.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard

from zerolab import models
from zerolab.exercises import Suspect, Wrong
from zerolab.exercises.harness.onranks import Arguments
from zerolab.exercises.harness.recorded import started
from zerolab.exercises.harness.sharded import GIVEN, STEPS, judge_kept, like_one_process, mean_error, trained, whole
from zerolab.exercises.harness.targets import Judgement
from zerolab.recording.events import Event

if TYPE_CHECKING:
    from zerolab.recording.recording import Recording

FP32 = 4


def train(inputs: torch.Tensor, targets: torch.Tensor) -> nn.Module:
    """Calls the model: what `fully_shard` has hung on it runs with the call, and not with `forward`."""
    model = models.build("mlp-odd")
    for layer in model.children():
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for rows, wanted in zip(inputs, targets, strict=True):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(rows), wanted).backward()
        optimizer.step()
    return model


def seen(recording: "Recording", _arguments: Arguments) -> Iterator[Judgement]:
    """What a rank kept, and had at the highest moment of the last step; nothing of what did not train."""
    if recording.info.steps < STEPS:
        return
    size = recording.world_size
    layers = [
        FP32 * sum(weight.chunk(size)[0].numel() for weight in layer.parameters())
        for layer in models.build("mlp-odd").children()
    ]
    made = [event.op for event in started(recording.ranks[0]) if event.step == STEPS]
    gathers, reductions = made.count("all_gather"), made.count("reduce_scatter")
    yield "shards", judge_kept(recording.state["parameters"], sum(layers), reductions)
    # A layer that is whole is N times what a rank has of it.
    held, allowed = recording.highest("parameters"), sum(layers) + size * sum(sorted(layers)[-2:])
    why = f"a rank held up to {held:,} bytes of parameters; {allowed:,} are enough."
    yield "peak", f"{why} {explained(gathers, reductions)}" if held > allowed else ""


def explained(gathers: int, reductions: int) -> str:
    """Why more than two layers were whole at a time, from the exchanges of a step."""
    if reductions == 1:
        return "The whole model is one unit. Make a unit of each layer."
    if gathers == reductions:
        return "Each layer was gathered once and kept until backward: it took itself for the root."
    return "Layers were gathered before it was their turn, or released too late."


CALL = "model(rows)"


def telling(event: Event) -> bool:
    """Rank 0's last forward, where it is over."""
    return event.rank == 0 and event.op == "forward" and event.step == STEPS


solution = train
given = GIVEN
look_for = "When it passes, in forward each layer becomes whole and goes again, and backward gathers it once more."
targets = like_one_process(mean_error, seen=seen)
suspects = (
    Suspect(
        says="The layers are no units: the whole model travels as one.",
        reply="a step has three all_gather, one for each layer. One unit would have one.",
    ),
    Suspect(
        says="No layer is released after its forward: each takes itself for the root.",
        reply="at the end of forward all three are whole, and backward gathers nothing. The root of a model stays "
        "whole until backward, and a layer is the root if nothing above it was **called**. On your cluster this looks "
        "like a peak that hardly falls as you add GPUs, with half the all-gathers in the profile and none of them "
        'ahead of time. If the root has weights of its own, it is an error instead: "got mixed torch.Tensor and '
        'DTensor".',
        guilty=True,
    ),
    Suspect(
        says="The optimizer holds whole parameters.",
        reply="at the update a rank has its quarter and nothing else: 448 bytes of parameters.",
    ),
    Suspect(
        says="The gradients are not sharded.",
        reply="each layer has its reduce_scatter, and at the update a rank has 448 bytes of gradients.",
    ),
)
hints = (
    "Which module should hold the others' hooks together, and does anything of it run?",
    "`fully_shard` works by hooks, and hooks run when a module is called. Which call is missing?",
    "`model(rows)`, not `model.forward(rows)`.",
)
wrong = (
    Wrong(says="it took itself for the root", replace=CALL, by="model.forward(rows)"),
    Wrong(says="it took itself for the root", replace="    fully_shard(model)\n", by=""),
    Wrong(
        says="it took itself for the root",
        replace="fully_shard(layer)",
        by="fully_shard(layer, reshard_after_forward=False)",
    ),
    Wrong(
        says="The whole model is one unit",
        replace="    for layer in model.children():\n        fully_shard(layer)\n",
        by="",
    ),
    Wrong(
        says="Layers were gathered before it was their turn, or released too late",
        replace="        nn.functional.mse_loss(model(rows), wanted).backward()\n",
        by="""        outputs = model.forward(rows)
        for layer in model.children():
            layer.reshard()
        nn.functional.mse_loss(outputs, wanted).backward()
""",
    ),
    Wrong(
        says="adds up the gradients of all steps",
        gives=lambda arguments, _rank: trained(arguments, forgets=False),
        replace="        optimizer.zero_grad()\n",
        by="",
    ),
    Wrong(
        says="ends with the weights that it began with",
        gives=lambda _arguments, _rank: whole(models.build("mlp-odd")),
        replace="        optimizer.step()\n",
        by="",
    ),
)
