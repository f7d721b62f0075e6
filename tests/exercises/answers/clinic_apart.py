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


def right_started_and_waited_for_on_two_lines(parameters, gradients, optimizer_cls, rank, world_size):
    mine = parameters.chunk(world_size)[rank]
    optimizer = optimizer_cls([mine])
    for gradient in gradients:
        reduce_scatter(gradient).wait()
        mine.grad = gradient.chunk(world_size)[rank].div_(world_size)
        optimizer.step()
        work = all_gather(parameters)
        work.wait()
    return optimizer


def right_by_slices(parameters, gradients, optimizer_cls, rank, world_size):
    size = len(parameters) // world_size
    mine = parameters[rank * size : (rank + 1) * size]
    optimizer = optimizer_cls([mine])
    for gradient in gradients:
        reduce_scatter(gradient).wait()
        mine.grad = gradient[rank * size : (rank + 1) * size] / world_size
        optimizer.step()
        all_gather(parameters).wait()
    return optimizer


def right_clearing_the_gradient(parameters, gradients, optimizer_cls, rank, world_size):
    mine = parameters.view(world_size, -1)[rank]
    optimizer = optimizer_cls([mine])
    for gradient in gradients:
        reduce_scatter(gradient).wait()
        mine.grad = gradient.chunk(world_size)[rank].div_(world_size)
        optimizer.step()
        optimizer.zero_grad()
        all_gather(parameters).wait()
    return optimizer


def right_with_next(parameters, gradients, optimizer_cls, rank, world_size):
    mine = parameters.chunk(world_size)[rank]
    optimizer = optimizer_cls([mine])
    while (gradient := next(gradients, None)) is not None:
        reduce_scatter(gradient).wait()
        mine.grad = gradient.chunk(world_size)[rank].div_(world_size)
        optimizer.step()
        all_gather(parameters).wait()
    return optimizer


def wrong_the_hole_deleted_and_nothing_else(parameters, gradients, optimizer_cls, rank, world_size):
    mine = parameters.chunk(world_size)[rank]
    optimizer = optimizer_cls([mine])
    for gradient in gradients:
        reduce_scatter(gradient).wait()
        mine.grad = gradient.chunk(world_size)[rank].div_(world_size)
        all_gather(parameters).wait()
        optimizer.step()
    return optimizer


def wrong_the_gather_deleted(parameters, gradients, optimizer_cls, rank, world_size):
    mine = parameters.chunk(world_size)[rank]
    optimizer = optimizer_cls([mine])
    for gradient in gradients:
        reduce_scatter(gradient).wait()
        mine.grad = gradient.chunk(world_size)[rank].div_(world_size)
        optimizer.step()
    return optimizer


def wrong_the_update_moved_too_far_up(parameters, gradients, optimizer_cls, rank, world_size):
    mine = parameters.chunk(world_size)[rank]
    optimizer = optimizer_cls([mine])
    for gradient in gradients:
        optimizer.step()
        reduce_scatter(gradient).wait()
        mine.grad = gradient.chunk(world_size)[rank].div_(world_size)
        all_gather(parameters).wait()
    return optimizer


def wrong_an_update_before_and_after(parameters, gradients, optimizer_cls, rank, world_size):
    mine = parameters.chunk(world_size)[rank]
    optimizer = optimizer_cls([mine])
    for gradient in gradients:
        reduce_scatter(gradient).wait()
        mine.grad = gradient.chunk(world_size)[rank].div_(world_size)
        optimizer.step()
        all_gather(parameters).wait()
        optimizer.step()
    return optimizer


def wrong_the_mean_of_all_parameters(parameters, gradients, optimizer_cls, rank, world_size):
    mine = parameters.chunk(world_size)[rank]
    optimizer = optimizer_cls([mine])
    for gradient in gradients:
        reduce_scatter(gradient).wait()
        mine.grad = gradient.chunk(world_size)[rank].div_(world_size)
        optimizer.step()
        all_reduce(parameters).wait()
        parameters /= world_size
    return optimizer


def wrong_every_rank_updates_everything(parameters, gradients, optimizer_cls, rank, world_size):
    mine = parameters.chunk(world_size)[rank]
    optimizer = optimizer_cls([parameters])
    for gradient in gradients:
        reduce_scatter(gradient).wait()
        mine.grad = gradient.chunk(world_size)[rank].div_(world_size)
        all_gather(gradient).wait()
        parameters.grad = gradient
        optimizer.step()
    return optimizer


def wrong_gathers_its_own_part(parameters, gradients, optimizer_cls, rank, world_size):
    """`all_gather` was given that shard, and not the whole tensor"""
    mine = parameters.chunk(world_size)[rank]
    optimizer = optimizer_cls([mine])
    for gradient in gradients:
        reduce_scatter(gradient).wait()
        mine.grad = gradient.chunk(world_size)[rank].div_(world_size)
        optimizer.step()
        all_gather(mine).wait()
    return optimizer


def wrong_the_gather_comes_with_the_next_step(parameters, gradients, optimizer_cls, rank, world_size):
    mine = parameters.chunk(world_size)[rank]
    optimizer = optimizer_cls([mine])
    for gradient in gradients:
        all_gather(parameters).wait()
        reduce_scatter(gradient).wait()
        mine.grad = gradient.chunk(world_size)[rank].div_(world_size)
        optimizer.step()
    return optimizer


def wrong_nobody_waits_for_the_gather(parameters, gradients, optimizer_cls, rank, world_size):
    mine = parameters.chunk(world_size)[rank]
    optimizer = optimizer_cls([mine])
    for gradient in gradients:
        reduce_scatter(gradient).wait()
        mine.grad = gradient.chunk(world_size)[rank].div_(world_size)
        optimizer.step()
        all_gather(parameters)
    return optimizer


def wrong_a_new_optimizer_in_each_step(parameters, gradients, optimizer_cls, rank, world_size):
    mine = parameters.chunk(world_size)[rank]
    for gradient in gradients:
        reduce_scatter(gradient).wait()
        mine.grad = gradient.chunk(world_size)[rank].div_(world_size)
        optimizer = optimizer_cls([mine])
        optimizer.step()
        all_gather(parameters).wait()
    return optimizer
