"""The largest model that fits.

How many parameters can a device train when nothing is sharded? Write a function of

* `gigabytes`: what is printed on the box. A GB is 1,000,000,000 bytes;
* `reserved_gib`: what must stay free for activations, buffers and the driver, as tools report it. A GiB is
  `2 ** 30` bytes, 7 % more than a GB;
* `bytes_a_parameter`: of model state, such as 16 for Adam.

It returns the largest whole number of parameters whose model state fits into what is left, and 0 where nothing is left.
Nothing runs on ranks here: `check` calls your function with numbers that it draws.

Targets:

* the right number, to the last parameter, for each of sixteen drawn inputs;
* a whole number (`int`), rounded down: one parameter more must not fit.
"""

import random
from typing import Any

from zerolab.exercises import FunctionTargets, Wrong


def largest_model(gigabytes: int, reserved_gib: int, bytes_a_parameter: int) -> int:
    """What is left, divided by what a parameter takes."""
    left = gigabytes * 10**9 - reserved_gib * 2**30
    return max(left, 0) // bytes_a_parameter


def draw(dice: random.Random) -> dict[str, Any]:
    """A device of 8 to 192 GB, now and then with more reserved than there is."""
    gigabytes = dice.choice([8, 16, 24, 40, 48, 80, 141, 192])
    # Where nothing is left, a subtraction that goes below zero must not become a number of parameters.
    reserved = dice.randrange(1, 20) if dice.random() < 0.85 else gigabytes + 1
    return {"gigabytes": gigabytes, "reserved_gib": reserved, "bytes_a_parameter": dice.choice([6, 12, 16, 18, 20])}


solution = largest_model
hole = "count the parameters that fit"
given = ""
look_for = "Each row is one device. An A100 of 80 GB with Adam's 16 bytes ends below five billion parameters."
# No tolerance: "one parameter more must not fit" is about a single parameter.
targets = FunctionTargets(draw=draw, tolerance=0.0, tries=16)
hints = (
    "Turn both sizes into bytes first: `10**9` for a GB, `2**30` for a GiB.",
    "What is left is the first minus the second. It may be negative; then nothing fits.",
    "`//` divides whole numbers and rounds down.",
)
wrong = (
    Wrong(
        says="takes a GiB for a GB",
        replace="reserved_gib * 2**30",
        by="reserved_gib * 10**9",
    ),
    Wrong(
        says="takes a GB for a GiB",
        replace="gigabytes * 10**9",
        by="gigabytes * 2**30",
    ),
    Wrong(
        says="uses what was reserved",
        replace=" - reserved_gib * 2**30",
        by="",
    ),
    Wrong(
        says="finds a negative number of parameters where nothing is left",
        replace="max(left, 0)",
        by="left",
    ),
    Wrong(
        says="rounds up: the last parameter does not fit",
        replace="max(left, 0) // bytes_a_parameter",
        by="-(-max(left, 0) // bytes_a_parameter)",
    ),
    Wrong(
        says="gives a fraction of a parameter",
        replace="max(left, 0) // bytes_a_parameter",
        by="max(left, 0) / bytes_a_parameter",
    ),
    Wrong(
        says="counts 4 bytes a parameter: it forgets gradients and optimizer state",
        replace="// bytes_a_parameter",
        by="// 4",
    ),
)
