import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import fully_shard


def _trained(inputs, targets):
    model = models.build("mlp-odd")
    for layer in model.children():
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for rows, wanted in zip(inputs, targets):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(rows), wanted).backward()
        optimizer.step()
    return model


def right_gathers_on_every_rank(inputs, targets):
    model = _trained(inputs, targets)
    whole = torch.cat([weight.full_tensor().detach().flatten() for weight in model.parameters()])
    dist.barrier()
    return whole if dist.get_rank() == 0 else None


def right_returns_it_everywhere(inputs, targets):
    model = _trained(inputs, targets)
    return torch.cat([weight.full_tensor().detach().flatten() for weight in model.parameters()])


def right_from_a_state_dict(inputs, targets):
    state = _trained(inputs, targets).state_dict()
    whole = {name: weight.full_tensor() for name, weight in state.items()}
    return torch.cat([weight.flatten() for weight in whole.values()]) if dist.get_rank() == 0 else None


def right_by_the_checkpoint_library(inputs, targets):
    model = _trained(inputs, targets)
    state = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    dist.barrier()
    return torch.cat([weight.flatten() for weight in state.values()]) if state else None


def right_unshards_first(inputs, targets):
    model = _trained(inputs, targets)
    for module in [model, *model.children()]:
        module.unshard()
    saved = torch.cat([weight.detach().flatten() for weight in model.parameters()])
    for module in [model, *model.children()]:
        module.reshard()
    dist.barrier()
    return saved if dist.get_rank() == 0 else None


def right_redistributed(inputs, targets):
    from torch.distributed.tensor import Replicate

    weights = [weight.redistribute(placements=[Replicate()]) for weight in _trained(inputs, targets).parameters()]
    return torch.cat([weight.to_local().detach().flatten() for weight in weights])


def wrong_on_rank_0_only(inputs, targets):
    """`train` hangs"""
    model = _trained(inputs, targets)
    saved = None
    if dist.get_rank() == 0:
        saved = torch.cat([weight.full_tensor().detach().flatten() for weight in model.parameters()])
    dist.barrier()
    return saved


def wrong_a_state_dict_on_rank_0_only(inputs, targets):
    """`train` hangs"""
    model = _trained(inputs, targets)
    saved = None
    if dist.get_rank() == 0:
        saved = torch.cat([weight.full_tensor().flatten() for weight in model.state_dict().values()])
    dist.barrier()
    return saved


def wrong_barrier_on_the_others_only(inputs, targets):
    """`train` hangs"""
    model = _trained(inputs, targets)
    if dist.get_rank() > 0:
        dist.barrier()
    return torch.cat([weight.full_tensor().detach().flatten() for weight in model.parameters()])


def wrong_barrier_before_rank_0_saves(inputs, targets):
    """`train` hangs"""
    model = _trained(inputs, targets)
    dist.barrier()
    if dist.get_rank() == 0:
        return torch.cat([weight.full_tensor().detach().flatten() for weight in model.parameters()])
    return None


def wrong_evaluates_on_rank_0_only(inputs, targets):
    """`train` hangs"""
    model = _trained(inputs, targets)
    if dist.get_rank() == 0:
        model(inputs[0])
    dist.barrier()
    return torch.cat([weight.full_tensor().detach().flatten() for weight in model.parameters()])


def wrong_shard_of_rank_0(inputs, targets):
    """saves the rows of rank 0 alone: `to_local()` is a shard"""
    model = _trained(inputs, targets)
    saved = torch.cat([weight.to_local().detach().flatten() for weight in model.parameters()])
    dist.barrier()
    return saved if dist.get_rank() == 0 else None


def wrong_a_fresh_model(inputs, targets):
    """saves before it has trained"""
    _trained(inputs, targets)
    return torch.cat([weight.detach().flatten() for weight in models.build("mlp-odd").parameters()])


def wrong_alone(inputs, targets):
    """trains every rank by itself"""
    model = models.build("mlp-odd")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for rows, wanted in zip(inputs, targets):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(rows), wanted).backward()
        optimizer.step()
    return torch.cat([weight.detach().flatten() for weight in model.parameters()])


def wrong_on_the_last_rank(inputs, targets):
    """`train` returned nothing on rank 0"""
    model = _trained(inputs, targets)
    saved = torch.cat([weight.full_tensor().detach().flatten() for weight in model.parameters()])
    return saved if dist.get_rank() == dist.get_world_size() - 1 else None


def wrong_returns_nothing(inputs, targets):
    """`train` returned nothing on rank 0"""
    right_gathers_on_every_rank(inputs, targets)


def wrong_steps_without_zero_grad(inputs, targets):
    """right is"""
    model = models.build("mlp-odd")
    for layer in model.children():
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for rows, wanted in zip(inputs, targets):
        nn.functional.mse_loss(model(rows), wanted).backward()
        optimizer.step()
    return torch.cat([weight.full_tensor().detach().flatten() for weight in model.parameters()])
