"""What the scripts train: a few blocks, and batches that differ between ranks and steps."""

import ctypes

import torch
import torch.distributed as dist
from torch import nn


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(self.norm(x))))


class Net(nn.Module):
    def __init__(self, width=16, blocks=3):
        super().__init__()
        self.embed, self.head = nn.Linear(8, width), nn.Linear(width, 4)
        self.layers = nn.ModuleList(Block(width) for _ in range(blocks))

    def forward(self, x):
        x = self.embed(x)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def batch(step, rank):
    """Inputs [16, 8] and classes [16]."""
    dice = torch.Generator().manual_seed(100 * step + rank)
    return torch.randn(16, 8, generator=dice), torch.randint(0, 4, (16,), generator=dice)


def loss_of(model, step, rank):
    inputs, targets = batch(step, rank)
    return nn.functional.cross_entropy(model(inputs), targets)


def join():
    """Joins the ranks over gloo, for as long as the process lives.

    Where a DDP model is what refers to its group last, torch holds Python's lock while it ends the group's threads; and
    one that is just letting go of a reduction needs the lock: it hangs once in a few hundred ends, with nobody looking.
    """
    dist.init_process_group("gloo")
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(dist.group.WORLD))
    torch.manual_seed(0)
    return dist.get_rank()
