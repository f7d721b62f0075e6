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
    """A model of up to 100 billion parameters, and a GPU that holds a small or a large part of it."""
    num_params = int(10 ** dice.uniform(8, 11))
    return {
        "stage": dice.choice(["ddp", "zero1", "zero2", "zero3"]),
        "num_params": num_params,
        "precision": dice.choice(["fp32", "bf16"]),
        # 1 to 20 bytes a parameter: from too small for anything to enough for all 16.
        "memory": int(num_params * dice.uniform(1, 20)),
    }


solution = gpus_needed
hole = "find the smallest number of GPUs"
given = ""
look_for = "Each row is one call. Where it says 0, no number of GPUs is enough: what is whole does not fit."
targets = FunctionTargets(draw=draw, tries=24)
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
