def right_from_the_last_to_the_first(units, backwards, optimizer_cls, rank, world_size):
    mine = [unit.chunk(world_size)[rank] for unit in units]
    optimizer = optimizer_cls(mine)
    for backward in backwards:
        for number, gradient in backward:
            reduce_scatter(gradient, name=f"unit {number}").wait()
            mine[number].grad = gradient.chunk(world_size)[rank] / world_size
            del gradient
        optimizer.step()
        for number in reversed(range(len(units))):
            all_gather(units[number], name=f"unit {number}").wait()
    return optimizer


def wrong_started_in_another_order_on_each_rank(units, backwards, optimizer_cls, rank, world_size):
    mine = [unit.chunk(world_size)[rank] for unit in units]
    optimizer = optimizer_cls(mine)
    for backward in backwards:
        for number, gradient in backward:
            reduce_scatter(gradient, name=f"unit {number}").wait()
            mine[number].grad = gradient.chunk(world_size)[rank] / world_size
            del gradient
        optimizer.step()
        order = [(offset + rank) % len(units) for offset in range(len(units))]
        for exchange in [all_gather(units[number], name=f"unit {number}") for number in order]:
            exchange.wait()
        del exchange
    return optimizer


def wrong_odd_ranks_backwards(units, backwards, optimizer_cls, rank, world_size):
    mine = [unit.chunk(world_size)[rank] for unit in units]
    optimizer = optimizer_cls(mine)
    for backward in backwards:
        for number, gradient in backward:
            reduce_scatter(gradient, name=f"unit {number}").wait()
            mine[number].grad = gradient.chunk(world_size)[rank] / world_size
            del gradient
        optimizer.step()
        for number in range(len(units))[:: -1 if rank % 2 else 1]:
            all_gather(units[number], name=f"unit {number}").wait()
    return optimizer


def wrong_no_names_and_another_order(units, backwards, optimizer_cls, rank, world_size):
    mine = [unit.chunk(world_size)[rank] for unit in units]
    optimizer = optimizer_cls(mine)
    for backward in backwards:
        for number, gradient in backward:
            reduce_scatter(gradient).wait()
            mine[number].grad = gradient.chunk(world_size)[rank] / world_size
            del gradient
        optimizer.step()
        for offset in range(len(units)):
            all_gather(units[(offset + rank) % len(units)]).wait()
    return optimizer


def right_all_started_and_then_waited_for(units, backwards, optimizer_cls, rank, world_size):
    mine = [unit.chunk(world_size)[rank] for unit in units]
    optimizer = optimizer_cls(mine)
    for backward in backwards:
        for number, gradient in backward:
            reduce_scatter(gradient, name=f"unit {number}").wait()
            mine[number].grad = gradient.chunk(world_size)[rank] / world_size
            del gradient
        optimizer.step()
        exchanges = [all_gather(unit, name=f"unit {number}") for number, unit in enumerate(units)]
        for exchange in exchanges:
            exchange.wait()
    return optimizer


def right_an_order_that_is_rotated_alike_on_all_ranks(units, backwards, optimizer_cls, rank, world_size):
    mine = [unit.chunk(world_size)[rank] for unit in units]
    optimizer = optimizer_cls(mine)
    for backward in backwards:
        for number, gradient in backward:
            reduce_scatter(gradient, name=f"unit {number}").wait()
            mine[number].grad = gradient.chunk(world_size)[rank] / world_size
            del gradient
        optimizer.step()
        for offset in range(len(units)):
            number = (offset + 1) % len(units)
            all_gather(units[number], name=f"unit {number}").wait()
    return optimizer


def right_the_longest_first(units, backwards, optimizer_cls, rank, world_size):
    mine = [unit.chunk(world_size)[rank] for unit in units]
    optimizer = optimizer_cls(mine)
    for backward in backwards:
        for number, gradient in backward:
            reduce_scatter(gradient, name=f"unit {number}").wait()
            mine[number].grad = gradient.chunk(world_size)[rank] / world_size
            del gradient
        optimizer.step()
        for number in sorted(range(len(units)), key=lambda number: -len(units[number])):
            all_gather(units[number], name=f"unit {number}").wait()
    return optimizer


def right_without_names(units, backwards, optimizer_cls, rank, world_size):
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


def wrong_the_hole_deleted_and_nothing_else(units, backwards, optimizer_cls, rank, world_size):
    mine = [unit.chunk(world_size)[rank] for unit in units]
    optimizer = optimizer_cls(mine)
    for backward in backwards:
        for number, gradient in backward:
            reduce_scatter(gradient, name=f"unit {number}").wait()
            mine[number].grad = gradient.chunk(world_size)[rank] / world_size
            del gradient
        optimizer.step()
        for offset in range(len(units)):
            number = (offset + rank) % len(units)
            all_gather(units[number], name=f"unit {number}").wait()
    return optimizer


def wrong_all_started_before_any_is_waited_for(units, backwards, optimizer_cls, rank, world_size):
    mine = [unit.chunk(world_size)[rank] for unit in units]
    optimizer = optimizer_cls(mine)
    for backward in backwards:
        for number, gradient in backward:
            reduce_scatter(gradient, name=f"unit {number}").wait()
            mine[number].grad = gradient.chunk(world_size)[rank] / world_size
            del gradient
        optimizer.step()
        exchanges = []
        for offset in range(len(units)):
            number = (offset + rank) % len(units)
            exchanges.append(all_gather(units[number], name=f"unit {number}"))
        for exchange in exchanges:
            exchange.wait()
    return optimizer


def wrong_a_barrier_before_each(units, backwards, optimizer_cls, rank, world_size):
    mine = [unit.chunk(world_size)[rank] for unit in units]
    optimizer = optimizer_cls(mine)
    for backward in backwards:
        for number, gradient in backward:
            reduce_scatter(gradient, name=f"unit {number}").wait()
            mine[number].grad = gradient.chunk(world_size)[rank] / world_size
            del gradient
        optimizer.step()
        for offset in range(len(units)):
            number = (offset + rank) % len(units)
            dist.barrier()
            all_gather(units[number], name=f"unit {number}").wait()
    return optimizer


def wrong_named_by_offset(units, backwards, optimizer_cls, rank, world_size):
    mine = [unit.chunk(world_size)[rank] for unit in units]
    optimizer = optimizer_cls(mine)
    for backward in backwards:
        for number, gradient in backward:
            reduce_scatter(gradient, name=f"unit {number}").wait()
            mine[number].grad = gradient.chunk(world_size)[rank] / world_size
            del gradient
        optimizer.step()
        for offset in range(len(units)):
            number = (offset + rank) % len(units)
            all_gather(units[number], name=f"offset {offset}").wait()
    return optimizer


def wrong_one_name_for_all(units, backwards, optimizer_cls, rank, world_size):
    mine = [unit.chunk(world_size)[rank] for unit in units]
    optimizer = optimizer_cls(mine)
    for backward in backwards:
        for number, gradient in backward:
            reduce_scatter(gradient, name=f"unit {number}").wait()
            mine[number].grad = gradient.chunk(world_size)[rank] / world_size
            del gradient
        optimizer.step()
        for offset in range(len(units)):
            number = (offset + rank) % len(units)
            all_gather(units[number], name="unit").wait()
    return optimizer


def wrong_nobody_waits(units, backwards, optimizer_cls, rank, world_size):
    mine = [unit.chunk(world_size)[rank] for unit in units]
    optimizer = optimizer_cls(mine)
    for backward in backwards:
        for number, gradient in backward:
            reduce_scatter(gradient, name=f"unit {number}").wait()
            mine[number].grad = gradient.chunk(world_size)[rank] / world_size
            del gradient
        optimizer.step()
        for number, unit in enumerate(units):
            all_gather(unit, name=f"unit {number}")
    return optimizer


def wrong_each_rank_gathers_some_units(units, backwards, optimizer_cls, rank, world_size):
    mine = [unit.chunk(world_size)[rank] for unit in units]
    optimizer = optimizer_cls(mine)
    for backward in backwards:
        for number, gradient in backward:
            reduce_scatter(gradient, name=f"unit {number}").wait()
            mine[number].grad = gradient.chunk(world_size)[rank] / world_size
            del gradient
        optimizer.step()
        for number, unit in enumerate(units):
            if number % world_size == rank:
                all_gather(unit, name=f"unit {number}").wait()
    return optimizer


def wrong_gathered_before_the_update(units, backwards, optimizer_cls, rank, world_size):
    mine = [unit.chunk(world_size)[rank] for unit in units]
    optimizer = optimizer_cls(mine)
    for backward in backwards:
        for number, gradient in backward:
            reduce_scatter(gradient, name=f"unit {number}").wait()
            mine[number].grad = gradient.chunk(world_size)[rank] / world_size
            del gradient
        for number, unit in enumerate(units):
            all_gather(unit, name=f"unit {number}").wait()
        optimizer.step()
    return optimizer
