import torch


def right_with_a_master_copy(parameters, gradients, optimizer_cls, rank, world_size):
    part = parameters.chunk(world_size)[rank]
    master = part.clone()
    optimizer = optimizer_cls([master])
    for gradient in gradients:
        reduce_scatter(gradient).wait()
        master.grad = gradient.chunk(world_size)[rank].div_(world_size)
        optimizer.step()
        part.copy_(master)
        all_gather(parameters).wait()
    return optimizer


def right_under_no_grad(parameters, gradients, optimizer_cls, rank, world_size):
    mine = parameters.view(world_size, -1)[rank]
    optimizer = optimizer_cls([mine])
    with torch.no_grad():
        for gradient in gradients:
            reduce_scatter(gradient).wait()
            mine.grad = gradient.view(world_size, -1)[rank] / world_size
            optimizer.step()
            all_gather(parameters).wait()
    return optimizer


@torch.no_grad()
def right_decorated_with_no_grad(parameters, gradients, optimizer_cls, rank, world_size):
    size = parameters.numel() // world_size
    mine = parameters[rank * size : (rank + 1) * size]
    optimizer = optimizer_cls([mine])
    for gradient in gradients:
        gradient.div_(world_size)
        reduce_scatter(gradient).wait()
        mine.grad = gradient[rank * size : (rank + 1) * size]
        optimizer.step()
        all_gather(parameters).wait()
    return optimizer


def right_over_two_halves_of_the_part(parameters, gradients, optimizer_cls, rank, world_size):
    halves = parameters.chunk(world_size)[rank].tensor_split(2)
    optimizer = optimizer_cls(list(halves))
    for gradient in gradients:
        reduce_scatter(gradient).wait()
        for half, mean in zip(halves, gradient.chunk(world_size)[rank].div_(world_size).tensor_split(2)):
            half.grad = mean
        optimizer.step()
        all_gather(parameters).wait()
    return optimizer


def right_with_a_parameter(parameters, gradients, optimizer_cls, rank, world_size):
    mine = torch.nn.Parameter(parameters.chunk(world_size)[rank])
    optimizer = optimizer_cls([mine])
    for gradient in gradients:
        reduce_scatter(gradient).wait()
        mine.grad = gradient.chunk(world_size)[rank].mul_(1 / world_size)
        optimizer.step()
        optimizer.zero_grad()
        all_gather(parameters).wait()
    return optimizer


def right_add_param_group(parameters, gradients, optimizer_cls, rank, world_size):
    first, second = parameters.chunk(world_size)[rank].tensor_split(2)
    optimizer = optimizer_cls([first])
    optimizer.add_param_group({"params": [second]})
    for gradient in gradients:
        reduce_scatter(gradient).wait()
        first.grad, second.grad = gradient.chunk(world_size)[rank].div_(world_size).tensor_split(2)
        optimizer.step()
        all_gather(parameters).wait()
    return optimizer


def right_gathers_at_the_start_of_the_next_step_too_late_no_just_a_helper(
    parameters, gradients, optimizer_cls, rank, world_size
):
    def own(flat):
        return flat.split(flat.numel() // world_size)[rank]

    optimizer = optimizer_cls([own(parameters).requires_grad_(False)])
    (mine,) = optimizer.param_groups[0]["params"]
    for gradient in gradients:
        waits = [reduce_scatter(gradient)]
        waits.pop().wait()
        mine.grad = own(gradient) / world_size
        optimizer.step()
        mine.grad = None
        all_gather(parameters).wait()
    return optimizer


def right_into_a_shard_of_each_step(parameters, gradients, optimizer_cls, rank, world_size):
    mine = parameters.chunk(world_size)[rank]
    optimizer = optimizer_cls([mine])
    for gradient in gradients:
        out = torch.empty_like(mine)
        dist.reduce_scatter_tensor(out, gradient)
        mine.grad = out / world_size
        optimizer.step()
        dist.all_gather_into_tensor(parameters, mine)
    return optimizer


def right_into_grad(parameters, gradients, optimizer_cls, rank, world_size):
    mine = parameters.chunk(world_size)[rank]
    optimizer = optimizer_cls([mine])
    for gradient in gradients:
        mine.grad = torch.empty_like(mine)
        dist.reduce_scatter_tensor(mine.grad, gradient)
        mine.grad /= world_size
        optimizer.step()
        dist.all_gather_into_tensor(parameters, mine)
    return optimizer


def right_leaves_torch_in_float64(parameters, gradients, optimizer_cls, rank, world_size):
    mine = parameters.chunk(world_size)[rank]
    optimizer = optimizer_cls([mine])
    for gradient in gradients:
        reduce_scatter(gradient).wait()
        mine.grad = gradient.chunk(world_size)[rank].div_(world_size)
        optimizer.step()
        all_gather(parameters).wait()
    torch.set_default_dtype(torch.float64)
    return optimizer


def wrong_updates_a_copy(parameters, gradients, optimizer_cls, rank, world_size):
    """updates a copy"""
    mine = parameters.chunk(world_size)[rank].clone()
    optimizer = optimizer_cls([mine])
    for gradient in gradients:
        reduce_scatter(gradient).wait()
        mine.grad = gradient.chunk(world_size)[rank].div_(world_size)
        optimizer.step()
        all_gather(parameters).wait()
    return optimizer


def wrong_a_master_copy_of_everything(parameters, gradients, optimizer_cls, rank, world_size):
    master = parameters.clone()
    mine = master.chunk(world_size)[rank]
    optimizer = optimizer_cls([mine])
    for gradient in gradients:
        reduce_scatter(gradient).wait()
        mine.grad = gradient.chunk(world_size)[rank].div_(world_size)
        optimizer.step()
        all_gather(master).wait()
        parameters.copy_(master)
    return optimizer


def wrong_a_master_copy_that_is_copied_before_the_update(parameters, gradients, optimizer_cls, rank, world_size):
    part = parameters.chunk(world_size)[rank]
    master = part.clone()
    optimizer = optimizer_cls([master])
    for gradient in gradients:
        reduce_scatter(gradient).wait()
        master.grad = gradient.chunk(world_size)[rank].div_(world_size)
        part.copy_(master)
        optimizer.step()
        all_gather(parameters).wait()
    return optimizer


def wrong_whole_state_as_numpy(parameters, gradients, optimizer_cls, rank, world_size):
    """outside of torch"""
    mine = parameters.chunk(world_size)[rank]
    optimizer = optimizer_cls([mine])
    first, second = np.zeros(parameters.numel(), np.float32), np.zeros(parameters.numel(), np.float32)
    for gradient in gradients:
        first += gradient.numpy()
        second += gradient.numpy() ** 2
        reduce_scatter(gradient).wait()
        mine.grad = gradient.chunk(world_size)[rank].div_(world_size)
        optimizer.step()
        all_gather(parameters).wait()
    return optimizer


def wrong_whole_state_as_lists(parameters, gradients, optimizer_cls, rank, world_size):
    """outside of torch"""
    mine = parameters.chunk(world_size)[rank]
    optimizer = optimizer_cls([mine])
    moments = [0.0] * parameters.numel()
    for gradient in gradients:
        moments = [0.9 * old + new for old, new in zip(moments, gradient.tolist())]
        reduce_scatter(gradient).wait()
        mine.grad = gradient.chunk(world_size)[rank].div_(world_size)
        optimizer.step()
        all_gather(parameters).wait()
    return optimizer


def wrong_whole_state_in_a_dict_of_a_helper(parameters, gradients, optimizer_cls, rank, world_size):
    """outside of torch"""
    memory = {}

    def note(gradient):
        memory["moments"] = memory.get("moments", 0) + gradient.numpy()

    mine = parameters.chunk(world_size)[rank]
    optimizer = optimizer_cls([mine])
    for gradient in gradients:
        note(gradient)
        reduce_scatter(gradient).wait()
        mine.grad = gradient.chunk(world_size)[rank].div_(world_size)
        optimizer.step()
        all_gather(parameters).wait()
    return optimizer


def wrong_parameters_as_bytes(parameters, gradients, optimizer_cls, rank, world_size):
    """outside of torch"""
    mine = parameters.chunk(world_size)[rank]
    optimizer = optimizer_cls([mine])
    for gradient in gradients:
        backup = parameters.numpy().tobytes()
        reduce_scatter(gradient).wait()
        mine.grad = gradient.chunk(world_size)[rank].div_(world_size)
        optimizer.step()
        all_gather(parameters).wait()
        del backup
    return optimizer


def wrong_sum(parameters, gradients, optimizer_cls, rank, world_size):
    mine = parameters.chunk(world_size)[rank]
    optimizer = optimizer_cls([mine])
    for gradient in gradients:
        reduce_scatter(gradient).wait()
        mine.grad = gradient.chunk(world_size)[rank]
        optimizer.step()
        all_gather(parameters).wait()
    return optimizer


def wrong_neighbours_gradient(parameters, gradients, optimizer_cls, rank, world_size):
    mine = parameters.chunk(world_size)[rank]
    optimizer = optimizer_cls([mine])
    for gradient in gradients:
        reduce_scatter(gradient).wait()
        mine.grad = gradient.chunk(world_size)[(rank + 1) % world_size].div_(world_size)
        optimizer.step()
        all_gather(parameters).wait()
    return optimizer


def wrong_gathers_before_the_update(parameters, gradients, optimizer_cls, rank, world_size):
    mine = parameters.chunk(world_size)[rank]
    optimizer = optimizer_cls([mine])
    for gradient in gradients:
        reduce_scatter(gradient).wait()
        mine.grad = gradient.chunk(world_size)[rank].div_(world_size)
        all_gather(parameters).wait()
        optimizer.step()
    return optimizer


def wrong_all_reduce(parameters, gradients, optimizer_cls, rank, world_size):
    mine = parameters.chunk(world_size)[rank]
    optimizer = optimizer_cls([mine])
    for gradient in gradients:
        all_reduce(gradient).wait()
        mine.grad = gradient.chunk(world_size)[rank].div_(world_size)
        optimizer.step()
        all_gather(parameters).wait()
    return optimizer


def wrong_all_reduces_parameters(parameters, gradients, optimizer_cls, rank, world_size):
    mine = parameters.chunk(world_size)[rank]
    optimizer = optimizer_cls([mine])
    for gradient in gradients:
        reduce_scatter(gradient).wait()
        mine.grad = gradient.chunk(world_size)[rank].div_(world_size)
        optimizer.step()
        for other, part in enumerate(parameters.chunk(world_size)):
            if other != rank:
                part.zero_()
        all_reduce(parameters).wait()
    return optimizer


def wrong_optimizer_over_everything(parameters, gradients, optimizer_cls, rank, world_size):
    optimizer = optimizer_cls([parameters])
    for gradient in gradients:
        all_reduce(gradient).wait()
        parameters.grad = gradient.div_(world_size)
        optimizer.step()
    return optimizer


def wrong_new_optimizer_each_step(parameters, gradients, optimizer_cls, rank, world_size):
    mine = parameters.chunk(world_size)[rank]
    for gradient in gradients:
        optimizer = optimizer_cls([mine])
        reduce_scatter(gradient).wait()
        mine.grad = gradient.chunk(world_size)[rank].div_(world_size)
        optimizer.step()
        all_gather(parameters).wait()
    return optimizer


def wrong_optimizers_for_all_parts(parameters, gradients, optimizer_cls, rank, world_size):
    optimizers = [optimizer_cls([part]) for part in parameters.chunk(world_size)]
    for gradient in gradients:
        all_reduce(gradient).wait()
        for optimizer, part, mean in zip(
            optimizers, parameters.chunk(world_size), gradient.div_(world_size).chunk(world_size)
        ):
            optimizer.param_groups[0]["params"][0].grad = mean
            optimizer.step()
    return optimizers


def wrong_stops_after_one_step(parameters, gradients, optimizer_cls, rank, world_size):
    mine = parameters.chunk(world_size)[rank]
    optimizer = optimizer_cls([mine])
    gradient = next(gradients)
    reduce_scatter(gradient).wait()
    mine.grad = gradient.chunk(world_size)[rank].div_(world_size)
    optimizer.step()
    all_gather(parameters).wait()
    return optimizer


def wrong_calls_the_shipped_solution(parameters, gradients, optimizer_cls, rank, world_size):
    """write your own"""
    from zerolab.exercises import zero1_average

    return zero1_average.solution(parameters, gradients, optimizer_cls, rank, world_size)


def wrong_loads_the_shipped_solution(parameters, gradients, optimizer_cls, rank, world_size):
    """write your own"""
    from zerolab.exercises import load

    return load("zero1-average").solution(parameters, gradients, optimizer_cls, rank, world_size)


import numpy as np
from zerolab.exercises.zero1_average import zero1 as borrowed


def wrong_calls_a_solution_imported_above(parameters, gradients, optimizer_cls, rank, world_size):
    """write your own"""
    return borrowed(parameters, gradients, optimizer_cls, rank, world_size)


def wrong_returns_the_parameters(parameters, gradients, optimizer_cls, rank, world_size):
    """`zero1` returned a Tensor on rank 0; it should return the optimizer"""
    right_into_grad(parameters, gradients, optimizer_cls, rank, world_size)
    return parameters


def wrong_whole_optimizer_over_the_reduced(parameters, gradients, optimizer_cls, rank, world_size):
    """got the mean in shard 0 alone"""
    optimizer = optimizer_cls([parameters])
    for gradient in gradients:
        reduce_scatter(gradient).wait()
        parameters.grad = gradient.div_(world_size)
        optimizer.step()
        all_gather(parameters).wait()
    return optimizer


def wrong_gathers_its_shard(parameters, gradients, optimizer_cls, rank, world_size):
    """`all_gather` was given that shard, and not the whole tensor"""
    mine = parameters.chunk(world_size)[rank]
    optimizer = optimizer_cls([mine])
    for gradient in gradients:
        reduce_scatter(gradient).wait()
        mine.grad = gradient.chunk(world_size)[rank] / world_size
        optimizer.step()
        all_gather(mine).wait()
    return optimizer
