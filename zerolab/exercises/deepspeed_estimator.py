"""Read the estimator.

DeepSpeed estimates the bytes of model states on one GPU in mixed precision (fp16 parameters and gradients, an fp32
master copy, Adam). Write that estimate as the sum of its parts. Your function gets

* `stage`: 2 or 3;
* `num_params`: the number of parameters, `P`, a multiple of `gpus`;
* `largest`: the number of parameters of the largest layer;
* `gpus`: the number of GPUs, `N`.

Every stage shards, for each parameter: 4 bytes of fp32 parameters, 8 of Adam's moments, 2 of fp16 gradients, and 4 of
the fp32 copy that the gradient shard gets before the update. Stage 2 keeps the fp16 parameters whole, 2 bytes each.
Stage 3 shards them, but its estimate leaves them out and counts 4 bytes for each parameter of the largest layer
instead, for the time when that layer is gathered. Nothing runs on ranks: `check` calls your function with numbers that
it draws.

Targets:

* the estimator's number of bytes, a whole number, for each of twelve drawn inputs.
"""

import random
from typing import Any

from zerolab.exercises import FunctionTargets, Wrong


def deepspeed_estimator(stage: int, num_params: int, largest: int, gpus: int) -> int:
    """What is whole, and 18 bytes a parameter that are sharded."""
    whole = 2 * num_params if stage == 2 else 4 * largest
    return whole + (4 + 8 + 2 + 4) * (num_params // gpus)


def draw(dice: random.Random) -> dict[str, Any]:
    """Stage 2 or 3, a million to a hundred billion parameters, 1 to 64 GPUs."""
    gpus = dice.choice([1, 2, 4, 8, 16, 64])
    # A multiple of the GPUs, so that no answer can differ by how it rounds.
    num_params = gpus * int(10 ** dice.uniform(6, 9))
    return {
        "stage": dice.choice([2, 3]),
        "num_params": num_params,
        "largest": num_params // dice.randrange(10, 60),
        "gpus": gpus,
    }


edges = (
    lambda stage, gpus, **_: stage == 2 and gpus == 1,
    lambda stage, gpus, **_: stage == 3 and gpus == 1,
    lambda stage, gpus, **_: stage == 2 and gpus > 1,
    lambda stage, gpus, **_: stage == 3 and gpus > 1,
)
solution = deepspeed_estimator
hole = "add up what is whole and what is sharded"
look_for = "Each row is one call. At one GPU nothing is shared out, and stage 2 says 20 bytes a parameter."
targets = FunctionTargets(draw=draw, edges=edges)
hints = (
    "Two sums: the bytes that every GPU holds whole, and the bytes a parameter that are divided by `N`.",
    "What is sharded comes to 4 + 8 + 2 + 4 = 18 bytes a parameter, in both stages.",
    "What is whole: `2 P` in stage 2, and `4 x largest` in stage 3.",
)
wrong = (
    Wrong(
        says="leaves out the fp32 copy of the gradient shard, as the paper does",
        replace="(4 + 8 + 2 + 4)",
        by="(4 + 8 + 2)",
    ),
    Wrong(
        says="shards the fp16 parameters of stage 2, too", replace="2 * num_params if", by="2 * num_params // gpus if"
    ),
    Wrong(says="counts 2 bytes for each parameter of the largest layer", replace="4 * largest", by="2 * largest"),
    Wrong(says="keeps the fp16 parameters whole in stage 3", replace="4 * largest", by="4 * largest + 2 * num_params"),
    Wrong(says="shards nothing", replace="(num_params // gpus)", by="num_params"),
    Wrong(
        says="has the older estimate, 4 bytes a parameter whole and 16 sharded",
        whole="""
def deepspeed_estimator(stage, num_params, largest, gpus):
    if stage == 2:
        return 4 * num_params + 16 * num_params // gpus
    return 4 * largest + 18 * num_params // gpus
""",
    ),
)
