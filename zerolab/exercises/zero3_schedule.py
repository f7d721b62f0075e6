"""When to gather, when to release.

Write down the order of things in a step of ZeRO-3. Your function gets

* `units`: how many units the model has; they are numbered from 0;
* `prefetch`: how many of the units that come next may be gathered, or be on their way, while one is used.

Return a list of words such as `"start 0"`, `"wait 0"`, `"use 0"`, `"release 0"`: the gather of unit 0 is started, it is
waited for, the unit is used, it is released. Forward uses the units from the first to the last, backward from the last
to the first. Backward's first gather is started only after forward's last release. A gather is started once for each
use, nearer units first. At each unit, first start all gathers that `prefetch` now allows, then wait, use, release. Two
units and `prefetch=1`, forward only:

    start 0, start 1, wait 0, use 0, release 0, wait 1, use 1, release 1

Nothing runs on ranks: `check` calls your function with numbers that it draws.

Targets:

* the right order, for each of sixteen drawn inputs;
* with `prefetch=0` each start stands right before its own wait.
"""

import random
from typing import Any

from zerolab.exercises import FunctionTargets, Wrong


def schedule(units: int, prefetch: int) -> list[str]:
    """The same walk twice: over the units, and back."""
    actions = []
    for order in (range(units), range(units - 1, -1, -1)):
        # What lies within reach at the beginning; from then on each use brings one more into reach.
        actions += [f"start {unit}" for unit in order[:prefetch]]
        for place, unit in enumerate(order):
            actions += [f"start {ahead}" for ahead in order[place + prefetch : place + prefetch + 1]]
            actions += [f"wait {unit}", f"use {unit}", f"release {unit}"]
    return actions


def draw(dice: random.Random) -> dict[str, Any]:
    """Up to five units, up to three ahead."""
    return {"units": dice.randrange(1, 6), "prefetch": dice.randrange(4)}


edges = (
    lambda units, prefetch: units == 1 and prefetch == 0,
    lambda units, prefetch: units == 1 and prefetch > 0,
    lambda units, prefetch: 1 < units == prefetch,
    lambda units, prefetch: 1 < units < prefetch,
    lambda units, prefetch: units > 2 and prefetch == 0,
    lambda units, prefetch: units > 3 and prefetch == 2,
)
solution = schedule
hole = "write the order of a step"
look_for = "Each row is one call. Read one with `prefetch=0`, and see how each wait stands right behind its start."
targets = FunctionTargets(draw=draw, edges=edges, tries=16)
hints = (
    "Forward and backward are the same walk, over `range(units)` and over it reversed. Write one walk first.",
    "Before the first unit is used, the first `prefetch` gathers are started; then one more before each wait.",
    "At place `p` of a walk the unit at place `p + prefetch` is started, if there is one; then wait, use, release.",
)
wrong = (
    Wrong(
        says="starts the next gather after the use of a unit, and not before it: one unit too late",
        whole="""
def schedule(units, prefetch):
    actions = []
    for order in (range(units), range(units - 1, -1, -1)):
        actions += [f"start {unit}" for unit in order[: max(prefetch, 1)]]
        for place, unit in enumerate(order):
            actions += [f"wait {unit}", f"use {unit}", f"release {unit}"]
            actions += [f"start {ahead}" for ahead in order[place + max(prefetch, 1) :][:1]]
    return actions
""",
    ),
    Wrong(
        says="ends after forward; backward needs the units again",
        replace="(range(units), range(units - 1, -1, -1))",
        by="(range(units),)",
    ),
    Wrong(
        says="goes through backward from the first unit to the last",
        replace="range(units - 1, -1, -1)",
        by="range(units)",
    ),
    Wrong(
        says="keeps the units from forward to backward: nothing is released in between, and nothing gathered again",
        whole="""
def schedule(units, prefetch):
    actions = [f"start {unit}" for unit in range(units)[:prefetch]]
    for unit in range(units):
        actions += [f"start {ahead}" for ahead in range(units)[unit + prefetch :][:1]]
        actions += [f"wait {unit}", f"use {unit}"]
    for unit in reversed(range(units)):
        actions += [f"use {unit}", f"release {unit}"]
    return actions
""",
    ),
    Wrong(
        says="gathers one unit ahead, whatever `prefetch` says",
        replace="    actions = []\n",
        by="    actions, prefetch = [], 1\n",
    ),
    Wrong(
        says="starts a gather again that is under way",
        whole="""
def schedule(units, prefetch):
    actions = []
    for order in (range(units), range(units - 1, -1, -1)):
        for place, unit in enumerate(order):
            actions += [f"start {ahead}" for ahead in order[place : place + prefetch + 1]]
            actions += [f"wait {unit}", f"use {unit}", f"release {unit}"]
    return actions
""",
    ),
    Wrong(
        says="starts all gathers at once: the whole model would be there",
        whole="""
def schedule(units, prefetch):
    actions = []
    for order in (range(units), range(units - 1, -1, -1)):
        actions += [f"start {unit}" for unit in order]
        for unit in order:
            actions += [f"wait {unit}", f"use {unit}", f"release {unit}"]
    return actions
""",
    ),
    Wrong(
        says="starts the gathers of the next units after it has waited, and not before",
        whole="""
def schedule(units, prefetch):
    actions = []
    for order in (range(units), range(units - 1, -1, -1)):
        for place, unit in enumerate(order):
            ahead = [f"start {each}" for each in order[place + (prefetch if place else 0) : place + prefetch + 1]]
            own = ahead[:1] if not place or not prefetch else []
            actions += [*own, f"wait {unit}", *ahead[len(own) :], f"use {unit}", f"release {unit}"]
    return actions
""",
    ),
    Wrong(
        says="starts backward's gathers while forward still has units",
        whole="""
def schedule(units, prefetch):
    actions, order = [], [*range(units), *reversed(range(units))]
    actions += [f"start {unit}" for unit in order[:prefetch]]
    for place, unit in enumerate(order):
        actions += [f"start {ahead}" for ahead in order[place + prefetch : place + prefetch + 1]]
        actions += [f"wait {unit}", f"use {unit}", f"release {unit}"]
    return actions
""",
    ),
)
