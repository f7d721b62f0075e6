"""The lowest stage that fits.

A higher stage holds less and may send more, so you take the lowest that fits. Write a function that finds it. It gets

* `num_params`: the number of parameters, `Ψ`, a multiple of `gpus`;
* `gpus`: the number of GPUs, `N`;
* `memory`: the bytes of one GPU;
* `activations`: the bytes of activations and buffers on each GPU. No stage divides them.

Return the first of `"ddp"`, `"zero1"`, `"zero2"`, `"zero3"` whose model state in fp32 under Adam, `4Ψ + 4Ψ + 8Ψ` where
nothing is divided, fits beside the activations, and `"none"` if none of them does. Exactly full is still a fit. Nothing
runs on ranks: `check` calls your function with numbers that it draws.

Targets:

* the right stage, for each of 32 drawn inputs;
* no stage above the first that fits.
"""

import random
from collections.abc import Callable
from typing import Any

from zerolab.exercises import FunctionTargets, Wrong


def lowest_stage(num_params: int, gpus: int, memory: int, activations: int) -> str:
    """From the first stage to the last: what is whole, and a part of the rest."""
    for stage, whole in {"ddp": 16, "zero1": 8, "zero2": 4, "zero3": 0}.items():
        state = whole * num_params + (16 - whole) * num_params // gpus
        if state + activations <= memory:
            return stage
    return "none"


def draw(dice: random.Random) -> dict[str, Any]:
    """Cards for which every stage is the answer now and then, some of them full to the last byte."""
    gpus = dice.choice([1, 2, 4, 8, 16])
    num_params = gpus * dice.randrange(10**8, 10**9)
    activations = dice.randrange(10**9, 10**10)
    whole = dice.choice([16, 8, 4, 0])
    state = whole * num_params + (16 - whole) * num_params // gpus
    # A card made for one stage, exactly full, a little larger or a little smaller: the boundary is what is tested.
    memory = activations + int(state * dice.choice([1, 1.05, 0.98]))
    return {"num_params": num_params, "gpus": gpus, "memory": memory, "activations": activations}


def fits_first(stage: str, room: int) -> Callable[..., bool]:
    """On several GPUs `stage` is the answer, and would no longer be with `room` bytes less; 0 for however many."""

    def edge(num_params: int, gpus: int, memory: int, activations: int) -> bool:
        tighter = lowest_stage(num_params, gpus, memory - room, activations)
        return (
            gpus > 1 and lowest_stage(num_params, gpus, memory, activations) == stage and (tighter != stage or not room)
        )

    return edge


edges = (
    *(fits_first(stage, room=1) for stage in ("ddp", "zero1", "zero2", "zero3")),  # full to the last byte
    *(fits_first(stage, room=0) for stage in ("ddp", "zero1", "zero2", "zero3", "none")),
    lambda num_params, gpus, memory, activations: gpus == 1 and memory < activations + 16 * num_params,
    lambda num_params, gpus, memory, activations: gpus == 1 and memory >= activations + 16 * num_params,
)
solution = lowest_stage
hole = "try the stages in turn"
look_for = "Each row is one call. Where it says `none`, more GPUs or fewer rows would have to help."
targets = FunctionTargets(draw=draw, edges=edges, tries=32)
hints = (
    "Of the 16 bytes a parameter `ddp` keeps 16 whole, `zero1` 8, `zero2` 4, `zero3` none. The rest is divided by `N`.",
    "Go through the stages in this order and return the first whose state and activations are within the memory.",
    "`state = whole * num_params + (16 - whole) * num_params // gpus`, and it fits if `state + activations <= memory`.",
)
wrong = (
    Wrong(says="forgets the activations", replace="state + activations <= memory", by="state <= memory"),
    Wrong(
        says="divides the activations by the number of GPUs, which no stage does",
        replace="state + activations <= memory",
        by="state + activations // gpus <= memory",
    ),
    Wrong(
        says="takes the memory of all GPUs together, although each has to hold its own",
        replace="<= memory",
        by="<= memory * gpus",
    ),
    Wrong(
        says="takes the stage that holds least, whether a lower one fits or not",
        replace='{"ddp": 16, "zero1": 8, "zero2": 4, "zero3": 0}',
        by='{"zero3": 0}',
    ),
    Wrong(says="divides the gradients under `zero1`, too", replace='"zero1": 8', by='"zero1": 4'),
    Wrong(says="refuses a GPU that is exactly full", replace="<= memory", by="< memory"),
    Wrong(
        says="divides everything under every stage above `ddp`",
        replace='"zero1": 8, "zero2": 4',
        by='"zero1": 0, "zero2": 0',
    ),
    Wrong(says="says `zero3` where not even that fits", replace='return "none"', by='return "zero3"'),
)
