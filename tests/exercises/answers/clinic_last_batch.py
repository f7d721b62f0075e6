import numpy as np
import torch


def _train(parameters, gradients, optimizer_cls, rank, world_size, before, after):
    mine = parameters.chunk(world_size)[rank]
    optimizer = optimizer_cls([mine])
    for gradient, rows in gradients:
        gradient.mul_(before(rows))
        reduce_scatter(gradient).wait()
        mine.grad = gradient.chunk(world_size)[rank].mul_(after(rows))
        optimizer.step()
        all_gather(parameters).wait()
    return optimizer


def right_weighed_before(parameters, gradients, optimizer_cls, rank, world_size):
    return _train(parameters, gradients, optimizer_cls, rank, world_size, lambda r: r[rank] / sum(r), lambda r: 1.0)


def right_rows_before_and_all_rows_after(parameters, gradients, optimizer_cls, rank, world_size):
    return _train(parameters, gradients, optimizer_cls, rank, world_size, lambda r: r[rank], lambda r: 1 / sum(r))


def right_relative_to_the_mean(parameters, gradients, optimizer_cls, rank, world_size):
    mean = lambda r: sum(r) / len(r)
    return _train(
        parameters, gradients, optimizer_cls, rank, world_size, lambda r: r[rank] / mean(r), lambda r: 1 / world_size
    )


def right_under_no_grad(parameters, gradients, optimizer_cls, rank, world_size):
    with torch.no_grad():
        return right_weighed_before(parameters, gradients, optimizer_cls, rank, world_size)


def right_with_a_master_copy(parameters, gradients, optimizer_cls, rank, world_size):
    mine = parameters.chunk(world_size)[rank]
    master = mine.clone()
    optimizer = optimizer_cls([master])
    for gradient, rows in gradients:
        gradient *= rows[rank]
        reduce_scatter(gradient).wait()
        master.grad = gradient.chunk(world_size)[rank] / sum(rows)
        optimizer.step()
        mine.copy_(master)
        all_gather(parameters).wait()
    return optimizer


def wrong_by_ranks(parameters, gradients, optimizer_cls, rank, world_size):
    return _train(parameters, gradients, optimizer_cls, rank, world_size, lambda r: 1.0, lambda r: 1 / len(r))


def wrong_weighed_after(parameters, gradients, optimizer_cls, rank, world_size):
    return _train(parameters, gradients, optimizer_cls, rank, world_size, lambda r: 1.0, lambda r: r[rank] / sum(r))


def wrong_sum_over_rows(parameters, gradients, optimizer_cls, rank, world_size):
    return _train(parameters, gradients, optimizer_cls, rank, world_size, lambda r: r[rank], lambda r: 1.0)


def wrong_by_ranks_after_rows(parameters, gradients, optimizer_cls, rank, world_size):
    return _train(parameters, gradients, optimizer_cls, rank, world_size, lambda r: r[rank], lambda r: 1 / world_size)


def wrong_rows_of_rank_0(parameters, gradients, optimizer_cls, rank, world_size):
    return _train(parameters, gradients, optimizer_cls, rank, world_size, lambda r: r[0] / sum(r), lambda r: 1.0)


def wrong_by_the_largest_batch(parameters, gradients, optimizer_cls, rank, world_size):
    return _train(parameters, gradients, optimizer_cls, rank, world_size, lambda r: r[rank], lambda r: 1 / max(r))


def wrong_inverse_weights(parameters, gradients, optimizer_cls, rank, world_size):
    return _train(parameters, gradients, optimizer_cls, rank, world_size, lambda r: sum(r) / r[rank], lambda r: 1.0)


def wrong_weighed_twice(parameters, gradients, optimizer_cls, rank, world_size):
    return _train(
        parameters, gradients, optimizer_cls, rank, world_size, lambda r: r[rank] / sum(r), lambda r: 1 / world_size
    )


def wrong_skips_small_batches(parameters, gradients, optimizer_cls, rank, world_size):
    small = lambda r: 0.0 if r[rank] < max(r) else 1.0
    return _train(
        parameters, gradients, optimizer_cls, rank, world_size, small, lambda r: 1 / sum(x == max(r) for x in r)
    )


def wrong_a_second_gradient(parameters, gradients, optimizer_cls, rank, world_size):
    mine = parameters.chunk(world_size)[rank]
    optimizer = optimizer_cls([mine])
    for gradient, rows in gradients:
        weighed = gradient * rows[rank]
        reduce_scatter(weighed).wait()
        mine.grad = weighed.chunk(world_size)[rank].div_(sum(rows))
        optimizer.step()
        all_gather(parameters).wait()
    return optimizer


def wrong_a_second_gradient_as_numpy(parameters, gradients, optimizer_cls, rank, world_size):
    """outside of torch"""
    mine = parameters.chunk(world_size)[rank]
    optimizer = optimizer_cls([mine])
    for gradient, rows in gradients:
        weighed = gradient.numpy() * np.float32(rows[rank])
        gradient.copy_(torch.from_numpy(weighed))
        reduce_scatter(gradient).wait()
        mine.grad = gradient.chunk(world_size)[rank].div_(sum(rows))
        optimizer.step()
        all_gather(parameters).wait()
    return optimizer


def wrong_rows_sent_round(parameters, gradients, optimizer_cls, rank, world_size):
    mine = parameters.chunk(world_size)[rank]
    optimizer = optimizer_cls([mine])
    for gradient, rows in gradients:
        total = torch.full((world_size,), float(rows[rank]))
        all_reduce(total).wait()
        gradient *= rows[rank]
        reduce_scatter(gradient).wait()
        mine.grad = gradient.chunk(world_size)[rank].div_(total[0])
        optimizer.step()
        all_gather(parameters).wait()
    return optimizer


def wrong_first_steps_rows(parameters, gradients, optimizer_cls, rank, world_size):
    first = []
    return _train(
        parameters,
        gradients,
        optimizer_cls,
        rank,
        world_size,
        lambda r: (first or first.append(r) or first)[0][rank] / sum(first[0]),
        lambda r: 1.0,
    )
