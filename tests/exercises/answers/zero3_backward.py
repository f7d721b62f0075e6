import torch


def _whole(unit, rank, world_size):
    unit.allocate()
    unit.parameters.chunk(world_size)[rank].copy_(unit.mine)
    all_gather(unit.parameters).wait()


def _back(units, output_gradient, rank, world_size, keep):
    for unit in reversed(units):
        _whole(unit, rank, world_size)
        output_gradient, gradient = unit.backward(output_gradient)
        unit.release()
        keep(unit, gradient)
        del gradient


def right_with_helpers(units, output_gradient):
    rank, world_size = dist.get_rank(), dist.get_world_size()

    def keep(unit, gradient):
        reduce_scatter(gradient).wait()
        unit.mine.grad = gradient.chunk(world_size)[rank] / world_size

    _back(units, output_gradient, rank, world_size, keep)


def right_divided_before_the_exchange(units, output_gradient):
    rank, world_size = dist.get_rank(), dist.get_world_size()

    def keep(unit, gradient):
        reduce_scatter(gradient.div_(world_size)).wait()
        unit.mine.grad = gradient.chunk(world_size)[rank].clone()

    _back(units, output_gradient, rank, world_size, keep)


def right_by_number(units, output_gradient):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    for number in range(len(units) - 1, -1, -1):
        unit = units[number]
        unit.allocate()
        unit.parameters.view(world_size, -1)[rank] = unit.mine
        all_gather(unit.parameters, name=f"parameters {number}").wait()
        output_gradient, gradient = unit.backward(output_gradient)
        unit.release()
        exchange = reduce_scatter(gradient, name=f"gradient {number}")
        exchange.wait()
        unit.mine.grad = gradient.view(world_size, -1)[rank].mul(1 / world_size)


def right_released_after_the_reduction(units, output_gradient):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    for unit in units[::-1]:
        _whole(unit, rank, world_size)
        output_gradient, gradient = unit.backward(output_gradient)
        reduce_scatter(gradient).wait()
        unit.release()
        unit.mine.grad = gradient.chunk(world_size)[rank] / world_size


def right_reduces_while_the_next_is_gathered(units, output_gradient):
    rank, world_size = dist.get_rank(), dist.get_world_size()

    def finish(unit, gradient, exchange):
        exchange.wait()
        unit.mine.grad = gradient.chunk(world_size)[rank] / world_size

    under_way = None
    for unit in reversed(units):
        _whole(unit, rank, world_size)
        output_gradient, gradient = unit.backward(output_gradient)
        unit.release()
        if under_way:
            finish(*under_way)
        under_way = unit, gradient, reduce_scatter(gradient)
        del gradient
    finish(*under_way)


def wrong_not_gathered_again(units, output_gradient):
    """the backward of unit 5 was used after release"""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    for unit in reversed(units):
        output_gradient, gradient = unit.backward(output_gradient)
        reduce_scatter(gradient).wait()
        unit.mine.grad = gradient.chunk(world_size)[rank] / world_size


def wrong_first_to_last(units, output_gradient):
    """go from the last unit to the first"""
    right_with_helpers(units[::-1], output_gradient)


def wrong_not_handed_on(units, output_gradient):
    """give each the input gradient of the unit behind it"""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    for unit in reversed(units):
        _whole(unit, rank, world_size)
        _, gradient = unit.backward(output_gradient)
        unit.release()
        reduce_scatter(gradient).wait()
        unit.mine.grad = gradient.chunk(world_size)[rank] / world_size


def wrong_sum(units, output_gradient):
    """got the sum of all ranks' gradients, not their mean"""

    rank, world_size = dist.get_rank(), dist.get_world_size()

    def keep(unit, gradient):
        reduce_scatter(gradient).wait()
        unit.mine.grad = gradient.chunk(world_size)[rank].clone()

    _back(units, output_gradient, rank, world_size, keep)


def wrong_divided_twice(units, output_gradient):
    """the mean divided by `world_size` once too often"""

    rank, world_size = dist.get_rank(), dist.get_world_size()

    def keep(unit, gradient):
        reduce_scatter(gradient.div_(world_size)).wait()
        unit.mine.grad = gradient.chunk(world_size)[rank] / world_size

    _back(units, output_gradient, rank, world_size, keep)


def wrong_own_gradient(units, output_gradient):
    """this rank's own gradient divided by `world_size`"""

    rank, world_size = dist.get_rank(), dist.get_world_size()

    def keep(unit, gradient):
        unit.mine.grad = gradient.chunk(world_size)[rank] / world_size

    _back(units, output_gradient, rank, world_size, keep)


def wrong_all_reduce(units, output_gradient):
    """all_reduce where a reduce_scatter is enough"""

    rank, world_size = dist.get_rank(), dist.get_world_size()

    def keep(unit, gradient):
        all_reduce(gradient).wait()
        unit.mine.grad = gradient.chunk(world_size)[rank] / world_size

    _back(units, output_gradient, rank, world_size, keep)


def wrong_a_view(units, output_gradient):
    """it keeps gradients for the whole flat"""

    rank, world_size = dist.get_rank(), dist.get_world_size()

    def keep(unit, gradient):
        reduce_scatter(gradient).wait()
        unit.mine.grad = gradient.chunk(world_size)[rank].div_(world_size)

    _back(units, output_gradient, rank, world_size, keep)


def wrong_shard_of_the_neighbour(units, output_gradient):
    """differs from the mean over all ranks"""

    rank, world_size = dist.get_rank(), dist.get_world_size()

    def keep(unit, gradient):
        reduce_scatter(gradient).wait()
        unit.mine.grad = gradient.chunk(world_size)[(rank + 1) % world_size] / world_size

    _back(units, output_gradient, rank, world_size, keep)


def wrong_gradient_returned_and_not_kept(units, output_gradient):
    """the optimizer made no update. Was `step()` called, with a gradient in `grad`?"""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    kept = []

    def keep(unit, gradient):
        reduce_scatter(gradient).wait()
        kept.append(gradient.chunk(world_size)[rank] / world_size)

    _back(units, output_gradient, rank, world_size, keep)
    return kept


def wrong_added_up(units, output_gradient):
    """the sum of this step's gradient and of the one before"""

    rank, world_size = dist.get_rank(), dist.get_world_size()

    def keep(unit, gradient):
        reduce_scatter(gradient).wait()
        mean = gradient.chunk(world_size)[rank] / world_size
        unit.mine.grad = mean if unit.mine.grad is None else unit.mine.grad + mean

    _back(units, output_gradient, rank, world_size, keep)


def wrong_never_released(units, output_gradient):
    """units are still whole. Release each when it has been used"""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    for unit in reversed(units):
        _whole(unit, rank, world_size)
        output_gradient, gradient = unit.backward(output_gradient)
        reduce_scatter(gradient).wait()
        unit.mine.grad = gradient.chunk(world_size)[rank] / world_size


def wrong_reduced_at_the_end(units, output_gradient):
    """too many units were whole at a time"""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    found = []
    _back(units, output_gradient, rank, world_size, lambda unit, gradient: found.append((unit, gradient)))
    for unit, gradient in found:
        reduce_scatter(gradient).wait()
        unit.mine.grad = gradient.chunk(world_size)[rank] / world_size


def wrong_calls_the_shipped_solution(units, output_gradient):
    """write your own"""
    from zerolab.exercises.zero3_backward import backward

    return backward(units, output_gradient)
