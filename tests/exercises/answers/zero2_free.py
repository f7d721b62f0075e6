import numpy as np
import torch


def right_with_master_copies(units, backwards, optimizer_cls, rank, world_size):
    parts = [unit.chunk(world_size)[rank] for unit in units]
    masters = [part.clone() for part in parts]
    optimizer = optimizer_cls(masters)
    for backward in backwards:
        for number, gradient in backward:
            reduce_scatter(gradient).wait()
            masters[number].grad = gradient.chunk(world_size)[rank] / world_size
            del gradient
        optimizer.step()
        for unit, part, master in zip(units, parts, masters):
            part.copy_(master)
            all_gather(unit).wait()
    return optimizer


def right_under_no_grad(units, backwards, optimizer_cls, rank, world_size):
    mine = [unit.chunk(world_size)[rank] for unit in units]
    optimizer = optimizer_cls(mine)
    with torch.no_grad():
        for backward in backwards:
            for number, gradient in backward:
                reduce_scatter(gradient).wait()
                mine[number].grad = gradient.chunk(world_size)[rank] / world_size
                del gradient
            optimizer.step()
            for unit in units:
                all_gather(unit).wait()
    return optimizer


def right_add_param_group(units, backwards, optimizer_cls, rank, world_size):
    mine = [unit.chunk(world_size)[rank] for unit in units]
    optimizer = optimizer_cls(mine[:1])
    for part in mine[1:]:
        optimizer.add_param_group({"params": [part]})
    for backward in backwards:
        for number, gradient in backward:
            reduce_scatter(gradient).wait()
            mine[number].grad = gradient.chunk(world_size)[rank] / world_size
            del gradient
        optimizer.step()
        for unit in units:
            all_gather(unit).wait()
    return optimizer


def right_one_optimizer_for_each_unit(units, backwards, optimizer_cls, rank, world_size):
    mine = [unit.chunk(world_size)[rank] for unit in units]
    optimizers = [optimizer_cls([part]) for part in mine]
    for backward in backwards:
        for number, gradient in backward:
            reduce_scatter(gradient).wait()
            mine[number].grad = gradient.chunk(world_size)[rank] / world_size
            del gradient
        for optimizer in optimizers:
            optimizer.step()
        for unit in units:
            all_gather(unit).wait()
    return optimizers


def right_with_a_helper(units, backwards, optimizer_cls, rank, world_size):
    mine = [unit.chunk(world_size)[rank] for unit in units]
    optimizer = optimizer_cls(mine)

    def keep(number, gradient):
        reduce_scatter(gradient).wait()
        mine[number].grad = gradient.chunk(world_size)[rank].clone().div_(world_size)

    for backward in backwards:
        for pair in backward:
            keep(*pair)
            del pair
        optimizer.step()
        optimizer.zero_grad()
        for unit in units:
            all_gather(unit).wait()
    return optimizer


def right_starts_all_gathers_then_waits(units, backwards, optimizer_cls, rank, world_size):
    mine = [unit.chunk(world_size)[rank] for unit in units]
    optimizer = optimizer_cls(mine)
    for backward in backwards:
        for number, gradient in backward:
            gradient.div_(world_size)
            reduce_scatter(gradient, name=f"gradient {number}").wait()
            mine[number].grad = gradient.chunk(world_size)[rank].clone()
            del gradient
        optimizer.step()
        exchanges = [all_gather(unit, name=f"unit {number}") for number, unit in enumerate(units)]
        for exchange in exchanges:
            exchange.wait()
        del exchanges, exchange
    return optimizer


def right_one_unit_late(units, backwards, optimizer_cls, rank, world_size):
    mine = [unit.chunk(world_size)[rank] for unit in units]
    optimizer = optimizer_cls(mine)

    def finish(number, gradient, exchange):
        exchange.wait()
        mine[number].grad = gradient.chunk(world_size)[rank] / world_size

    for backward in backwards:
        late = None
        for number, gradient in backward:
            exchange = reduce_scatter(gradient)
            if late:
                finish(*late)
            late = number, gradient, exchange
            del gradient, exchange
        finish(*late)
        del late
        optimizer.step()
        for unit in units:
            all_gather(unit).wait()
    return optimizer


def right_by_way_of_a_second_shard(units, backwards, optimizer_cls, rank, world_size):
    mine = [unit.chunk(world_size)[rank] for unit in units]
    optimizer = optimizer_cls(mine)
    for backward in backwards:
        for number, gradient in backward:
            reduce_scatter(gradient).wait()
            mine[number].grad = gradient.chunk(world_size)[rank].clone() / world_size
            del gradient
        optimizer.step()
        for unit in units:
            all_gather(unit).wait()
    return optimizer


def wrong_updates_copies(units, backwards, optimizer_cls, rank, world_size):
    """updates a copy"""
    mine = [unit.chunk(world_size)[rank].clone() for unit in units]
    optimizer = optimizer_cls(mine)
    for backward in backwards:
        for number, gradient in backward:
            reduce_scatter(gradient).wait()
            mine[number].grad = gradient.chunk(world_size)[rank] / world_size
            del gradient
        optimizer.step()
        for unit in units:
            all_gather(unit).wait()
    return optimizer


def wrong_gradients_as_numpy(units, backwards, optimizer_cls, rank, world_size):
    """outside of torch"""
    mine = [unit.chunk(world_size)[rank] for unit in units]
    optimizer = optimizer_cls(mine)
    for backward in backwards:
        kept = {}
        for number, gradient in backward:
            reduce_scatter(gradient).wait()
            kept[number] = gradient.numpy().copy()
            del gradient
        for number, array in kept.items():
            mine[number].grad = torch.from_numpy(np.split(array, world_size)[rank] / np.float32(world_size))
        optimizer.step()
        for unit in units:
            all_gather(unit).wait()
    return optimizer


def wrong_gradients_as_lists(units, backwards, optimizer_cls, rank, world_size):
    """outside of torch"""
    mine, kept = [unit.chunk(world_size)[rank] for unit in units], []
    optimizer = optimizer_cls(mine)
    for backward in backwards:
        for number, gradient in backward:
            kept.append(gradient.tolist())
            reduce_scatter(gradient).wait()
            mine[number].grad = gradient.chunk(world_size)[rank] / world_size
            del gradient
        optimizer.step()
        for unit in units:
            all_gather(unit).wait()
    return optimizer


def wrong_last_gradient_kept(units, backwards, optimizer_cls, rank, world_size):
    mine = [unit.chunk(world_size)[rank] for unit in units]
    optimizer = optimizer_cls(mine)
    for backward in backwards:
        for number, gradient in backward:
            reduce_scatter(gradient).wait()
            mine[number].grad = gradient.chunk(world_size)[rank] / world_size
        optimizer.step()
        for unit in units:
            all_gather(unit).wait()
    return optimizer


def wrong_views(units, backwards, optimizer_cls, rank, world_size):
    mine = [unit.chunk(world_size)[rank] for unit in units]
    optimizer = optimizer_cls(mine)
    for backward in backwards:
        for number, gradient in backward:
            reduce_scatter(gradient).wait()
            mine[number].grad = gradient.chunk(world_size)[rank].div_(world_size)
            del gradient
        optimizer.step()
        for unit in units:
            all_gather(unit).wait()
    return optimizer


def wrong_collects_first(units, backwards, optimizer_cls, rank, world_size):
    mine = [unit.chunk(world_size)[rank] for unit in units]
    optimizer = optimizer_cls(mine)
    for backward in backwards:
        there = dict(backward)
        for number in sorted(there, reverse=True):
            gradient = there.pop(number)
            reduce_scatter(gradient).wait()
            mine[number].grad = gradient.chunk(world_size)[rank] / world_size
            del gradient
        optimizer.step()
        for unit in units:
            all_gather(unit).wait()
    return optimizer


def wrong_copies_that_travel(units, backwards, optimizer_cls, rank, world_size):
    mine, sent = [unit.chunk(world_size)[rank] for unit in units], []
    optimizer = optimizer_cls(mine)
    for backward in backwards:
        for number, gradient in backward:
            copy = gradient.clone()
            reduce_scatter(copy).wait()
            sent.append(copy)
            mine[number].grad = copy.chunk(world_size)[rank] / world_size
            del gradient, copy
        optimizer.step()
        for unit in units:
            all_gather(unit).wait()
    return optimizer


def wrong_only_the_last_unit(units, backwards, optimizer_cls, rank, world_size):
    mine = [unit.chunk(world_size)[rank] for unit in units]
    optimizer = optimizer_cls(mine[-1:])
    for backward in backwards:
        for number, gradient in backward:
            reduce_scatter(gradient).wait()
            mine[number].grad = gradient.chunk(world_size)[rank] / world_size
            del gradient
        optimizer.step()
        for unit in units:
            all_gather(unit).wait()
    return optimizer


def wrong_step_for_each_unit(units, backwards, optimizer_cls, rank, world_size):
    mine = [unit.chunk(world_size)[rank] for unit in units]
    optimizer = optimizer_cls(mine)
    for backward in backwards:
        for number, gradient in backward:
            reduce_scatter(gradient).wait()
            mine[number].grad = gradient.chunk(world_size)[rank] / world_size
            del gradient
            optimizer.step()
        for unit in units:
            all_gather(unit).wait()
    return optimizer


def wrong_numbers_from_the_front(units, backwards, optimizer_cls, rank, world_size):
    mine = [unit.chunk(world_size)[rank] for unit in units]
    optimizer = optimizer_cls(mine)
    for backward in backwards:
        for place, (number, gradient) in enumerate(backward):
            reduce_scatter(gradient).wait()
            part = gradient.chunk(world_size)[rank] / world_size
            mine[place].grad = part if part.shape == mine[place].shape else torch.zeros_like(mine[place])
            del gradient, part
        optimizer.step()
        for unit in units:
            all_gather(unit).wait()
    return optimizer


def wrong_gradient_of_another_size(units, backwards, optimizer_cls, rank, world_size):
    mine = [unit.chunk(world_size)[rank] for unit in units]
    optimizer = optimizer_cls(mine)
    for backward in backwards:
        for place, (number, gradient) in enumerate(backward):
            reduce_scatter(gradient).wait()
            mine[place].grad = gradient.chunk(world_size)[rank] / world_size
            del gradient
        optimizer.step()
        for unit in units:
            all_gather(unit).wait()
    return optimizer


def wrong_no_gather(units, backwards, optimizer_cls, rank, world_size):
    mine = [unit.chunk(world_size)[rank] for unit in units]
    optimizer = optimizer_cls(mine)
    for backward in backwards:
        for number, gradient in backward:
            reduce_scatter(gradient).wait()
            mine[number].grad = gradient.chunk(world_size)[rank] / world_size
            del gradient
        optimizer.step()
    return optimizer


def wrong_whole_optimizer_state(units, backwards, optimizer_cls, rank, world_size):
    optimizer = optimizer_cls(units)
    for backward in backwards:
        for number, gradient in backward:
            all_reduce(gradient).wait()
            units[number].grad = gradient / world_size
            del gradient
        optimizer.step()
    return optimizer


def wrong_one_optimizer_for_each_unit_made_anew(units, backwards, optimizer_cls, rank, world_size):
    mine = [unit.chunk(world_size)[rank] for unit in units]
    for backward in backwards:
        optimizers = [optimizer_cls([part]) for part in mine]
        for number, gradient in backward:
            reduce_scatter(gradient).wait()
            mine[number].grad = gradient.chunk(world_size)[rank] / world_size
            del gradient
        for optimizer in optimizers:
            optimizer.step()
        for unit in units:
            all_gather(unit).wait()
    return optimizers


def wrong_order_by_rank(units, backwards, optimizer_cls, rank, world_size):
    mine = [unit.chunk(world_size)[rank] for unit in units]
    optimizer = optimizer_cls(mine)
    for backward in backwards:
        for number, gradient in backward:
            reduce_scatter(gradient).wait()
            mine[number].grad = gradient.chunk(world_size)[rank] / world_size
            del gradient
        optimizer.step()
        order = range(len(units)) if rank == 0 else reversed(range(len(units)))
        exchanges = [all_gather(units[number], name=f"unit {number}") for number in order]
        for exchange in exchanges:
            exchange.wait()
        del exchanges, exchange
    return optimizer
