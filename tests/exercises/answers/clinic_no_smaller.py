import numpy as np
import torch


def _train(units, batches, optimizer_cls, rank, world_size, keep, release=True, release_after=True):
    optimizer = optimizer_cls([unit.mine for unit in units])
    for inputs, loss_gradient in batches:
        outputs = inputs
        for unit in units:
            unit.gather()
            outputs = unit.forward(outputs)
            if release:
                unit.release()
        output_gradient = loss_gradient(outputs)
        for unit in reversed(units):
            unit.gather()
            output_gradient, gradient = unit.backward(output_gradient)
            if release_after:
                unit.release()
            keep(unit, gradient)
            del gradient
        optimizer.step()
    return optimizer


def _scatter(rank, world_size):
    def keep(unit, gradient):
        reduce_scatter(gradient).wait()
        unit.mine.grad = gradient.chunk(world_size)[rank] / world_size

    return keep


def right_released(units, batches, optimizer_cls, rank, world_size):
    return _train(units, batches, optimizer_cls, rank, world_size, _scatter(rank, world_size))


def right_under_no_grad(units, batches, optimizer_cls, rank, world_size):
    with torch.no_grad():
        return _train(units, batches, optimizer_cls, rank, world_size, _scatter(rank, world_size))


def right_divided_before(units, batches, optimizer_cls, rank, world_size):
    def keep(unit, gradient):
        reduce_scatter(gradient.div_(world_size)).wait()
        unit.mine.grad = gradient.chunk(world_size)[rank].clone()

    return _train(units, batches, optimizer_cls, rank, world_size, keep)


def right_one_optimizer_for_each_unit(units, batches, optimizer_cls, rank, world_size):
    class Several:
        def __init__(self, tensors):
            self.optimizers = [optimizer_cls([tensor]) for tensor in tensors]

        def step(self):
            for optimizer in self.optimizers:
                optimizer.step()

    return _train(units, batches, Several, rank, world_size, _scatter(rank, world_size))


def right_releases_one_unit_later(units, batches, optimizer_cls, rank, world_size):
    optimizer = optimizer_cls([unit.mine for unit in units])
    keep = _scatter(rank, world_size)
    for inputs, loss_gradient in batches:
        outputs, before = inputs, None
        for unit in units:
            unit.gather()
            if before is not None:
                before.release()
            outputs, before = unit.forward(outputs), unit
        before.release()
        output_gradient = loss_gradient(outputs)
        for unit in reversed(units):
            unit.gather()
            output_gradient, gradient = unit.backward(output_gradient)
            unit.release()
            keep(unit, gradient)
            del gradient
        optimizer.step()
    return optimizer


def wrong_never_released_in_forward(units, batches, optimizer_cls, rank, world_size):
    return _train(units, batches, optimizer_cls, rank, world_size, _scatter(rank, world_size), release=False)


def wrong_never_released_in_backward(units, batches, optimizer_cls, rank, world_size):
    return _train(units, batches, optimizer_cls, rank, world_size, _scatter(rank, world_size), release_after=False)


def wrong_never_released(units, batches, optimizer_cls, rank, world_size):
    return _train(
        units, batches, optimizer_cls, rank, world_size, _scatter(rank, world_size), release=False, release_after=False
    )


def wrong_released_after_forward_of_all(units, batches, optimizer_cls, rank, world_size):
    optimizer = optimizer_cls([unit.mine for unit in units])
    keep = _scatter(rank, world_size)
    for inputs, loss_gradient in batches:
        outputs = inputs
        for unit in units:
            unit.gather()
            outputs = unit.forward(outputs)
        for unit in units:
            unit.release()
        output_gradient = loss_gradient(outputs)
        for unit in reversed(units):
            unit.gather()
            output_gradient, gradient = unit.backward(output_gradient)
            unit.release()
            keep(unit, gradient)
            del gradient
        optimizer.step()
    return optimizer


def wrong_released_before_use(units, batches, optimizer_cls, rank, world_size):
    optimizer = optimizer_cls([unit.mine for unit in units])
    for inputs, loss_gradient in batches:
        outputs = inputs
        for unit in units:
            unit.gather()
            unit.release()
            outputs = unit.forward(outputs)
    return optimizer


def wrong_last_unit_kept(units, batches, optimizer_cls, rank, world_size):
    optimizer = optimizer_cls([unit.mine for unit in units])
    keep = _scatter(rank, world_size)
    for inputs, loss_gradient in batches:
        outputs = inputs
        for unit in units:
            unit.gather()
            outputs = unit.forward(outputs)
            if unit is not units[-1]:
                unit.release()
        output_gradient = loss_gradient(outputs)
        for unit in reversed(units):
            if unit is not units[-1]:
                unit.gather()
            output_gradient, gradient = unit.backward(output_gradient)
            unit.release()
            keep(unit, gradient)
            del gradient
        optimizer.step()
    return optimizer


def wrong_sum(units, batches, optimizer_cls, rank, world_size):
    def keep(unit, gradient):
        reduce_scatter(gradient).wait()
        unit.mine.grad = gradient.chunk(world_size)[rank].clone()

    return _train(units, batches, optimizer_cls, rank, world_size, keep)


def wrong_a_view(units, batches, optimizer_cls, rank, world_size):
    def keep(unit, gradient):
        reduce_scatter(gradient).wait()
        unit.mine.grad = gradient.chunk(world_size)[rank].div_(world_size)

    return _train(units, batches, optimizer_cls, rank, world_size, keep)


def wrong_all_reduce(units, batches, optimizer_cls, rank, world_size):
    def keep(unit, gradient):
        all_reduce(gradient).wait()
        unit.mine.grad = gradient.chunk(world_size)[rank] / world_size

    return _train(units, batches, optimizer_cls, rank, world_size, keep)


def wrong_gradients_as_numpy(units, batches, optimizer_cls, rank, world_size):
    """outside of torch"""
    whole = []

    def keep(unit, gradient):
        reduce_scatter(gradient).wait()
        whole.append(gradient.numpy().copy())
        unit.mine.grad = gradient.chunk(world_size)[rank] / world_size

    return _train(units, batches, optimizer_cls, rank, world_size, keep)


def wrong_gradient_of_the_neighbour(units, batches, optimizer_cls, rank, world_size):
    def keep(unit, gradient):
        reduce_scatter(gradient).wait()
        unit.mine.grad = gradient.chunk(world_size)[(rank + 1) % world_size] / world_size

    return _train(units, batches, optimizer_cls, rank, world_size, keep)


def wrong_no_reduction(units, batches, optimizer_cls, rank, world_size):
    def keep(unit, gradient):
        unit.mine.grad = gradient.chunk(world_size)[rank] / world_size

    return _train(units, batches, optimizer_cls, rank, world_size, keep)
