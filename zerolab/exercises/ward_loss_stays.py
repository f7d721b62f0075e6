"""Case 9.

The cell below is what was examined: a loop over `fully_shard`, broken. Find the line, fix it, and take the `hole`
away.

* `inputs`, `targets`: of every step the rows that this rank reads, and what the model should make of them.
* `models.build("mlp-odd")` gives a small network, the same on every rank.

Return the model after the last step.

Targets, on 2, 3 and 4 ranks:

* its weights equal those of one process that reads the rows of all ranks at once, to 1e-5.
"""

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard

from zerolab import models
from zerolab.exercises import Suspect, Wrong
from zerolab.exercises.harness.sharded import GIVEN, like_one_process, mean_error, trained, whole
from zerolab.exercises.harness.stages import last_update


def train(inputs: torch.Tensor, targets: torch.Tensor) -> nn.Module:
    """Shards first: the optimizer must get the parameters that there are afterwards."""
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


ORDER = """    for layer in model.children():
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
"""

solution = train
given = GIVEN
look_for = "When it passes, the table says `equal` for every rank: an update has reached the model."
targets = like_one_process(mean_error)
telling = last_update
suspects = (
    Suspect(
        says="The gradients are never reduced.",
        reply="every backward pass has its reduce_scatter, one for each layer.",
    ),
    Suspect(
        says="The optimizer updates tensors that the model does not use any more.",
        reply="gradients are there, the update runs, and the weights are those of the beginning to the last bit. On "
        "your cluster this looks like a loss curve that is flat from the first step, with gradient norms that are not "
        "zero, and a job that needs more memory than its sharding explains.",
        guilty=True,
    ),
    Suspect(
        says="The learning rate is too small.",
        reply="then the weights would have moved a little. They have not moved at all.",
    ),
    Suspect(
        says="The model is gathered again after the update and overwritten with old values.",
        reply="what is gathered is the ranks' own shards, and those have not changed.",
    ),
)
hints = (
    "Compare the weights at the end with those of a new model. What does that say about the update?",
    "`fully_shard` puts new parameters into the module. Which ones did the optimizer get?",
    "First `fully_shard` on the layers and on the model, then the optimizer.",
)
UNMOVED = "ends with the weights that it began with: the optimizer has parameters that the model no longer has"
wrong = (
    Wrong(
        says=UNMOVED,
        replace=ORDER,
        by="""    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for layer in model.children():
        fully_shard(layer)
    fully_shard(model)
""",
        gives=lambda _arguments, _rank: whole(models.build("mlp-odd")),
    ),
    Wrong(
        says="trains every rank by itself",
        gives=lambda arguments, rank: trained([arguments[rank]]),
        replace=ORDER,
        by="    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)\n",
    ),
    Wrong(
        says="adds up the gradients of all steps",
        gives=lambda arguments, _rank: trained(arguments, forgets=False),
        replace="        optimizer.zero_grad()\n",
        by="",
    ),
    Wrong(says="returned nothing", replace="    return model", by="    model.eval()"),
    Wrong(
        says="numbers, the first",
        replace="    return model",
        by="    return torch.cat([weight.to_local().flatten() for weight in model.parameters()])",
    ),
    Wrong(
        says="takes steps N times as long; fully_shard has taken the mean over ranks already",
        gives=lambda arguments, _rank: trained(arguments, lr=0.5 * len(arguments)),
        replace="lr=0.5",
        by="lr=0.5 * dist.get_world_size()",
    ),
)
