"""What a recording says of its steps is added up in one pass, however many there are."""

import pytest
import torch

from zerolab.recording.info import Membership, describe
from zerolab.recording.recorder import Recorder


class Drafts(list):
    """Counts how often somebody goes over all of them."""

    passes = 0

    def __iter__(self):
        self.passes += 1
        return super().__iter__()


@pytest.mark.parametrize("steps", [1, 5])
def test_the_events_of_all_steps_are_gone_over_once(steps):
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Recorder() as recorder:
        for _ in range(steps):
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
    recorder._log.drafts = drafts = Drafts(recorder._log.drafts)
    said = describe(recorder._log, recorder._log.steps, recorder.ownership, Membership(), 0)
    assert (said.steps, said.logical_bytes, drafts.passes) == (steps, [0] * steps, 1)
