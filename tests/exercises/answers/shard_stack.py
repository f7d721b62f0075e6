import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh


def right_blocks_then_the_model(model):
    for block in model.blocks:
        fully_shard(block)
    return fully_shard(model)


def right_by_type(model):
    kind = type(model.blocks[0])
    for module in model.modules():
        if isinstance(module, kind):
            fully_shard(module)
    fully_shard(model)
    return model


def right_with_a_mesh(model):
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for block in model.blocks:
        fully_shard(block, mesh=mesh, reshard_after_forward=True)
    fully_shard(model, mesh=mesh)
    return model


def right_root_released_too(model):
    for block in reversed(model.blocks):
        fully_shard(block)
    fully_shard(model, reshard_after_forward=True)
    return model


def right_next_block_ahead(model):
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    for block, following in zip(model.blocks, model.blocks[1:]):
        block.set_modules_to_forward_prefetch([following])
    return model


def right_first_and_last_apart(model):
    for module in [model.first, *model.blocks, model.last, model]:
        fully_shard(module)
    return model


def wrong_the_model_only(model):
    """The whole model is one unit"""
    return fully_shard(model)


def wrong_blocks_only(model):
    """What is in no unit stays whole on every rank"""
    for block in model.blocks:
        fully_shard(block)
    return model


def wrong_first_forgotten(model):
    """What is in no unit stays whole on every rank"""
    for module in [*model.blocks, model.last]:
        fully_shard(module)
    return model


def wrong_kept_for_backward(model):
    """Units stay whole from forward to backward"""
    for block in model.blocks:
        fully_shard(block, reshard_after_forward=False)
    return fully_shard(model)


def wrong_every_layer(model):
    """each exchange has its latency"""
    for module in list(model.modules()):
        if isinstance(module, nn.Linear):
            fully_shard(module)
    return fully_shard(model)


def wrong_three_blocks_a_unit(model):
    """More than two blocks were whole at a time"""
    blocks = list(model.blocks)
    for number in range(0, len(blocks), 3):
        fully_shard(blocks[number : number + 3])
    return fully_shard(model)


def wrong_all_blocks_as_one_unit(model):
    """blocks"""
    fully_shard(list(model.blocks))
    return fully_shard(model)


def wrong_every_second_block(model):
    """More than two blocks were whole at a time"""
    for block in model.blocks[::2]:
        fully_shard(block)
    return fully_shard(model)


def wrong_no_root(model):
    """let the model be the only root"""
    for module in [model.first, *model.blocks, model.last]:
        fully_shard(module)
    return model


def wrong_nothing(model):
    """Nothing is sharded"""
    return model


def wrong_returns_nothing(model):
    """returned nothing"""
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)


def wrong_returns_the_blocks(model):
    """right is"""
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    return list(model.blocks)


def wrong_halved_weights(model):
    """right is"""
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(0.5)
    return right_blocks_then_the_model(model)


def wrong_on_rank_0_alone(model):
    """returned nothing on rank 1"""
    right_blocks_then_the_model(model)
    return model if dist.get_rank() == 0 else None
