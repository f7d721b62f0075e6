"""Fits `zerolab.theory.seconds.Constants` to the fitting half of the published runs, and prints what comes of it.

    python tests/bench/fit_seconds.py

Minimised is the mean of |log(predicted / published)| to the power of 1.5, each held below 0.3 so that a run which is
beyond the model does not bend it; and, as much again, of the same between runs that differ in the number of GPUs alone,
as otherwise how a step grows with them would drown in how well the cards are known.
"""

import sys
from dataclasses import fields, replace
from functools import cache
from itertools import combinations
from math import log
from pathlib import Path
from unittest.mock import patch

from zerolab.theory import seconds
from zerolab.theory.seconds import Constants

sys.path.append(str(Path(__file__).parents[1]))  # where the published runs lie, beside the tests
from published_runs import PublishedRun, runs

LIMITS = {"a100": 0.85, "h100": 0.85}  # no library multiplies faster for long
POWER, CAP = 1.5, 0.3
STARTS = Constants(a100=0.7, h100=0.6, eager=10.0, fused=5.0, contention=0.2, straggling=0.004)


@cache
def fitting_half() -> tuple[PublishedRun, ...]:
    """The runs that the constants may see."""
    return tuple(run for run in runs() if run.used_for_fitting and run.seconds is not None)


@cache
def series() -> tuple[tuple[int, int], ...]:
    """Pairs of the fitting half that differ in the number of GPUs alone."""
    half = fitting_half()

    def but_for_gpus(run: PublishedRun) -> tuple[object, ...]:
        return (run.source, replace(run.job, world_size=1), run.stage)

    return tuple((i, j) for i, j in combinations(range(len(half)), 2) if but_for_gpus(half[i]) == but_for_gpus(half[j]))


def loss(constants: Constants) -> float:
    """What is minimised; it sees the fitting half and nothing else."""
    off = []
    for run in fitting_half():
        with patch.object(seconds, "FITTED", constants):
            predicted = run.predicted_seconds
        off.append(log(predicted / (run.seconds or 1.0)))
    alone = sum(min(abs(error), CAP) ** POWER for error in off) / len(off)
    grown = sum(abs(off[i] - off[j]) ** POWER for i, j in series()) / len(series())
    return alone + grown


def moved(constants: Constants, name: str, factor: float) -> Constants:
    """The same with one constant multiplied, and held below its limit."""
    return replace(constants, **{name: min(getattr(constants, name) * factor, LIMITS.get(name, float("inf")))})


def fit(start: Constants = STARTS) -> Constants:
    """Each constant in turn up and down by ever smaller parts, for as long as that helps."""
    best, least = start, loss(start)
    for part in (0.3, 0.1, 0.03, 0.01, 0.003):
        better = True
        while better:
            better = False
            for name in (field.name for field in fields(Constants)):
                for factor in (1 + part, 1 / (1 + part)):
                    tried = moved(best, name, factor)
                    if (found := loss(tried)) < least - 1e-9:
                        best, least, better = tried, found, True
    return best


def main() -> None:
    """Prints the fitted constants beside those in the package, and the errors of both halves."""
    found = fit()
    print("loss:", round(loss(found), 5), "fitted;", round(loss(seconds.FITTED), 5), "in the package")
    for field in fields(Constants):
        print(f"{field.name:12} {getattr(found, field.name):8.4f} {getattr(seconds.FITTED, field.name):8.4f}")
    timed = [run for run in runs() if run.seconds is not None]
    for half in (True, False):
        off = sorted(
            abs(run.predicted_seconds / (run.seconds or 1) - 1) for run in timed if run.used_for_fitting == half
        )
        print("fitted" if half else "held out", len(off), "median", round(off[len(off) // 2], 3), "worst", off[-4:])


if __name__ == "__main__":
    main()
