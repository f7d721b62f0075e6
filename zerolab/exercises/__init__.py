"""Exercises: one file an exercise, and the harness that asks, checks, hints and shows.

An exercise file holds the statement (its docstring), the solution, the name of the hole, three hints, the targets and
the wrong answers that learners give; nothing of it exists a second time. In a notebook:

    def zero1(...):
        return hole("average the gradients")

    attempt = check("zero1-average", zero1)
    attempt.play()
"""

from zerolab.exercises.harness.attempt import Attempt
from zerolab.exercises.harness.checking import check
from zerolab.exercises.harness.exercise import Exercise, Targets, Wrong, load, names
from zerolab.exercises.harness.guard import NotAllowedHere
from zerolab.exercises.harness.help import hint, solution
from zerolab.exercises.harness.hole import OpenHole, hole

__all__ = [
    "Attempt",
    "Exercise",
    "NotAllowedHere",
    "OpenHole",
    "Targets",
    "Wrong",
    "check",
    "hint",
    "hole",
    "load",
    "names",
    "solution",
]
