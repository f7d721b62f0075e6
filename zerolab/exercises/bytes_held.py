"""Count what is there.

The formula says what a rank should hold. Write a function that runs on every rank, makes one update, and counts what
the rank then does hold. It gets

* `model`: a small model in fp32. One of its parameters is frozen (`requires_grad` is false), and two of its layers
  share one weight;
* `rows`, `wanted`: this rank's rows of the batch, and the targets for them.

Run forward, the loss `torch.nn.functional.mse_loss(model(rows), wanted)` and backward, and make one update with
`torch.optim.Adam(model.parameters())`. Then return three numbers of bytes: of the parameters, of their gradients, and
of all tensors in the optimizer's state. `tensor.nbytes` is the size of a tensor, and `optimizer.state` has for each
parameter a dict with what Adam remembers of it. Ranks need not talk to each other: each of them counts its own.

Targets, on 2, 3, 1 and 4 ranks:

* the right numbers, to the byte, on every rank;
* no collective.

When it passes, break it: count before `optimizer.step()`, and see which of the three is wrong. This is why memory can
run out in the first update of a run, after a forward and a backward that fitted.
"""

import random
from typing import Any

import numpy as np
import torch
from torch import nn

from zerolab.exercises import RankTargets, Wrong


def bytes_held(model: nn.Module, rows: torch.Tensor, wanted: torch.Tensor) -> tuple[int, int, int]:
    """Each parameter once, a gradient only where there is one, and everything that Adam remembers."""
    optimizer = torch.optim.Adam(model.parameters())
    torch.nn.functional.mse_loss(model(rows), wanted).backward()
    optimizer.step()
    parameters = sum(parameter.nbytes for parameter in model.parameters())
    gradients = sum(parameter.grad.nbytes for parameter in model.parameters() if parameter.grad is not None)
    state = sum(kept.nbytes for of_one in optimizer.state.values() for kept in of_one.values())
    return parameters, gradients, state


def draw(dice: random.Random, world_size: int) -> list[tuple[Any, ...]]:
    """The same model on every rank, and other rows."""
    width = dice.randrange(20, 60)
    model = nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 3))
    model[2].weight = model[0].weight
    model[4].bias.requires_grad_(False)
    numbers = np.random.default_rng(dice.randrange(2**31))
    rows = numbers.standard_normal((world_size, 4, width)).astype(np.float32)
    wanted = numbers.standard_normal((world_size, 4, 3)).astype(np.float32)
    return [(model, rows[rank], wanted[rank]) for rank in range(world_size)]


def counted(arguments: list[tuple[Any, ...]]) -> tuple[int, int, int]:
    """Elements of all parameters, elements of those that are trained, and how many tensors those are."""
    parameters = list(arguments[0][0].parameters())
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    return sum(p.numel() for p in parameters), sum(p.numel() for p in trained), len(trained)


def held(arguments: list[tuple[Any, ...]], counters: int = 4, times: int = 4, moments: int = 2) -> tuple[int, int, int]:
    """The three numbers, with `counters` bytes for each of Adam's step counters and `times` for every number."""
    every, trained, tensors = counted(arguments)
    return times * every, times * trained, moments * times * trained + counters * tensors


def twice(arguments: list[tuple[Any, ...]]) -> tuple[int, int, int]:
    """The shared weight counted as often as it is named."""
    every, trained, state = held(arguments)
    return every + arguments[0][0][0].weight.nbytes, trained, state


solution = bytes_held
hole = "train one step, then count"
given = "import torch"
look_for = (
    "All ranks say the same three numbers: nothing is divided. Under **Memory** you see when each of them appears."
)
targets = RankTargets(
    draw=draw,
    wanted=lambda arguments, _rank: held(arguments),
    collectives=lambda _world_size: (),
)
hints = (
    "`model.parameters()` gives each parameter once, also one that two layers share. A frozen one has no gradient.",
    "`parameter.grad` is None where there is no gradient: `if parameter.grad is not None`.",
    "`optimizer.state.values()` gives a dict for each parameter; add up the `.nbytes` of all its values.",
)
wrong = (
    Wrong(
        says="counts before the first update, when Adam remembers nothing",
        replace="    optimizer.step()\n",
        by="",
        gives=lambda arguments, _rank: (*held(arguments)[:2], 0),
    ),
    Wrong(
        says="counts the shared weight twice",
        replace="sum(parameter.nbytes for parameter in model.parameters())",
        by="sum(weight.nbytes for weight in model.state_dict().values())",
        gives=lambda arguments, _rank: twice(arguments),
    ),
    Wrong(
        says="leaves the frozen parameter out, which takes memory, too",
        replace="sum(parameter.nbytes for parameter in model.parameters())",
        by="sum(parameter.nbytes for parameter in model.parameters() if parameter.requires_grad)",
        gives=lambda arguments, _rank: (held(arguments)[1], *held(arguments)[1:]),
    ),
    Wrong(
        says="computes all from the parameters, of which one is frozen; Adam has its step counters beside",
        whole="""
def bytes_held(model, rows, wanted):
    parameters = sum(parameter.nbytes for parameter in model.parameters())
    return parameters, parameters, 2 * parameters
""",
        gives=lambda arguments, _rank: (held(arguments)[0], held(arguments)[0], 2 * held(arguments)[0]),
    ),
    Wrong(
        says="takes every parameter for one that has a gradient",
        replace="sum(parameter.grad.nbytes for parameter in model.parameters() if parameter.grad is not None)",
        by="parameters",
        gives=lambda arguments, _rank: (held(arguments)[0], held(arguments)[0], held(arguments)[2]),
    ),
    Wrong(
        says="leaves Adam's step counters out, 4 bytes for each parameter that is trained",
        replace="sum(kept.nbytes for of_one in optimizer.state.values() for kept in of_one.values())",
        by="2 * gradients",
        gives=lambda arguments, _rank: held(arguments, counters=0),
    ),
    Wrong(
        says="counts numbers and not bytes: an fp32 number takes 4",
        whole="""
def bytes_held(model, rows, wanted):
    optimizer = torch.optim.Adam(model.parameters())
    torch.nn.functional.mse_loss(model(rows), wanted).backward()
    optimizer.step()
    parameters = sum(parameter.numel() for parameter in model.parameters())
    gradients = sum(parameter.grad.numel() for parameter in model.parameters() if parameter.grad is not None)
    return parameters, gradients, sum(kept.numel() for one in optimizer.state.values() for kept in one.values())
""",
        gives=lambda arguments, _rank: held(arguments, counters=1, times=1),
    ),
    Wrong(
        says="counts one of Adam's two moments",
        replace="for kept in of_one.values())",
        by='for kept in (of_one["exp_avg"], of_one["step"]))',
        gives=lambda arguments, _rank: held(arguments, moments=1),
    ),
    Wrong(
        says="drops the gradients before it counts them",
        replace="    optimizer.step()\n",
        by="    optimizer.step()\n    optimizer.zero_grad()\n",
        gives=lambda arguments, _rank: (held(arguments)[0], 0, held(arguments)[2]),
    ),
    Wrong(says="`bytes_held` failed", replace=" if parameter.grad is not None", by=""),
)
