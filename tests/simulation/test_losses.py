"""The loss of a model that is given none: its own where it returns one, also beside its outputs."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from zerolab import fit

WORDS, WIDTH = 512, 16


class Net(nn.Module):
    """Returns logits, its loss, and a number that trains a part of it alone; all, or those that `keeps` says."""

    def __init__(self, keeps):
        super().__init__()
        self.keeps = keeps
        self.embed, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS)

    def forward(self, words):
        x = self.embed(words[:, :-1].flatten())
        logits = self.head(x)
        outputs = {"logits": logits, "loss": cross_entropy(logits, words[:, 1:].flatten()), "part": x.square().mean()}
        return tuple(outputs[name] for name in self.keeps)


def needs(keeps, **options):
    words = torch.zeros(4, 9, dtype=torch.int64)
    asked = {"inputs": words, "stages": "ddp", "checkpointing": "none", "precision": "fp32"}
    return fit(lambda: Net(keeps), 2, **asked, **options).cell().needs


@pytest.mark.parametrize("keeps", [("logits", "loss"), ("loss", "logits"), ("logits", "part", "loss")])
def test_a_loss_beside_the_outputs_is_the_loss(keeps):
    assert needs(keeps) == needs(keeps, loss_fn=lambda outputs, _: outputs[keeps.index("loss")])


def test_a_number_that_trains_a_part_of_the_model_is_no_loss():
    def of_size(outputs, _):
        return nn.functional.mse_loss(outputs[0], torch.zeros_like(outputs[0]))

    keeps = ("logits", "part")
    assert needs(keeps) == needs(keeps, loss_fn=of_size) != needs(keeps, loss_fn=lambda outputs, _: outputs[1])
