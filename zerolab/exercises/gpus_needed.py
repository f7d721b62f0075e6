"""How many GPUs.

Write a function that finds the smallest number of GPUs on which the model state fits. It gets

* `stage`: `"ddp"`, `"zero1"`, `"zero2"` or `"zero3"`;
* `num_params`: the number of parameters, `Ψ`;
* `precision`: `"fp32"`, with 4 + 4 + 8 bytes a parameter of parameters, gradients and optimizer state, or `"bf16"`,
  with 2 + 2 + 12;
* `memory`: the bytes that one GPU has for model state.

`zero1` divides the optimizer state by the number of GPUs, `zero2` the gradients too, `zero3` the parameters too. What
is not divided must fit on each GPU. Where no number of GPUs is enough, return 0. Leave padding and the fp32 gradients
of bf16 out. Nothing runs on ranks: `check` calls your function with numbers that it draws.

Targets:

* the right number, for each of 24 drawn inputs;
* one GPU, where everything fits on one.
"""

import random
from collections.abc import Callable
from typing import Any

from zerolab.exercises import FunctionTargets, Wrong


def gpus_needed(stage: str, num_params: int, precision: str, memory: int) -> int:
    """What is whole must fit; what is left of the memory is for a part of the rest."""
    parameters, gradients, optimizer_state = (4, 4, 8) if precision == "fp32" else (2, 2, 12)
    whole = {
        "ddp": parameters + gradients + optimizer_state,
        "zero1": parameters + gradients,
        "zero2": parameters,
        "zero3": 0,
    }[stage]
    sharded = (parameters + gradients + optimizer_state - whole) * num_params
    left = memory - whole * num_params
    # Nothing left is enough only where nothing is to be divided.
    if left < 0 or (left == 0 and sharded):
        return 0
    return max(1, -(-sharded // max(left, 1)))


def draw(dice: random.Random) -> dict[str, Any]:
    """A model of up to 200 billion parameters, and a GPU that holds a small or a large part of it."""
    stage, precision = dice.choice(["ddp", "zero1", "zero2", "zero3"]), dice.choice(["fp32", "bf16"])
    gpus = dice.choice([1, 2, 3, 8, 200])
    num_params = gpus * int(10 ** dice.uniform(7, 9))
    whole = whole_bytes(stage, precision)
    # Full to the last byte on so many GPUs; a byte less; what is whole and nothing beside it.
    full = whole * num_params + (16 - whole) * num_params // gpus
    # Or 1 to 20 bytes a parameter: from too small for anything to enough for all 16.
    memory = dice.choice([full, full - 1, whole * num_params or full, *[int(num_params * dice.uniform(1, 20))] * 3])
    return {"stage": stage, "num_params": num_params, "precision": precision, "memory": memory}


def whole_bytes(stage: str, precision: str) -> int:
    """The bytes a parameter that a stage does not divide."""
    parameters, gradients = (4, 4) if precision == "fp32" else (2, 2)
    return {"ddp": 16, "zero1": parameters + gradients, "zero2": parameters, "zero3": 0}[stage]


def full_on(stage: str, gpus: range) -> Callable[..., bool]:
    """With this stage so many GPUs are full to the last byte."""

    def edge(num_params: int, memory: int, **inputs: str) -> bool:
        needed, whole = gpus_needed(num_params=num_params, memory=memory, **inputs), whole_bytes(**inputs)
        exact = (memory - whole * num_params) * needed == (16 - whole) * num_params
        return inputs["stage"] == stage and needed in gpus and exact

    return edge


edges: tuple[Callable[..., bool], ...] = (
    full_on("ddp", range(1, 2)),
    *(full_on(stage, range(2, 300)) for stage in ("zero1", "zero2", "zero3")),
    # Nearly all of it fits: whoever divides anything finds a number of GPUs.
    lambda stage, num_params, memory, **_: stage == "ddp" and 15 * num_params < memory < 16 * num_params,
    # What is whole fits, and nothing beside it; it does not fit; everything fits on one; hundreds are needed.
    lambda num_params, memory, **inputs: (
        0 < whole_bytes(**inputs) < 16 and memory == whole_bytes(**inputs) * num_params
    ),
    lambda num_params, memory, **inputs: 0 < memory < whole_bytes(**inputs) * num_params < 16 * num_params,
    lambda stage, num_params, memory, **_: stage != "ddp" and memory > 16 * num_params,
    lambda **inputs: gpus_needed(**inputs) > 64,
    lambda precision, **inputs: gpus_needed(precision=precision, **inputs) != gpus_needed(precision="fp32", **inputs),
)
solution = gpus_needed
hole = "find the smallest number of GPUs"
look_for = "Each row is one call. Where it says 0, no number of GPUs is enough: what is whole does not fit."
targets = FunctionTargets(draw=draw, edges=edges, tries=24)
hints = (
    "Split the 16 bytes a parameter into what is whole under the stage, and what is divided.",
    "The memory minus the whole bytes is left for a part of the rest; with less than nothing left, no number helps.",
    "The number of GPUs is the divided bytes over what is left, rounded up, and at least 1.",
)
wrong = (
    Wrong(
        says="divides everything, whatever the stage is",
        whole="""
def gpus_needed(stage, num_params, precision, memory):
    return max(1, -(-16 * num_params // memory))
""",
    ),
    Wrong(says="rounds down", replace="-(-sharded // max(left, 1))", by="sharded // max(left, 1)"),
    Wrong(
        says="takes one GPU more where they are exactly full",
        replace="-(-sharded // max(left, 1))",
        by="sharded // max(left, 1) + 1",
    ),
    Wrong(
        says="divides the gradients in `zero1`, too",
        replace='"zero1": parameters + gradients',
        by='"zero1": parameters',
    ),
    Wrong(
        says="leaves the gradients whole in `zero2`",
        replace='"zero2": parameters',
        by='"zero2": parameters + gradients',
    ),
    Wrong(
        says="takes the bytes of fp32 for bf16",
        replace='(4, 4, 8) if precision == "fp32" else (2, 2, 12)',
        by="(4, 4, 8)",
    ),
    Wrong(
        says="forgets that what is whole may not fit",
        replace="    if left < 0 or (left == 0 and sharded):\n        return 0\n",
        by="",
    ),
    Wrong(says="leaves the parameters whole in `zero3`", replace='"zero3": 0', by='"zero3": parameters'),
)
