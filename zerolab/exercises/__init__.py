"""Exercises: one file an exercise, and the harness that asks, checks, hints and shows.

In a notebook:

    def zero1(...):
        return hole("average the gradients")

    attempt = check("zero1-average", zero1)
    attempt.play()

An exercise `zero1-average` is the file `zero1_average.py`, and nothing of it exists a second time. It holds

    the docstring   title, statement, and the numeric targets in words
    solution        the right answer: a function, or a class
    hole            what the hole says; of a class a dict from each method to what it should do
    given           the import lines of the learner's cell, if it needs any
    look_for        a sentence on what to see in the picture
    hints           three
    targets         what a right answer must reach; its class is the kind of the exercise
    begins_broken   True where the cell holds a broken answer, the first of `wrong`, to be fixed; then without `hole`
    suspects        only in the clinic, which begins so too: what may be the matter, and what the picture says to each;
                    `telling(event)` says where that picture is opened
    wrong           five or more `Wrong`: edits of the solution as learners err, and what the check must say of each

Kinds of targets, each judged by value on drawn inputs and from the recording (their docstrings have the details):

    FunctionTargets  a plain function: `draw` gives inputs, the solution the right values. `edges` are conditions that
                     every check has inputs for. `Wrong.says` completes the sentence "Your function ..." for whoever
                     gives the values of that wrong answer
    RankTargets      a function on ranks: `draw` gives each rank's arguments (numpy arrays become tensors), `wanted`
                     the right value; beside it collectives, elements sent and scratch. `Wrong.gives` is a wrong value,
                     `Wrong.sends` a wrong number of elements
    TrainingTargets  a loop or an engine, beside DDP: gradients, weights, state, peak, collectives. `shape` says which:
                     "flat"      f(parameters, gradients, optimizer_cls, rank, world_size): one flat; DDP, ZeRO-1
                     "rows"      the same, but each gradient comes with the rows of every rank's batch
                     "backward"  f(units, backwards, optimizer_cls, rank, world_size): `units` are flats, each backward
                                 gives (number, gradient) from the last unit to the first and keeps none; ZeRO-2
                     "units"     f(units, batches, optimizer_cls, rank, world_size): each `Unit` has `parameters` (its
                                 flat), forward, backward, release, allocate; each batch is (inputs, loss_gradient);
                                 ZeRO-3
                     "rung"      one of the three functions that ZeRO-3 is made of, run within the whole: see
                                 `harness/rungs.py`
                     "sharded"   the same with `ShardedUnit`s, which are released, keep `mine` and have a gather()
                     "engine"    class Own(Engine), with own, reduce, keep, publish; or any class that is called as an
                                 engine and has `training_step`

Once an answer on ranks has passed, ours runs on the same draws: `check` prints what both cost, and `attempt.play()`
shows both.

What the exercises of a stage share stands in `harness/stages.py`: the types of what a loop gets, what the stage must
reach, the learner's import line. `targets.forbids` names functions that would be the answer, such as
`"zerolab.theory:state_bytes"`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from zerolab.exercises.harness.attempt import Attempt
from zerolab.exercises.harness.checking import check
from zerolab.exercises.harness.exercise import Exercise, Suspect, Wrong, load, names
from zerolab.exercises.harness.function import FunctionTargets
from zerolab.exercises.harness.guard import NotAllowedHere
from zerolab.exercises.harness.help import hint, solution
from zerolab.exercises.harness.hole import OpenHole, hole

if TYPE_CHECKING:
    from zerolab.exercises.harness.clinic import Patient, diagnose, examine
    from zerolab.exercises.harness.onranks import RankTargets
    from zerolab.exercises.harness.training import TrainingTargets

__all__ = [
    "Attempt",
    "Exercise",
    "FunctionTargets",
    "NotAllowedHere",
    "OpenHole",
    "Patient",
    "RankTargets",
    "Suspect",
    "TrainingTargets",
    "Wrong",
    "check",
    "diagnose",
    "examine",
    "hint",
    "hole",
    "load",
    "names",
    "solution",
]

_ON_RANKS = {
    "Patient": "clinic",
    "RankTargets": "onranks",
    "TrainingTargets": "training",
    "diagnose": "clinic",
    "examine": "clinic",
}


def __getattr__(name: str) -> Any:
    """What runs on ranks needs torch: imported when first asked for, so that plain functions are judged without it."""
    if name not in _ON_RANKS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.harness.{_ON_RANKS[name]}"), name)
