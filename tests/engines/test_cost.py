"""What a step costs beside its arithmetic: calls of Python, which every parameter and unit adds to.

Seconds are a benchmark's; a count is the same on every machine. A look at a released parameter once took ten calls
where one does, and made a zero3 step a tenth slower.
"""

import gc
import re
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from zerolab import Cluster

UNITS, RANKS = 6, 2
PICTURE = Path(__file__).parents[2] / "docs" / "three-ways.svg"
# What a step passes without turning: each does one thing that its name says, or nothing where its option is off.
BESIDE = {"checks", "graph", "offload", "partition", "scaling", "taken", "usage"}


@pytest.fixture(scope="module")
def ranks():
    """Some on which nothing was recorded: the recorder's kernel stays where it was, and passes on what it gets."""
    with Cluster(RANKS) as cluster:
        yield cluster


def calls_of_a_step(stage, others=0):
    """The file of each call of a function of the package in one step, of six units with four parameters each.

    As many `others` are alive, engines that have made a step and of which none is used any more.
    """
    import zerolab
    from zerolab.engines import ENGINES

    package = str(Path(zerolab.__file__).parent)  # a checkout may be called zerolab, and have torch below it
    inputs = targets = torch.ones(2, 4)

    def train(steps):
        model = nn.Sequential(*(nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 4)) for _ in range(UNITS)))
        engine = ENGINES[stage](model, torch.optim.AdamW, lr=1e-3)
        for _ in range(steps):
            engine.training_step(inputs, targets, nn.functional.mse_loss)
        return engine

    alive = [train(1) for _ in range(others)]
    calls = []

    def count(frame, event, _):
        if event == "call" and frame.f_code.co_filename.startswith(package):
            calls.append(frame.f_code.co_filename)

    engine = train(3)  # ZeRO-3 learns the order of the units
    gc.collect()  # or the flats of an earlier call's engine may be collected, and say so, within the step
    sys.setprofile(count)
    try:
        engine.training_step(inputs, targets, nn.functional.mse_loss)
    finally:
        sys.setprofile(None)
    assert len(alive) == others
    return calls


@pytest.mark.parametrize(("stage", "most"), [("ddp", 1_500), ("zero1", 1_500), ("zero2", 1_500), ("zero3", 2_700)])
def test_a_step_takes_few_calls_of_our_own_functions(ranks, stage, most):
    counted = ranks.run(calls_of_a_step, stage)
    counts = [len(calls) for calls in counted]
    assert all(most / 3 < count <= most for count in counts), counts


@pytest.mark.parametrize("stage", ["zero1", "zero3"])
def test_engines_that_are_still_alive_cost_the_step_of_another_one_nothing(ranks, stage):
    alone, among_others = (ranks.run(calls_of_a_step, stage, others) for others in (0, 4))
    assert [len(calls) for calls in among_others] == [len(calls) for calls in alone]


def test_a_step_passes_through_the_files_of_the_picture_in_the_docs_and_few_beside_them(ranks):
    way = PICTURE.read_text().partition("A collective")[0]
    pictured = set(re.findall(r"(\w+)\.py", way))
    called = {Path(filename) for filename in ranks.run(calls_of_a_step, "zero3")[0]}
    assert {path.stem for path in called if path.parent.name == "engines"} == pictured | BESIDE
