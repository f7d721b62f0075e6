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
        order = [(turn + rank) % len(units) for turn in range(len(units))]
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
        for turn in range(len(units)):
            all_gather(units[(turn + rank) % len(units)]).wait()
    return optimizer
