"""A module around a model, as loops of one's own have it."""

from torch import nn


class LossOf(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x):
        return self.model(x).square().mean()
