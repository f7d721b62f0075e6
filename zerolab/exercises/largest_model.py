"""The largest model that fits.

How many parameters can a device train when nothing is divided? Write a function of

* `mebibytes`: what `nvidia-smi` says that the device has, such as 81,559 for an H100 that is sold as 80 GB. A MiB is
  `2 ** 20` bytes;
* `reserved_gb`: what must stay free for activations, buffers and the driver. A GB is 1,000,000,000 bytes;
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


def largest_model(mebibytes: int, reserved_gb: int, bytes_a_parameter: int) -> int:
    """What is left, divided by what a parameter takes."""
    left = mebibytes * 2**20 - reserved_gb * 10**9
    return max(left, 0) // bytes_a_parameter


def draw(dice: random.Random) -> dict[str, Any]:
    """A device as it is sold with 8 to 180 GB, now and then with more reserved than there is."""
    mebibytes = dice.choice([8_192, 16_384, 24_564, 32_768, 40_960, 49_140, 81_559, 81_920, 143_771, 183_359])
    # Where nothing is left, a subtraction that goes below zero must not become a number of parameters.
    reserved = dice.randrange(1, 20) if dice.random() < 0.85 else mebibytes // 900
    return {"mebibytes": mebibytes, "reserved_gb": reserved, "bytes_a_parameter": dice.choice([6, 12, 16, 18, 20])}


def left(mebibytes: int, reserved_gb: int) -> int:
    """The bytes that are left for model state."""
    return mebibytes * 2**20 - reserved_gb * 10**9


edges = (
    lambda mebibytes, reserved_gb, **_: left(mebibytes, reserved_gb) < 0,
    # What is left is used up to the last byte; there are a few bytes too many; nearly enough for one parameter more.
    lambda bytes_a_parameter, **inputs: left(**inputs) > 0 and left(**inputs) % bytes_a_parameter == 0,
    lambda bytes_a_parameter, **inputs: left(**inputs) > 0 and 0 < left(**inputs) % bytes_a_parameter < 5,
    lambda bytes_a_parameter, **inputs: (
        left(**inputs) > 0 and left(**inputs) % bytes_a_parameter > bytes_a_parameter / 2
    ),
)
solution = largest_model
hole = "count the parameters that fit"
look_for = (
    "Each row is one device. The smaller the bytes of a parameter, the larger the model; GiB and GB are 7 % apart."
)
# No tolerance: "one parameter more must not fit" is about a single parameter.
targets = FunctionTargets(draw=draw, edges=edges, tolerance=0.0, tries=16)
hints = (
    "Turn both sizes into bytes first: `2**20` for a MiB, `10**9` for a GB.",
    "What is left is the first minus the second. It may be negative; then nothing fits.",
    "`//` divides whole numbers and rounds down.",
)
wrong = (
    Wrong(says="takes a GB for a GiB", replace="reserved_gb * 10**9", by="reserved_gb * 2**30"),
    Wrong(says="takes a MiB for a million bytes", replace="mebibytes * 2**20", by="mebibytes * 10**6"),
    Wrong(says="uses what was reserved", replace=" - reserved_gb * 10**9", by=""),
    Wrong(says="finds a negative number of parameters where nothing is left", replace="max(left, 0)", by="left"),
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
        says="rounds to the nearest whole number: the last parameter may not fit",
        replace="max(left, 0) // bytes_a_parameter",
        by="round(max(left, 0) / bytes_a_parameter)",
    ),
    Wrong(
        says="rounds the two sizes down one by one, before it takes their difference",
        replace="max(left, 0) // bytes_a_parameter",
        by="max(mebibytes * 2**20 // bytes_a_parameter - reserved_gb * 10**9 // bytes_a_parameter, 0)",
    ),
    Wrong(says="takes a GiB for a GB", replace="mebibytes * 2**20", by="mebibytes * 10**9 // 1024"),
    Wrong(says="subtracts GB from bytes", replace="reserved_gb * 10**9", by="reserved_gb"),
    Wrong(
        says="gives the bytes that are left, not the parameters that fit into them",
        replace=" // bytes_a_parameter",
        by="",
    ),
    Wrong(
        says="gives the share of the memory that is left",
        replace="max(left, 0) // bytes_a_parameter",
        by="max(left, 0) / (mebibytes * 2**20)",
    ),
    Wrong(says="counts 16 bytes a parameter, whatever it is given", replace="// bytes_a_parameter", by="// 16"),
    Wrong(
        says="counts 4 bytes a parameter: it forgets gradients and optimizer state",
        replace="// bytes_a_parameter",
        by="// 4",
    ),
)
