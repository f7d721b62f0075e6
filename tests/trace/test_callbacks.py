"""A training of a library that begins again without having ended, as with another batch size, is recorded once."""

import torch

from zerolab.recording.recording import Recording
from zerolab.trace.callbacks import _Block


def test_a_training_that_begins_again_is_recorded_from_its_beginning(tmp_path):
    model = torch.nn.Linear(3, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    block = _Block(tmp_path / "run.json", (2, 3))
    for steps in (2, 5):  # the first runs out of memory, and its library tells nobody
        block.begin()
        for _ in range(steps):
            model(torch.ones(2, 3)).sum().backward()
            optimizer.step()
    block.end()
    info = Recording.load(tmp_path / "run.json").info
    assert (info.steps, info.first_step) == (2, 2)
