"""What tests of sharded checkpoints share: an engine that trains, and everything that it has; and the same of FSDP2."""

import torch
from awkward import batch, loss_fn, make, shard_of
from torch import nn

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


# FSDP2, as its users write it.


def odd():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(7, 13), nn.Tanh(), nn.Linear(13, 5))


def mse(outputs, targets):
    return nn.functional.mse_loss(outputs, targets)


def pairs_of(step):
    generator = torch.Generator().manual_seed(step)
    return torch.randn(12, 7, generator=generator), torch.randn(12, 5, generator=generator)


def fully_sharded(frozen=False):
    from torch.distributed.fsdp import fully_shard

    model = odd()
    model[0].requires_grad_(not frozen)
    for part in (model[0], model[2], model):
        fully_shard(part)
    return model, torch.optim.AdamW(model.parameters(), lr=0.01)


def state_of(model, optimizer):
    from torch.distributed.checkpoint.state_dict import get_model_state_dict, get_optimizer_state_dict

    return {"model": get_model_state_dict(model), "optim": get_optimizer_state_dict(model, optimizer)}


def whole_of(state):
    """The same by the names that `everything` uses."""
    full = lambda value: value.full_tensor() if hasattr(value, "full_tensor") else value  # noqa: E731
    found = {f"model {key}": full(value) for key, value in state["model"].items()}
    entries = state["optim"]["state"].items()
    return found | {f"{name} {key}": full(value) for name, entry in entries for key, value in entry.items()}
