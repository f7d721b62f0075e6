"""Bytes of model state.

Write a function that counts the bytes of model state that one rank holds when nothing is divided. It gets

* `num_params`: the number of parameters, `Ψ`;
* `moments`: how many numbers the optimizer remembers for each parameter: 0 for plain SGD, 1 with momentum, 2 for Adam;
* `precision`: `"fp32"`, or `"mixed"`: parameters and gradients in bf16, and an fp32 copy of the parameters that the
  optimizer updates, because small updates would be lost in bf16. What the optimizer remembers is fp32 in both.

An fp32 number takes 4 bytes, a bf16 number 2. Nothing runs on ranks here: `check` calls your function with numbers that
it draws, and `attempt.play()` shows them in a table.

Targets:

* the right number of bytes, for each of twelve drawn inputs;
* Adam in fp32 and in mixed precision both come to `16Ψ` bytes.
"""

import random
from collections.abc import Callable
from itertools import product
from typing import Any

from zerolab.exercises import FunctionTargets, Wrong


def state_bytes(num_params: int, moments: int, precision: str) -> int:
    """Parameters, gradients, and what the optimizer keeps."""
    if precision == "fp32":
        return num_params * (4 + 4 + 4 * moments)
    return num_params * (2 + 2 + 4 + 4 * moments)


def draw(dice: random.Random) -> dict[str, Any]:
    """A model of a thousand to a trillion parameters, one of three optimizers, one of two precisions."""
    # Up to a trillion, where a float would lose bytes and an int does not.
    num_params = int(10 ** dice.uniform(3, 12))
    return {"num_params": num_params, "moments": dice.randrange(3), "precision": dice.choice(["fp32", "mixed"])}


def with_moments(wanted: tuple[int, str]) -> Callable[..., bool]:
    """This many moments in this precision."""
    return lambda moments, precision, **_: (moments, precision) == wanted


edges = (*map(with_moments, product(range(3), ("fp32", "mixed"))),)
solution = state_bytes
hole = "count the bytes"
look_for = "Each row is one call: the inputs, what your function gave, and what is right."
targets = FunctionTargets(draw=draw, edges=edges, forbids=("zerolab.theory:state_bytes",))
hints = (
    "Count for one parameter first: its own bytes, those of its gradient, those of each number that is remembered.",
    "In fp32 each of these takes 4 bytes. Plain SGD remembers nothing.",
    "In mixed precision: 2 for the parameter, 2 for its gradient, 4 for the fp32 copy, 4 for each number remembered.",
)
wrong = (
    Wrong(
        says="counts no gradients",
        whole="""
def state_bytes(num_params, moments, precision):
    if precision == "fp32":
        return num_params * (4 + 4 * moments)
    return num_params * (2 + 4 + 4 * moments)
""",
    ),
    Wrong(
        says="forgets the fp32 copy of the parameters in mixed precision",
        replace="(2 + 2 + 4 + 4 * moments)",
        by="(2 + 2 + 4 * moments)",
    ),
    Wrong(
        says="keeps the optimizer's numbers in bf16 in mixed precision",
        replace="(2 + 2 + 4 + 4 * moments)",
        by="(2 + 2 + 4 + 2 * moments)",
    ),
    Wrong(
        says="takes mixed precision for half of everything",
        replace="num_params * (2 + 2 + 4 + 4 * moments)",
        by="num_params * (4 + 4 + 4 * moments) // 2",
    ),
    Wrong(
        says="counts 16 bytes a parameter for every optimizer",
        whole="""
def state_bytes(num_params, moments, precision):
    return 16 * num_params
""",
    ),
    Wrong(
        says="counts the parameters only",
        whole="""
def state_bytes(num_params, moments, precision):
    return num_params * (4 if precision == "fp32" else 2)
""",
    ),
    Wrong(
        says="forgets what the optimizer remembers",
        whole="""
def state_bytes(num_params, moments, precision):
    return num_params * 8
""",
    ),
)
