import numpy as np


def right_all_then_wait(units, backwards, optimizer_cls, rank, world_size):
    mine = [unit.chunk(world_size)[rank] for unit in units]
    optimizer = optimizer_cls(mine)
    for backward in backwards:
        started = [(number, gradient, reduce_scatter(gradient)) for number, gradient in backward]
        while started:
            number, gradient, exchange = started.pop()
            exchange.wait()
            mine[number].grad = gradient.chunk(world_size)[rank].div_(world_size)
        optimizer.step()
        exchanges = [all_gather(unit, name=str(number)) for number, unit in enumerate(units)]
        for exchange in exchanges:
            exchange.wait()
    return optimizer


def right_wait_at_once(units, backwards, optimizer_cls, rank, world_size):
    mine = [unit.chunk(world_size)[rank] for unit in units]
    optimizer = optimizer_cls(mine)
    for backward in backwards:
        for number, gradient in backward:
            reduce_scatter(gradient).wait()
            mine[number].grad = gradient.chunk(world_size)[rank].div_(world_size)
        optimizer.step()
        for unit in units:
            all_gather(unit).wait()
    return optimizer


def right_parts_in_new_tensors(units, backwards, optimizer_cls, rank, world_size):
    mine = [unit.chunk(world_size)[rank] for unit in units]
    optimizer = optimizer_cls(mine)
    for backward in backwards:
        for number, gradient in backward:
            gradient.div_(world_size)
            reduce_scatter(gradient, name=f"g{number}").wait()
            mine[number].grad = gradient.chunk(world_size)[rank].clone()
        optimizer.step()
        optimizer.zero_grad()
        for unit in units:
            all_gather(unit).wait()
    return optimizer


def right_in_a_dict(units, backwards, optimizer_cls, rank, world_size):
    mine = dict(enumerate(unit.chunk(world_size)[rank] for unit in units))
    optimizer = optimizer_cls(list(mine.values()))
    for backward in backwards:
        flying = {}
        for number, gradient in backward:
            flying[number] = gradient, reduce_scatter(gradient)
        for number in flying:
            flying[number][1].wait()
        for number, (gradient, _) in flying.items():
            mine[number].grad = gradient.chunk(world_size)[rank].div_(world_size)
        optimizer.step()
        for unit in units:
            all_gather(unit).wait()
    return optimizer


def right_one_optimizer_for_each_unit(units, backwards, optimizer_cls, rank, world_size):
    mine = [unit.chunk(world_size)[rank] for unit in units]
    optimizers = [optimizer_cls([part]) for part in mine]
    for backward in backwards:
        flying = [(number, gradient, reduce_scatter(gradient)) for number, gradient in backward]
        for number, gradient, exchange in flying:
            exchange.wait()
            mine[number].grad = gradient.chunk(world_size)[rank].div_(world_size)
        for optimizer in optimizers:
            optimizer.step()
        for unit in units:
            all_gather(unit).wait()
    return optimizers


def wrong_waits_after_the_update(units, backwards, optimizer_cls, rank, world_size):
    mine = [unit.chunk(world_size)[rank] for unit in units]
    optimizer = optimizer_cls(mine)
    for backward in backwards:
        flying = []
        for number, gradient in backward:
            flying.append(reduce_scatter(gradient))
            mine[number].grad = gradient.chunk(world_size)[rank].div_(world_size)
        optimizer.step()
        for exchange in flying:
            exchange.wait()
        for unit in units:
            all_gather(unit).wait()
    return optimizer


def wrong_waits_for_the_last_only(units, backwards, optimizer_cls, rank, world_size):
    mine = [unit.chunk(world_size)[rank] for unit in units]
    optimizer = optimizer_cls(mine)
    for backward in backwards:
        flying = [(number, gradient, reduce_scatter(gradient)) for number, gradient in backward]
        exchange.wait() if (exchange := flying[-1][2]) else None
        for number, gradient, _ in flying:
            mine[number].grad = gradient.chunk(world_size)[rank].div_(world_size)
        optimizer.step()
        for unit in units:
            all_gather(unit).wait()
    return optimizer


def wrong_divides_before_the_wait(units, backwards, optimizer_cls, rank, world_size):
    mine = [unit.chunk(world_size)[rank] for unit in units]
    optimizer = optimizer_cls(mine)
    for backward in backwards:
        flying = [(number, gradient, reduce_scatter(gradient)) for number, gradient in backward]
        for number, gradient, exchange in flying:
            mine[number].grad = gradient.chunk(world_size)[rank].div_(world_size)
            exchange.wait()
        optimizer.step()
        for unit in units:
            all_gather(unit).wait()
    return optimizer


def wrong_gathers_not_waited_for(units, backwards, optimizer_cls, rank, world_size):
    mine = [unit.chunk(world_size)[rank] for unit in units]
    optimizer = optimizer_cls(mine)
    for backward in backwards:
        for number, gradient in backward:
            reduce_scatter(gradient).wait()
            mine[number].grad = gradient.chunk(world_size)[rank].div_(world_size)
        optimizer.step()
        for unit in units:
            all_gather(unit)
    return optimizer


def wrong_gathers_too_early(units, backwards, optimizer_cls, rank, world_size):
    mine = [unit.chunk(world_size)[rank] for unit in units]
    optimizer = optimizer_cls(mine)
    for backward in backwards:
        for number, gradient in backward:
            reduce_scatter(gradient).wait()
            mine[number].grad = gradient.chunk(world_size)[rank].div_(world_size)
        exchanges = [all_gather(unit) for unit in units]
        optimizer.step()
        for exchange in exchanges:
            exchange.wait()
    return optimizer


def wrong_sum(units, backwards, optimizer_cls, rank, world_size):
    mine = [unit.chunk(world_size)[rank] for unit in units]
    optimizer = optimizer_cls(mine)
    for backward in backwards:
        for number, gradient in backward:
            reduce_scatter(gradient).wait()
            mine[number].grad = gradient.chunk(world_size)[rank]
        optimizer.step()
        for unit in units:
            all_gather(unit).wait()
    return optimizer


def wrong_clones_of_all_gradients(units, backwards, optimizer_cls, rank, world_size):
    mine = [unit.chunk(world_size)[rank] for unit in units]
    optimizer = optimizer_cls(mine)
    for backward in backwards:
        flying = []
        for number, gradient in backward:
            flying.append((number, gradient.clone(), gradient, reduce_scatter(gradient)))
        for number, _, gradient, exchange in flying:
            exchange.wait()
            mine[number].grad = gradient.chunk(world_size)[rank].div_(world_size)
        optimizer.step()
        for unit in units:
            all_gather(unit).wait()
    return optimizer


def wrong_numpy_copies_of_all_gradients(units, backwards, optimizer_cls, rank, world_size):
    """outside of torch"""
    mine, copies = [unit.chunk(world_size)[rank] for unit in units], []
    optimizer = optimizer_cls(mine)
    for backward in backwards:
        for number, gradient in backward:
            copies.append(gradient.numpy().copy())
            reduce_scatter(gradient).wait()
            mine[number].grad = gradient.chunk(world_size)[rank].div_(world_size)
        optimizer.step()
        for unit in units:
            all_gather(unit).wait()
    return optimizer


def wrong_update_for_each_unit(units, backwards, optimizer_cls, rank, world_size):
    mine = [unit.chunk(world_size)[rank] for unit in units]
    optimizer = optimizer_cls(mine)
    for backward in backwards:
        for number, gradient in backward:
            reduce_scatter(gradient).wait()
            mine[number].grad = gradient.chunk(world_size)[rank].div_(world_size)
            optimizer.step()
        for unit in units:
            all_gather(unit).wait()
    return optimizer


def wrong_all_reduce(units, backwards, optimizer_cls, rank, world_size):
    mine = [unit.chunk(world_size)[rank] for unit in units]
    optimizer = optimizer_cls(mine)
    for backward in backwards:
        flying = [(number, gradient, all_reduce(gradient)) for number, gradient in backward]
        for number, gradient, exchange in flying:
            exchange.wait()
            mine[number].grad = gradient.chunk(world_size)[rank].div_(world_size)
        optimizer.step()
        for unit in units:
            all_gather(unit).wait()
    return optimizer


def wrong_state_of_everything(units, backwards, optimizer_cls, rank, world_size):
    optimizer = optimizer_cls(units)
    for backward in backwards:
        for number, gradient in backward:
            all_reduce(gradient).wait()
            units[number].grad = gradient.div_(world_size)
        optimizer.step()
    return optimizer
