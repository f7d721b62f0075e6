import torch


def right_as_a_single_expression(parameters, gradients, optimizer_cls, rank, world_size):
    mine = parameters.tensor_split(world_size)[rank]
    optimizer = optimizer_cls([mine])
    for gradient in gradients:
        reduce_scatter(gradient.div_(world_size)).wait()
        mine.grad = gradient.tensor_split(world_size)[rank]
        optimizer.step()
        all_gather(parameters).wait()
    return optimizer


def wrong_broadcast_of_rank_0(parameters, gradients, optimizer_cls, rank, world_size):
    mine = parameters.chunk(world_size)[rank]
    optimizer = optimizer_cls([mine])
    for gradient in gradients:
        reduce_scatter(gradient).wait()
        mine.grad = gradient.chunk(world_size)[rank].div_(world_size)
        optimizer.step()
        torch.distributed.broadcast(parameters, src=0)
    return optimizer


def wrong_gathered_before_and_after(parameters, gradients, optimizer_cls, rank, world_size):
    mine = parameters.chunk(world_size)[rank]
    optimizer = optimizer_cls([mine])
    for gradient in gradients:
        reduce_scatter(gradient).wait()
        mine.grad = gradient.chunk(world_size)[rank].div_(world_size)
        all_gather(parameters).wait()
        optimizer.step()
        all_gather(parameters).wait()
    return optimizer


def wrong_gathered_after_the_loop(parameters, gradients, optimizer_cls, rank, world_size):
    mine = parameters.chunk(world_size)[rank]
    optimizer = optimizer_cls([mine])
    for gradient in gradients:
        reduce_scatter(gradient).wait()
        mine.grad = gradient.chunk(world_size)[rank].div_(world_size)
        optimizer.step()
    all_gather(parameters).wait()
    return optimizer
