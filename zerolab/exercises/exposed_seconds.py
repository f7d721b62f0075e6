"""What overlap cannot hide.

In backward a rank computes the gradients of its units one after the other, and reduces each as soon as it is there. A
second stream communicates meanwhile, one reduction after the other. Write a function that says how long the rank stands
still at the end, when all is computed and not yet all reduced. It gets

* `computing`: a list with the seconds that the backward of each unit takes, in the order of backward;
* `reducing`: a list with the seconds that the reduction of each unit takes, in the same order.

The reduction of a unit begins when its backward is done and the reduction before it, too. Nothing runs on ranks:
`check` calls your function with numbers that it draws.

Targets:

* the right seconds, for each of twelve drawn inputs: the end of the last reduction, minus the end of computing;
* with one unit nothing is hidden.
"""

import random
from typing import Any

from zerolab.exercises import FunctionTargets, Wrong


def exposed_seconds(computing: list[float], reducing: list[float]) -> float:
    """Two clocks: when computing is done, and when communication is."""
    computed = communicated = 0.0
    for compute, reduce in zip(computing, reducing, strict=True):
        computed += compute
        communicated = max(computed, communicated) + reduce
    return communicated - computed


def draw(dice: random.Random) -> dict[str, Any]:
    """One to six units; sometimes computing is longer, sometimes reducing."""
    # The scale decides which of the two clocks is ahead; with only one case half of the mistakes would not show.
    units, scale = dice.randrange(1, 7), dice.choice([0.5, 1, 2])
    computing = [round(dice.uniform(0.1, 1), 3) for _ in range(units)]
    return {"computing": computing, "reducing": [round(scale * dice.uniform(0.1, 1), 3) for _ in range(units)]}


edges = (
    lambda computing, **_: len(computing) == 1,
    lambda computing, reducing: len(computing) > 2 and exposed_seconds(computing, reducing) == reducing[-1],
    lambda computing, reducing: len(computing) > 2 and exposed_seconds(computing, reducing) > 2 * reducing[-1],
    # The stream waits for a gradient here, and is behind there.
    lambda computing, reducing: len(computing) > 2 and reducing[0] < computing[1] and reducing[-2] > computing[-1],
)
solution = exposed_seconds
hole = "follow two clocks"
look_for = "Each row is one call. The last reduction is never hidden: nothing is left to compute beside it."
# Loose enough for sums in fp32: those are right, too.
targets = FunctionTargets(draw=draw, edges=edges, tolerance=1e-5)
hints = (
    "Keep two clocks: the time until which the rank computes, and the time until which it communicates.",
    "A unit moves the first clock on by its computing. Its reduction begins at the later of the two clocks.",
    "What is asked is the difference of the two clocks at the end.",
)
wrong = (
    Wrong(
        says="subtracts the sums, as if a reduction could begin before its gradient exists",
        whole="""
def exposed_seconds(computing, reducing):
    return max(0, sum(reducing) - sum(computing))
""",
    ),
    Wrong(
        says="hides nothing: it adds up all reductions",
        whole="""
def exposed_seconds(computing, reducing):
    return sum(reducing)
""",
    ),
    Wrong(
        says="hides everything but the last reduction",
        whole="""
def exposed_seconds(computing, reducing):
    return reducing[-1]
""",
    ),
    Wrong(
        says="lets reductions run at the same time",
        replace="max(computed, communicated) + reduce",
        by="max(communicated, computed + reduce)",
    ),
    Wrong(
        says="begins a reduction when the one before it is done, whether the gradient exists or not",
        replace="max(computed, communicated) + reduce",
        by="communicated + reduce",
    ),
    Wrong(
        says="gives the end of the step, not the time that it stands still",
        replace="communicated - computed",
        by="communicated",
    ),
)
