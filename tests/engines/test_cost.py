"""What a step costs beside its arithmetic: calls of Python, which every parameter and unit adds to.

Seconds are a benchmark's; a count is the same on every machine. A look at a released parameter once took ten calls
where one does, and made a zero3 step a tenth slower.
"""

import sys

import pytest
import torch
from torch import nn

PARAMETERS, UNITS, RANKS = 24, 6, 2


def calls_of_a_step(stage):
    """How often functions of the package are called in one step, of six units with four parameters each."""
    from zerolab.engines import ENGINES

    model = nn.Sequential(*(nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 4)) for _ in range(UNITS)))
    engine = ENGINES[stage](model, torch.optim.AdamW, lr=1e-3)
    inputs = targets = torch.ones(2, 4)
    calls = 0

    def count(frame, event, _):
        nonlocal calls
        calls += event == "call" and "zerolab" in frame.f_code.co_filename

    for _ in range(3):  # ZeRO-3 learns the order of the units
        engine.training_step(inputs, targets, nn.functional.mse_loss)
    sys.setprofile(count)
    try:
        engine.training_step(inputs, targets, nn.functional.mse_loss)
    finally:
        sys.setprofile(None)
    return calls


@pytest.mark.parametrize(("stage", "most"), [("ddp", 1_500), ("zero1", 1_500), ("zero2", 1_500), ("zero3", 2_700)])
def test_a_step_takes_few_calls_of_our_own_functions(clusters, stage, most):
    counted = clusters(RANKS).run(calls_of_a_step, stage)
    assert all(most / 3 < calls <= most for calls in counted), counted
