"""What the exercises of a stage share: what their loops get, what a stage must reach."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import torch

from zerolab.exercises.harness.rungs import RUNGS
from zerolab.exercises.harness.training import TrainingTargets
from zerolab.recording.events import Event

# What a loop gets; `trials` says of each shape what comes in it.
Gradients = Iterator[torch.Tensor]
GradientsWithRows = Iterator[tuple[torch.Tensor, list[int]]]
Backwards = Iterator[Iterator[tuple[int, torch.Tensor]]]
Batches = Iterator[tuple[torch.Tensor, Callable[[torch.Tensor], torch.Tensor]]]
OptimizerClass = Callable[[list[torch.Tensor]], torch.optim.Optimizer]

ZERO1 = TrainingTargets(
    stage="zero1",
    returns="the optimizer",
    shards=("optimizer_state",),
    collectives=("reduce_scatter", "all_gather"),
)
ZERO2 = TrainingTargets(
    stage="zero2",
    shape="backward",
    returns="the optimizer",
    shards=("gradients", "optimizer_state"),
    collectives=("reduce_scatter", "all_gather"),
)
ZERO3 = TrainingTargets(
    stage="zero3",
    shape="units",
    returns="the optimizer",
    shards=("parameters", "gradients", "optimizer_state"),
    collectives=("all_gather", "reduce_scatter", "all_gather"),
)
FORWARD, BACKWARD, TRAIN = (replace(ZERO3, shape="rung", rung=rung) for rung in RUNGS)

COLLECTIVES = "from zerolab.engines.collectives import all_gather, all_reduce, reduce_scatter"


def last_update(event: Event) -> bool:
    """Rank 0's update in the last step."""
    return event.rank == 0 and event.kind == "optimizer" and event.step == 2
