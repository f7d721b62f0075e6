import numpy as np
import torch


def _gather(unit, part, rank, world_size):
    unit.allocate()
    unit.parameters.chunk(world_size)[rank].copy_(part)
    return all_gather(unit.parameters)


def _train(units, batches, optimizer_cls, rank, world_size, keep, mine=None, around=lambda: torch.enable_grad()):
    mine = [unit.parameters.chunk(world_size)[rank].clone() for unit in units] if mine is None else mine
    for unit in units:
        unit.release()
    optimizer = optimizer_cls(mine)
    for inputs, loss_gradient in batches:
        outputs = inputs
        for unit, part in zip(units, mine):
            _gather(unit, part, rank, world_size).wait()
            outputs = unit.forward(outputs)
            unit.release()
        output_gradient = loss_gradient(outputs)
        for number in reversed(range(len(units))):
            _gather(units[number], mine[number], rank, world_size).wait()
            output_gradient, gradient = units[number].backward(output_gradient)
            units[number].release()
            keep(mine, number, gradient)
            del gradient
        optimizer.step()
    return optimizer


def right_with_helpers(units, batches, optimizer_cls, rank, world_size):
    def keep(mine, number, gradient):
        reduce_scatter(gradient).wait()
        mine[number].grad = gradient.chunk(world_size)[rank] / world_size

    return _train(units, batches, optimizer_cls, rank, world_size, keep)


def right_under_no_grad(units, batches, optimizer_cls, rank, world_size):
    with torch.no_grad():
        return right_with_helpers(units, batches, optimizer_cls, rank, world_size)


def right_with_parameters(units, batches, optimizer_cls, rank, world_size):
    mine = [torch.nn.Parameter(unit.parameters.chunk(world_size)[rank].clone()) for unit in units]

    def keep(mine, number, gradient):
        reduce_scatter(gradient).wait()
        mine[number].grad = gradient.chunk(world_size)[rank] / world_size

    with torch.no_grad():
        return _train(units, batches, optimizer_cls, rank, world_size, keep, mine)


def right_divided_before_the_exchange(units, batches, optimizer_cls, rank, world_size):
    def keep(mine, number, gradient):
        gradient.div_(world_size)
        reduce_scatter(gradient).wait()
        mine[number].grad = gradient.chunk(world_size)[rank].clone()

    return _train(units, batches, optimizer_cls, rank, world_size, keep)


def right_with_param_groups(units, batches, optimizer_cls, rank, world_size):
    def keep(mine, number, gradient):
        reduce_scatter(gradient, name=f"gradient {number}").wait()
        mine[number].grad = gradient.view(world_size, -1)[rank].mul(1 / world_size)

    def grouped(tensors):
        optimizer = optimizer_cls(tensors[:1])
        for tensor in tensors[1:]:
            optimizer.add_param_group({"params": tensor})
        return optimizer

    return _train(units, batches, grouped, rank, world_size, keep)


class _Several:
    def __init__(self, optimizers):
        self.optimizers = optimizers

    def step(self):
        for optimizer in self.optimizers:
            optimizer.step()


def right_one_optimizer_for_each_unit(units, batches, optimizer_cls, rank, world_size):
    def keep(mine, number, gradient):
        reduce_scatter(gradient).wait()
        mine[number].grad = gradient.chunk(world_size)[rank] / world_size

    several = lambda tensors: _Several([optimizer_cls([tensor]) for tensor in tensors])
    return _train(units, batches, several, rank, world_size, keep)


def wrong_sum(units, batches, optimizer_cls, rank, world_size):
    def keep(mine, number, gradient):
        reduce_scatter(gradient).wait()
        mine[number].grad = gradient.chunk(world_size)[rank].clone()

    return _train(units, batches, optimizer_cls, rank, world_size, keep)


def wrong_divided_by_a_fixed_three(units, batches, optimizer_cls, rank, world_size):
    """divided by 3, not by `world_size`"""

    def keep(mine, number, gradient):
        reduce_scatter(gradient).wait()
        mine[number].grad = gradient.chunk(world_size)[rank] / 3

    return _train(units, batches, optimizer_cls, rank, world_size, keep)


def wrong_a_view_keeps_the_gradient(units, batches, optimizer_cls, rank, world_size):
    def keep(mine, number, gradient):
        reduce_scatter(gradient).wait()
        mine[number].grad = gradient.chunk(world_size)[rank].div_(world_size)

    return _train(units, batches, optimizer_cls, rank, world_size, keep)


def wrong_own_gradient(units, batches, optimizer_cls, rank, world_size):
    def keep(mine, number, gradient):
        mine[number].grad = gradient.chunk(world_size)[rank] / world_size

    return _train(units, batches, optimizer_cls, rank, world_size, keep)


def wrong_all_reduce(units, batches, optimizer_cls, rank, world_size):
    def keep(mine, number, gradient):
        all_reduce(gradient).wait()
        mine[number].grad = gradient.chunk(world_size)[rank] / world_size

    return _train(units, batches, optimizer_cls, rank, world_size, keep)


def wrong_not_waited_for(units, batches, optimizer_cls, rank, world_size):
    def keep(mine, number, gradient):
        reduce_scatter(gradient)
        mine[number].grad = gradient.chunk(world_size)[rank] / world_size

    return _train(units, batches, optimizer_cls, rank, world_size, keep)


def wrong_whole_parameters_as_numpy(units, batches, optimizer_cls, rank, world_size):
    """outside of torch"""
    backup = [unit.parameters.clone().numpy().copy() for unit in units]

    def keep(mine, number, gradient):
        reduce_scatter(gradient).wait()
        mine[number].grad = gradient.chunk(world_size)[rank] / world_size

    optimizer = _train(units, batches, optimizer_cls, rank, world_size, keep)
    del backup
    return optimizer


def wrong_whole_gradients_as_lists(units, batches, optimizer_cls, rank, world_size):
    """outside of torch"""
    history = []

    def keep(mine, number, gradient):
        history.append(gradient.tolist())
        reduce_scatter(gradient).wait()
        mine[number].grad = gradient.chunk(world_size)[rank] / world_size

    return _train(units, batches, optimizer_cls, rank, world_size, keep)


def wrong_whole_parameters_as_tensors(units, batches, optimizer_cls, rank, world_size):
    backup = [unit.parameters.clone() for unit in units]

    def keep(mine, number, gradient):
        reduce_scatter(gradient).wait()
        mine[number].grad = gradient.chunk(world_size)[rank] / world_size

    optimizer = _train(units, batches, optimizer_cls, rank, world_size, keep)
    del backup
    return optimizer


def wrong_neighbours_part(units, batches, optimizer_cls, rank, world_size):
    mine = [unit.parameters.chunk(world_size)[(rank + 1) % world_size].clone() for unit in units]

    def keep(mine, number, gradient):
        reduce_scatter(gradient).wait()
        mine[number].grad = gradient.chunk(world_size)[rank] / world_size

    return _train(units, batches, optimizer_cls, rank, world_size, keep, mine)


def wrong_optimizer_over_the_flats(units, batches, optimizer_cls, rank, world_size):
    mine = [unit.parameters.chunk(world_size)[rank] for unit in units]

    def keep(mine, number, gradient):
        reduce_scatter(gradient).wait()
        mine[number].grad = gradient.chunk(world_size)[rank] / world_size

    return _train(units, batches, optimizer_cls, rank, world_size, keep, mine)


def wrong_never_released(units, batches, optimizer_cls, rank, world_size):
    mine = [unit.parameters.chunk(world_size)[rank] for unit in units]
    optimizer = optimizer_cls(mine)
    for inputs, loss_gradient in batches:
        outputs = inputs
        for unit in units:
            outputs = unit.forward(outputs)
        output_gradient = loss_gradient(outputs)
        for number in reversed(range(len(units))):
            output_gradient, gradient = units[number].backward(output_gradient)
            reduce_scatter(gradient).wait()
            mine[number].grad = gradient.chunk(world_size)[rank] / world_size
            del gradient
        optimizer.step()
        for unit in units:
            all_gather(unit.parameters).wait()
    return optimizer


def wrong_backward_of_the_released(units, batches, optimizer_cls, rank, world_size):
    mine = [unit.parameters.chunk(world_size)[rank].clone() for unit in units]
    optimizer = optimizer_cls(mine)
    for inputs, loss_gradient in batches:
        outputs = inputs
        for unit, part in zip(units, mine):
            _gather(unit, part, rank, world_size).wait()
            outputs = unit.forward(outputs)
            unit.release()
        output_gradient = loss_gradient(outputs)
        for number in reversed(range(len(units))):
            output_gradient, gradient = units[number].backward(output_gradient)
    return optimizer


def wrong_calls_the_shipped_solution(units, batches, optimizer_cls, rank, world_size):
    """write your own"""
    from zerolab.exercises.zero3_train import zero3

    return zero3(units, batches, optimizer_cls, rank, world_size)
