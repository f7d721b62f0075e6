"""Case 12.

The cell below is what was examined: a loop over `fully_shard`, broken. Find the line, fix it, and take the `hole`
away.

* `inputs`, `targets`: of every step the rows that this rank reads, and what the model should make of them.
* `models.build("mlp-odd")` gives a small network, the same on every rank.

Return on rank 0 all weights end to end, as they are to be written into one file. What the others return is not looked
at.

Targets, on 2, 3 and 4 ranks:

* it ends;
* what rank 0 returns equals the weights of one process that reads the rows of all ranks at once, to 1e-5.
"""

from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

from zerolab import models
from zerolab.exercises import Suspect, Wrong
from zerolab.exercises.harness.plain import Words
from zerolab.exercises.harness.sharded import GIVEN, like_one_process, mean_error, trained, whole
from zerolab.recording.events import Event


def train(inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor | None:
    """All ranks bring the weights together, and rank 0 keeps them."""
    model = models.build("mlp-odd")
    for layer in model.children():
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for rows, wanted in zip(inputs, targets, strict=True):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(rows), wanted).backward()
        optimizer.step()
    weights = [weight.full_tensor().detach().flatten() for weight in model.parameters()]
    saved = torch.cat(weights) if dist.get_rank() == 0 else None
    dist.barrier()  # nobody leaves before the file is written
    return saved


SAVED = """    weights = [weight.full_tensor().detach().flatten() for weight in model.parameters()]
    saved = torch.cat(weights) if dist.get_rank() == 0 else None
"""


def of_rank_0(value: Any) -> Any:
    """What rank 0 returned; of another rank nothing."""
    if dist.get_rank() > 0:
        return None
    # Not gathered, as the other ranks need not have one.
    return Words("a model where its weights end to end are asked for") if isinstance(value, nn.Module) else value


def on_rank_0(weights: torch.Tensor, rank: int) -> torch.Tensor | None:
    """The weights that are wanted of a rank."""
    return weights if rank == 0 else None


def own_rows(weights: torch.Tensor, world_size: int) -> torch.Tensor:
    """Of all weights end to end those that rank 0 keeps: the first rows of each."""
    shapes = [weight.shape for weight in models.build("mlp-odd").parameters()]
    pieces = weights.split([shape.numel() for shape in shapes])
    return torch.cat(
        [piece.view(shape).chunk(world_size)[0].flatten() for piece, shape in zip(pieces, shapes, strict=True)]
    )


def telling(event: Event) -> bool:
    """Rank 0's last event: it waits."""
    return event.rank == 0


solution = train
given = GIVEN
look_for = "When it passes, the last gathers of the timeline stand on all ranks."
targets = replace(
    like_one_process(mean_error),
    wanted=lambda arguments, rank: on_rank_0(trained(arguments), rank),
    reads=of_rank_0,
)
suspects = (
    Suspect(
        says="Rank 0 has failed, and the others wait for it.",
        reply="the report has a line for rank 0, too: it waits, as they do.",
    ),
    Suspect(
        says="Something is sent that is too large for the timeout.",
        reply="the whole model is 1,372 bytes, and all four steps gathered it in milliseconds.",
    ),
    Suspect(
        says="One rank asks for what it can only get if all ranks ask.",
        reply="rank 0 gathers, and the others are past that, at the barrier. Each waits for the rest. On your cluster "
        "this looks like a run that was fine up to its first checkpoint, or its last. After ten minutes NCCL's "
        'watchdog ends it with "Watchdog caught collective operation timeout": an all-gather on rank 0, and an '
        "all-reduce, which a barrier is, on the others. The flight recorder has both under the same number. An "
        "evaluation on rank 0 alone does the same.",
        guilty=True,
    ),
    Suspect(
        says="A rank has read fewer batches, and has left the loop before the others.",
        reply="every rank has made four updates, and as many exchanges before the last one.",
    ),
)
hints = (
    "In the report, which rank is in another collective than the others? Which line asked for it?",
    "`full_tensor()` is an all-gather. Which ranks must call it?",
    "Call `full_tensor()` on every rank, outside of the `if`, and keep the result on rank 0 only.",
)
wrong = (
    Wrong(
        says="`train` hangs",
        replace=SAVED,
        by="""    saved = None
    if dist.get_rank() == 0:
        weights = [weight.full_tensor().detach().flatten() for weight in model.parameters()]
        saved = torch.cat(weights)
""",
    ),
    Wrong(
        says="saves the rows of rank 0 alone: `to_local()` is a shard",
        replace="weight.full_tensor()",
        by="weight.to_local()",
        gives=lambda arguments, rank: on_rank_0(own_rows(trained(arguments), len(arguments)), rank),
    ),
    Wrong(
        says="`train` hangs",
        replace="    dist.barrier()  # nobody leaves before the file is written\n",
        by="    if dist.get_rank() > 0:\n        dist.barrier()  # nobody leaves before the file is written\n",
    ),
    Wrong(
        says="saves before it has trained",
        gives=lambda _arguments, rank: on_rank_0(whole(models.build("mlp-odd")), rank),
        replace="    weights = [weight.full_tensor().detach().flatten() for weight in model.parameters()]\n",
        by="""    model = models.build("mlp-odd")
    weights = [weight.detach().flatten() for weight in model.parameters()]
""",
    ),
    Wrong(
        says="trains every rank by itself: without `fully_shard` nobody takes a mean",
        gives=lambda arguments, rank: on_rank_0(trained(arguments[:1]), rank),
        whole="""
def train(inputs, targets):
    model = models.build("mlp-odd")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for rows, wanted in zip(inputs, targets, strict=True):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(rows), wanted).backward()
        optimizer.step()
    dist.barrier()
    return torch.cat([weight.detach().flatten() for weight in model.parameters()])
""",
    ),
    Wrong(says="`train` returned nothing on rank 0", replace="    return saved\n", by=""),
)
