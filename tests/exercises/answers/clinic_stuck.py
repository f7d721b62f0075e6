def right_all_exchanges_started_then_waited_for(units, backwards, optimizer_cls, rank, world_size):
    mine = [unit.chunk(world_size)[rank] for unit in units]
    optimizer = optimizer_cls(mine)
    for backward in backwards:
        there, flying = dict(backward), []
        for number in reversed(range(len(units))):
            gradient = there.get(number, torch.zeros_like(units[number]))
            flying.append((number, gradient, reduce_scatter(gradient, name=f"unit {number}")))
        for number, gradient, exchange in flying:
            exchange.wait()
            mine[number].grad = gradient.chunk(world_size)[rank].div_(world_size)
        optimizer.step()
        for number, unit in enumerate(units):
            all_gather(unit, name=f"unit {number}").wait()
    return optimizer


def right_zeros_for_what_is_missing(units, backwards, optimizer_cls, rank, world_size):
    mine = [unit.chunk(world_size)[rank] for unit in units]
    optimizer = optimizer_cls(mine)
    for backward in backwards:
        there = dict(backward)
        for number, unit in enumerate(units):
            gradient = there.pop(number) if number in there else torch.zeros(unit.shape)
            reduce_scatter(gradient, name=f"unit {number}").wait()
            mine[number].grad = gradient.chunk(world_size)[rank] / world_size
            del gradient
        optimizer.step()
        for number, unit in enumerate(units):
            all_gather(unit, name=f"unit {number}").wait()
    return optimizer


def right_as_they_come(units, backwards, optimizer_cls, rank, world_size):
    mine = [unit.chunk(world_size)[rank] for unit in units]
    optimizer = optimizer_cls(mine)

    def reduce(number, gradient):
        reduce_scatter(gradient, name=f"unit {number}").wait()
        mine[number].grad = gradient.chunk(world_size)[rank] / world_size

    for backward in backwards:
        due = len(units) - 1
        for number, gradient in backward:
            while due > number:
                reduce(due, torch.zeros_like(units[due]))
                due -= 1
            reduce(number, gradient)
            due -= 1
        while due >= 0:
            reduce(due, torch.zeros_like(units[due]))
            due -= 1
        optimizer.step()
        for number, unit in enumerate(units):
            all_gather(unit, name=f"unit {number}").wait()
    return optimizer


def right_all_gathers_at_once(units, backwards, optimizer_cls, rank, world_size):
    mine = [unit.chunk(world_size)[rank] for unit in units]
    optimizer = optimizer_cls(mine)
    for backward in backwards:
        there = dict(backward)
        for number in range(len(units)):
            gradient = there.setdefault(number, torch.zeros_like(units[number]))
            reduce_scatter(gradient, name=f"unit {number}").wait()
            mine[number].grad = gradient.chunk(world_size)[rank].div_(world_size)
        optimizer.step()
        for exchange in [all_gather(unit, name=f"unit {number}") for number, unit in enumerate(units)]:
            exchange.wait()
    return optimizer


def right_under_no_grad(units, backwards, optimizer_cls, rank, world_size):
    with torch.no_grad():
        return right_zeros_for_what_is_missing(units, backwards, optimizer_cls, rank, world_size)


def wrong_zeros_on_rank_1_only(units, backwards, optimizer_cls, rank, world_size):
    """KeyError"""
    mine = [unit.chunk(world_size)[rank] for unit in units]
    optimizer = optimizer_cls(mine)
    for backward in backwards:
        there = dict(backward)
        for number in reversed(range(len(units))):
            if rank == 1:
                gradient = there.get(number, torch.zeros_like(units[number]))
            else:
                gradient = there[number]
            reduce_scatter(gradient, name=f"unit {number}").wait()
            mine[number].grad = gradient.chunk(world_size)[rank].div_(world_size)
        optimizer.step()
        for number, unit in enumerate(units):
            all_gather(unit, name=f"unit {number}").wait()
    return optimizer


def wrong_zeros_but_on_rank_0(units, backwards, optimizer_cls, rank, world_size):
    mine = [unit.chunk(world_size)[rank] for unit in units]
    optimizer = optimizer_cls(mine)
    for backward in backwards:
        there = dict(backward)
        for number in reversed(range(len(units))):
            gradient = there[number] if rank == 0 else there.get(number, torch.zeros_like(units[number]))
            reduce_scatter(gradient, name=f"unit {number}").wait()
            mine[number].grad = gradient.chunk(world_size)[rank].div_(world_size)
        optimizer.step()
        for number, unit in enumerate(units):
            all_gather(unit, name=f"unit {number}").wait()
    return optimizer


def wrong_ones_for_zeros(units, backwards, optimizer_cls, rank, world_size):
    mine = [unit.chunk(world_size)[rank] for unit in units]
    optimizer = optimizer_cls(mine)
    for backward in backwards:
        there = dict(backward)
        for number in reversed(range(len(units))):
            gradient = there.get(number, torch.ones_like(units[number]))
            reduce_scatter(gradient, name=f"unit {number}").wait()
            mine[number].grad = gradient.chunk(world_size)[rank].div_(world_size)
        optimizer.step()
        for number, unit in enumerate(units):
            all_gather(unit, name=f"unit {number}").wait()
    return optimizer


def wrong_missing_ones_last(units, backwards, optimizer_cls, rank, world_size):
    mine = [unit.chunk(world_size)[rank] for unit in units]
    optimizer = optimizer_cls(mine)
    for backward in backwards:
        there = dict(backward)
        for number in range(len(units)):
            there.setdefault(number, torch.zeros_like(units[number]))
        for number, gradient in there.items():
            reduce_scatter(gradient, name=f"unit {number}").wait()
            mine[number].grad = gradient.chunk(world_size)[rank].div_(world_size)
        optimizer.step()
        for number, unit in enumerate(units):
            all_gather(unit, name=f"unit {number}").wait()
    return optimizer


def wrong_divided_by_those_that_have_it(units, backwards, optimizer_cls, rank, world_size):
    mine = [unit.chunk(world_size)[rank] for unit in units]
    optimizer = optimizer_cls(mine)
    for backward in backwards:
        there = dict(backward)
        for number in reversed(range(len(units))):
            gradient = there.get(number, torch.zeros_like(units[number]))
            reduce_scatter(gradient, name=f"unit {number}").wait()
            mine[number].grad = gradient.chunk(world_size)[rank].div_(max(1, world_size - (number not in there)))
        optimizer.step()
        for number, unit in enumerate(units):
            all_gather(unit, name=f"unit {number}").wait()
    return optimizer


def wrong_no_reduction_where_nothing_came(units, backwards, optimizer_cls, rank, world_size):
    mine = [unit.chunk(world_size)[rank] for unit in units]
    optimizer = optimizer_cls(mine)
    for backward in backwards:
        there = dict(backward)
        for number in reversed(range(len(units))):
            if number in there:
                gradient = there[number]
                reduce_scatter(gradient, name=f"unit {number}").wait()
            else:
                gradient = torch.zeros_like(units[number])
            mine[number].grad = gradient.chunk(world_size)[rank].div_(world_size)
        optimizer.step()
        for number, unit in enumerate(units):
            all_gather(unit, name=f"unit {number}").wait()
    return optimizer


def wrong_old_gradient_stays(units, backwards, optimizer_cls, rank, world_size):
    mine = [unit.chunk(world_size)[rank] for unit in units]
    optimizer = optimizer_cls(mine)
    for backward in backwards:
        there = dict(backward)
        for number in reversed(range(len(units))):
            gradient = there.get(number, torch.zeros_like(units[number]))
            reduce_scatter(gradient, name=f"unit {number}").wait()
            if number in there:
                mine[number].grad = gradient.chunk(world_size)[rank].div_(world_size)
        optimizer.step()
        for number, unit in enumerate(units):
            all_gather(unit, name=f"unit {number}").wait()
    return optimizer


def wrong_no_update_of_what_is_missing(units, backwards, optimizer_cls, rank, world_size):
    mine = [unit.chunk(world_size)[rank] for unit in units]
    optimizer = optimizer_cls(mine)
    for backward in backwards:
        there = dict(backward)
        for number in reversed(range(len(units))):
            gradient = there.get(number, torch.zeros_like(units[number]))
            reduce_scatter(gradient, name=f"unit {number}").wait()
            mine[number].grad = gradient.chunk(world_size)[rank].div_(world_size) if number in there else None
        optimizer.step()
        for number, unit in enumerate(units):
            all_gather(unit, name=f"unit {number}").wait()
    return optimizer


def wrong_all_reduce_of_everything(units, backwards, optimizer_cls, rank, world_size):
    mine = [unit.chunk(world_size)[rank] for unit in units]
    optimizer = optimizer_cls(mine)
    for backward in backwards:
        there = dict(backward)
        for number in reversed(range(len(units))):
            gradient = there.get(number, torch.zeros_like(units[number]))
            all_reduce(gradient, name=f"unit {number}").wait()
            mine[number].grad = gradient.chunk(world_size)[rank].div_(world_size)
        optimizer.step()
        for number, unit in enumerate(units):
            all_gather(unit, name=f"unit {number}").wait()
    return optimizer


def wrong_zeros_as_large_as_a_part(units, backwards, optimizer_cls, rank, world_size):
    mine = [unit.chunk(world_size)[rank] for unit in units]
    optimizer = optimizer_cls(mine)
    for backward in backwards:
        there = dict(backward)
        for number in reversed(range(len(units))):
            gradient = there.get(number, torch.zeros(4))
            reduce_scatter(gradient, name=f"unit {number}").wait()
            mine[number].grad = gradient.chunk(world_size)[rank].div_(world_size)
        optimizer.step()
        for number, unit in enumerate(units):
            all_gather(unit, name=f"unit {number}").wait()
    return optimizer


def wrong_leaves_the_units_gather_out(units, backwards, optimizer_cls, rank, world_size):
    mine = [unit.chunk(world_size)[rank] for unit in units]
    optimizer = optimizer_cls(mine)
    for backward in backwards:
        there = dict(backward)
        for number in reversed(range(len(units))):
            gradient = there.get(number, torch.zeros_like(units[number]))
            reduce_scatter(gradient, name=f"unit {number}").wait()
            mine[number].grad = gradient.chunk(world_size)[rank].div_(world_size)
        optimizer.step()
        for number in there:
            all_gather(units[number], name=f"unit {number}").wait()
    return optimizer


def right_zeros_for_every_unit_beforehand(units, backwards, optimizer_cls, rank, world_size):
    mine = [unit.chunk(world_size)[rank] for unit in units]
    optimizer = optimizer_cls(mine)
    for backward in backwards:
        gradients = [torch.zeros_like(unit) for unit in units]
        for number, gradient in backward:
            gradients[number] = gradient
        for number in reversed(range(len(units))):
            reduce_scatter(gradients[number], name=f"unit {number}").wait()
            mine[number].grad = gradients[number].chunk(world_size)[rank].div_(world_size)
        optimizer.step()
        for number, unit in enumerate(units):
            all_gather(unit, name=f"unit {number}").wait()
    return optimizer


def wrong_zeros_as_large_as_the_last_unit(units, backwards, optimizer_cls, rank, world_size):
    """`zero1` failed: rank"""
    mine = [unit.chunk(world_size)[rank] for unit in units]
    optimizer = optimizer_cls(mine)
    for backward in backwards:
        there = dict(backward)
        for number in reversed(range(len(units))):
            gradient = there.get(number, torch.zeros_like(units[-1]))
            reduce_scatter(gradient, name=f"unit {number}").wait()
            mine[number].grad = gradient.chunk(world_size)[rank].div_(world_size)
        optimizer.step()
        for number, unit in enumerate(units):
            all_gather(unit, name=f"unit {number}").wait()
    return optimizer


def wrong_zeros_as_large_as_the_unit_before(units, backwards, optimizer_cls, rank, world_size):
    """`zero1` failed: rank"""
    mine = [unit.chunk(world_size)[rank] for unit in units]
    optimizer = optimizer_cls(mine)
    for backward in backwards:
        there, gradient = dict(backward), None
        for number in reversed(range(len(units))):
            gradient = there[number] if number in there else torch.zeros_like(gradient)
            reduce_scatter(gradient, name=f"unit {number}").wait()
            mine[number].grad = gradient.chunk(world_size)[rank].div_(world_size)
        optimizer.step()
        for number, unit in enumerate(units):
            all_gather(unit, name=f"unit {number}").wait()
    return optimizer
