"""What tests of sharded checkpoints share: an engine that trains, and everything that it has."""

import torch
from awkward import batch, loss_fn, make, shard_of

from zerolab.engines import ENGINES

FROZEN = ("blocks.1",)


def engine_of(stage, optimizer_cls=torch.optim.AdamW, **options):
    return ENGINES[stage](make(FROZEN), optimizer_cls, lr=0.01, **options)


def train(engine, steps):
    """Trains over the given steps; returns the losses, means over the ranks."""
    losses = []
    for step in steps:
        tokens, targets = (shard_of(tensor, engine.rank, engine.world_size) for tensor in batch(step))
        loss = engine.training_step(tokens, targets, loss_fn)
        torch.distributed.all_reduce(loss)
        losses.append(loss.item() / engine.world_size)
    return losses


def everything(engine):
    """The whole state of model and optimizer, by name."""
    state = engine.optimizer_state_dict()
    found = {f"model {key}": value for key, value in engine.state_dict().items()}
    found |= {f"{name} {key}": value for name, entry in state["state"].items() for key, value in entry.items()}
    # Their order is the flats', which of whole matrices depends on the owners.
    return found | {"groups": [{**group, "params": sorted(group["params"])} for group in state["param_groups"]]}


def assert_equal(found, saved):
    """Bit by bit."""
    assert found.keys() == saved.keys()
    different = [key for key in saved if not same(found[key], saved[key])]
    assert not different


def same(one, other):
    is_tensor = isinstance(one, torch.Tensor)
    return torch.equal(one, other) and one.dtype == other.dtype if is_tensor else one == other
