"""Answers as learners write them, in `answers/`: a file for each exercise, `right_...` and `wrong_...` functions.

Each is compiled below the lines that the exercise gives, as in a cell of a notebook. The docstring of a wrong one is a
part of what the check must say of it. Of an engine they are classes, named alike.
"""

from pathlib import Path

from zerolab.exercises import load
from zerolab.exercises.harness.failure import in_words
from zerolab.runtime.faults import RankError

FOLDER = Path(__file__).parent / "answers"
IMPORTS = """\
import math
from fractions import Fraction
from itertools import islice

import numpy as np
import torch
import torch.distributed as dist
"""


def exercises_with_answers():
    """The ids of the exercises that have a file."""
    return sorted(path.stem.replace("_", "-") for path in FOLDER.glob("*.py"))


def answers_to(exercise_id):
    """The answers by name."""
    namespace = {"__name__": "__main__"}
    exec(f"{IMPORTS}\n{load(exercise_id).given}\n", namespace)  # noqa: S102  the project's own text
    path = FOLDER / f"{exercise_id.replace('-', '_')}.py"
    exec(compile(path.read_text(encoding="utf-8"), path.name, "exec"), namespace)  # noqa: S102
    return {name: value for name, value in namespace.items() if name.startswith(("right_", "wrong_"))}


def said_on_ranks(exercise, answer, cluster, seed=1):
    """What the check says of the answer on a cluster's ranks; empty if nothing."""
    try:
        for run in exercise.targets.runs(exercise, cluster.world_size, seed, 20.0):
            recording = cluster.record(run.trial, answer, *run.arguments)
            *_, last = run.verdicts(recording, cluster.world_size)
            if last.why:
                return last.why
    except RankError as error:
        return in_words(error, exercise.name)
    return ""
