"""Which gradients travel together.

An exchange costs time before its first byte arrives, so a hundred small ones are slow; one for everything cannot start
before the last gradient exists. `DistributedDataParallel` therefore collects gradients in buckets. Write the
function that decides which. It gets

* `sizes`: the bytes of each parameter's gradient, in the order of the forward pass;
* `limit`: how many bytes a bucket may hold.

Backward brings the **last** parameter's gradient first. Walk in that order and put each gradient into the current
bucket; where it would not fit any more, the bucket is full and a new one begins with it. A gradient that alone is
larger than the limit gets a bucket of its own. Return a list of buckets, each a list of indices into `sizes`, both in
the order in which backward brings the gradients. Nothing runs on ranks here.

Targets, for 24 drawn models:

* the right buckets, in the right order;
* every parameter in exactly one bucket, no bucket empty, none above the limit but those of one parameter.
"""

import random
from typing import Any

from zerolab.exercises import FunctionTargets, Wrong


def buckets(sizes: list[int], limit: int) -> list[list[int]]:
    """Fills one bucket after the other, from the last parameter to the first."""
    full: list[list[int]] = []
    current: list[int] = []
    for index in reversed(range(len(sizes))):
        if current and sum(sizes[i] for i in current) + sizes[index] > limit:
            full.append(current)
            current = []
        current.append(index)
    return [*full, current]


def draw(dice: random.Random) -> dict[str, Any]:
    """A few parameters; now and then one is larger than the limit, and some sums hit the limit exactly."""
    # Few different sizes, so that sums hit the limit exactly and `>=` can be told from `>`.
    sizes = [4 * dice.choice([1, 2, 3, 4, 8, 16]) for _ in range(dice.randrange(1, 9))]
    return {"sizes": sizes, "limit": 4 * dice.choice([4, 6, 8, 10, 12])}


edges = (
    lambda sizes, **_: len(sizes) == 1,
    lambda sizes, limit: sum(sizes) < limit,
    lambda sizes, limit: sizes[-1] > limit,  # the first that comes
    lambda sizes, limit: sizes[0] > limit,
    lambda sizes, limit: any(size > limit for size in sizes[1:-1]),
    lambda sizes, limit: any(len(full) > 1 and sum(sizes[i] for i in full) == limit for full in buckets(sizes, limit)),
)
solution = buckets
hole = "fill the buckets"
look_for = "Each row is one model. Compare where your buckets end with where the right ones do."
targets = FunctionTargets(draw=draw, edges=edges, tries=24)
hints = (
    "Which index comes first? Backward begins at the end of the model: `reversed(range(len(sizes)))`.",
    "Before you add an index, ask whether the bucket would be larger than `limit` then. Exactly `limit` still fits.",
    "After the loop the last bucket is not in your list yet.",
)
wrong = (
    Wrong(
        says="fills the buckets from the first parameter on, whose gradient comes last",
        replace="for index in reversed(range(len(sizes))):",
        by="for index in range(len(sizes)):",
    ),
    Wrong(
        says="loses the last bucket: the parameters that come first would never be averaged",
        replace="return [*full, current]",
        by="return full",
    ),
    Wrong(says="closes a bucket that is not full: exactly the limit still fits", replace="> limit", by=">= limit"),
    Wrong(
        says="closes a bucket only when it is above the limit already",
        replace="sum(sizes[i] for i in current) + sizes[index] > limit",
        by="sum(sizes[i] for i in current) > limit",
    ),
    Wrong(
        says="leaves an empty bucket in front of a gradient that is larger than the limit",
        replace="if current and sum(",
        by="if sum(",
    ),
    Wrong(
        says="gives every gradient a bucket of its own",
        whole="""
def buckets(sizes, limit):
    return [[index] for index in reversed(range(len(sizes)))]
""",
    ),
    Wrong(
        says="puts all gradients into one bucket",
        whole="""
def buckets(sizes, limit):
    return [list(reversed(range(len(sizes))))]
""",
    ),
    Wrong(
        says="loses the gradient that did not fit",
        replace="            current = []\n        current.append(index)\n",
        by="            current = []\n        else:\n            current.append(index)\n",
    ),
    Wrong(
        says="gives the sizes of the gradients; their indices are asked for",
        replace="    return [*full, current]\n",
        by="    return [[sizes[index] for index in bucket] for bucket in [*full, current]]\n",
    ),
    Wrong(
        says="counts from the last parameter; the indices are those of the forward pass",
        replace="    return [*full, current]\n",
        by="    return [[len(sizes) - 1 - index for index in bucket] for bucket in [*full, current]]\n",
    ),
    Wrong(
        says="sorts the indices in a bucket; backward brings the last one first",
        replace="    return [*full, current]\n",
        by="    return [sorted(bucket) for bucket in [*full, current]]\n",
    ),
    Wrong(
        says="returns the buckets in the order of the forward pass; backward fills the last ones first",
        replace="    return [*full, current]\n",
        by="    return [current, *reversed(full)]\n",
    ),
)
