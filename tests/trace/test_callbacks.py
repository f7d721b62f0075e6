"""A training of a library that begins again, as with another batch size, is recorded once; an error cuts it off."""

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


class NothingError(Exception):
    """Is false."""

    def __len__(self):
        return 0


def test_an_error_that_is_false_cuts_a_recording_off_like_any_other(tmp_path):
    model = torch.nn.Linear(3, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    block = _Block(tmp_path / "run.json", (1, 3))
    block.begin()
    model(torch.ones(2, 3)).sum().backward()
    optimizer.step()
    block.end(NothingError())
    assert [rank.complete for rank in Recording.load(tmp_path / "run.json").ranks] == [False]
