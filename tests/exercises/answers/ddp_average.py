import torch


def right_grad_set_before_the_exchange(parameters, gradients, optimizer_cls, rank, world_size):
    optimizer = optimizer_cls([parameters])
    for gradient in gradients:
        parameters.grad = gradient
        all_reduce(parameters.grad).wait()
        parameters.grad.div_(world_size)
        optimizer.step()
    return optimizer


def right_divided_before_the_exchange(parameters, gradients, optimizer_cls, rank, world_size):
    optimizer = optimizer_cls([parameters])
    for gradient in gradients:
        gradient /= world_size
        all_reduce(gradient).wait()
        parameters.grad = gradient
        optimizer.step()
    return optimizer


def right_over_two_halves(parameters, gradients, optimizer_cls, rank, world_size):
    halves = parameters.chunk(2)
    optimizer = optimizer_cls(list(halves))
    for gradient in gradients:
        all_reduce(gradient).wait()
        gradient.div_(world_size)
        for half, mean in zip(halves, gradient.chunk(2)):
            half.grad = mean
        optimizer.step()
    return optimizer


def right_under_no_grad(parameters, gradients, optimizer_cls, rank, world_size):
    optimizer = optimizer_cls([parameters])
    with torch.no_grad():
        for gradient in gradients:
            all_reduce(gradient).wait()
            parameters.grad = gradient.mul_(1 / world_size)
            optimizer.step()
    return optimizer


def right_with_zero_grad(parameters, gradients, optimizer_cls, rank, world_size):
    optimizer = optimizer_cls([parameters])
    while (gradient := next(gradients, None)) is not None:
        optimizer.zero_grad()
        exchange = all_reduce(gradient)
        exchange.wait()
        parameters.grad = torch.div(gradient, world_size, out=gradient)
        optimizer.step()
    return optimizer


def right_one_optimizer_for_each_half(parameters, gradients, optimizer_cls, rank, world_size):
    halves = parameters.chunk(2)
    optimizers = [optimizer_cls([half]) for half in halves]
    for gradient in gradients:
        all_reduce(gradient).wait()
        for optimizer, half, mean in zip(optimizers, halves, gradient.div_(world_size).chunk(2)):
            half.grad = mean
            optimizer.step()
    return optimizers


def right_returns_something_else_too(parameters, gradients, optimizer_cls, rank, world_size):
    optimizer = optimizer_cls([{"params": [parameters]}])
    for turn, gradient in enumerate(gradients):
        all_reduce(gradient, name=f"turn {turn}").wait()
        parameters.grad = gradient.div_(world_size)
        optimizer.step()
    return optimizer, turn


def wrong_sum(parameters, gradients, optimizer_cls, rank, world_size):
    """got the sum of all ranks' gradients, not their mean"""
    optimizer = optimizer_cls([parameters])
    for gradient in gradients:
        all_reduce(gradient).wait()
        parameters.grad = gradient
        optimizer.step()
    return optimizer


def wrong_divided_by_a_fixed_four(parameters, gradients, optimizer_cls, rank, world_size):
    """divided by a fixed 4"""
    optimizer = optimizer_cls([parameters])
    for gradient in gradients:
        all_reduce(gradient).wait()
        parameters.grad = gradient.div_(4)
        optimizer.step()
    return optimizer


def wrong_divided_by_a_fixed_three(parameters, gradients, optimizer_cls, rank, world_size):
    """the sum of all ranks' gradients divided by 3, not by `world_size`"""
    optimizer = optimizer_cls([parameters])
    for gradient in gradients:
        all_reduce(gradient).wait()
        parameters.grad = gradient.div_(3)
        optimizer.step()
    return optimizer


def wrong_divided_by_a_fixed_two(parameters, gradients, optimizer_cls, rank, world_size):
    """the sum of all ranks' gradients divided by 2, not by `world_size`"""
    optimizer = optimizer_cls([parameters])
    for gradient in gradients:
        all_reduce(gradient).wait()
        parameters.grad = gradient.div_(2)
        optimizer.step()
    return optimizer


def wrong_a_second_gradient(parameters, gradients, optimizer_cls, rank, world_size):
    """`div_` does not"""
    optimizer = optimizer_cls([parameters])
    for gradient in gradients:
        all_reduce(gradient).wait()
        parameters.grad = gradient / world_size
        optimizer.step()
    return optimizer


def wrong_averages_parameters(parameters, gradients, optimizer_cls, rank, world_size):
    optimizer = optimizer_cls([parameters])
    for gradient in gradients:
        parameters.grad = gradient
        optimizer.step()
        all_reduce(parameters).wait()
        parameters.div_(world_size)
    return optimizer


def wrong_only_rank_0_updates(parameters, gradients, optimizer_cls, rank, world_size):
    optimizer = optimizer_cls([parameters])
    for gradient in gradients:
        all_reduce(gradient).wait()
        parameters.grad = gradient.div_(world_size)
        if rank == 0:
            optimizer.step()
    return optimizer


def wrong_waits_after_the_update(parameters, gradients, optimizer_cls, rank, world_size):
    optimizer = optimizer_cls([parameters])
    for gradient in gradients:
        exchange = all_reduce(gradient)
        parameters.grad = gradient
        optimizer.step()
        exchange.wait()
    return optimizer


def wrong_two_updates_a_step(parameters, gradients, optimizer_cls, rank, world_size):
    optimizer = optimizer_cls([parameters])
    for gradient in gradients:
        all_reduce(gradient).wait()
        parameters.grad = gradient.div_(world_size)
        optimizer.step()
        optimizer.step()
    return optimizer


def wrong_gradients_add_up(parameters, gradients, optimizer_cls, rank, world_size):
    optimizer = optimizer_cls([parameters])
    for gradient in gradients:
        all_reduce(gradient).wait()
        gradient.div_(world_size)
        parameters.grad = gradient.clone() if parameters.grad is None else parameters.grad + gradient
        optimizer.step()
    return optimizer


def wrong_own_sgd(parameters, gradients, optimizer_cls, rank, world_size):
    optimizer = optimizer_cls([parameters])
    for gradient in gradients:
        all_reduce(gradient).wait()
        parameters.sub_(gradient.div_(world_size), alpha=0.5)
    return optimizer


def wrong_zero_grad_before_the_update(parameters, gradients, optimizer_cls, rank, world_size):
    optimizer = optimizer_cls([parameters])
    for gradient in gradients:
        all_reduce(gradient).wait()
        parameters.grad = gradient.div_(world_size)
        optimizer.zero_grad()
        optimizer.step()
    return optimizer


def wrong_keeps_all_gradients_as_numpy(parameters, gradients, optimizer_cls, rank, world_size):
    """outside of torch"""
    optimizer, history = optimizer_cls([parameters]), []
    for gradient in gradients:
        history.append(gradient.numpy().copy())
        all_reduce(gradient).wait()
        parameters.grad = gradient.div_(world_size)
        optimizer.step()
    return optimizer


def wrong_calls_the_shipped_solution(parameters, gradients, optimizer_cls, rank, world_size):
    """write your own"""
    from zerolab.exercises.ddp_average import solution

    return solution(parameters, gradients, optimizer_cls, rank, world_size)
