def right_with_norms_for_the_plot(units, backwards, optimizer_cls, rank, world_size):
    mine, plot = [unit.chunk(world_size)[rank] for unit in units], []
    optimizer = optimizer_cls(mine)
    for backward in backwards:
        for number, gradient in backward:
            plot.append(gradient.norm())
            reduce_scatter(gradient).wait()
            mine[number].grad = gradient.chunk(world_size)[rank] / world_size
            del gradient
        optimizer.step()
        for unit in units:
            all_gather(unit).wait()
    return optimizer


def right_with_numbers_for_the_plot(units, backwards, optimizer_cls, rank, world_size):
    mine, plot = [unit.chunk(world_size)[rank] for unit in units], []
    optimizer = optimizer_cls(mine)
    for backward in backwards:
        for number, gradient in backward:
            plot.append((number, gradient.norm().item(), gradient.abs().max().item()))
            reduce_scatter(gradient).wait()
            mine[number].grad = gradient.chunk(world_size)[rank] / world_size
            del gradient
        optimizer.step()
        for unit in units:
            all_gather(unit).wait()
    return optimizer


def wrong_plots_detached(units, backwards, optimizer_cls, rank, world_size):
    mine, plot = [unit.chunk(world_size)[rank] for unit in units], []
    optimizer = optimizer_cls(mine)
    for backward in backwards:
        for number, gradient in backward:
            plot.append(gradient.detach())
            reduce_scatter(gradient).wait()
            mine[number].grad = gradient.chunk(world_size)[rank] / world_size
            del gradient
        optimizer.step()
        for unit in units:
            all_gather(unit).wait()
    return optimizer


def wrong_plots_numpy(units, backwards, optimizer_cls, rank, world_size):
    """outside of torch"""
    mine, plot = [unit.chunk(world_size)[rank] for unit in units], []
    optimizer = optimizer_cls(mine)
    for backward in backwards:
        for number, gradient in backward:
            plot.append(gradient.numpy().copy())
            reduce_scatter(gradient).wait()
            mine[number].grad = gradient.chunk(world_size)[rank] / world_size
            del gradient
        optimizer.step()
        for unit in units:
            all_gather(unit).wait()
    return optimizer


def wrong_plots_half_precision(units, backwards, optimizer_cls, rank, world_size):
    mine, plot = [unit.chunk(world_size)[rank] for unit in units], []
    optimizer = optimizer_cls(mine)
    for backward in backwards:
        for number, gradient in backward:
            plot.append(gradient.half())
            reduce_scatter(gradient).wait()
            mine[number].grad = gradient.chunk(world_size)[rank] / world_size
            del gradient
        optimizer.step()
        for unit in units:
            all_gather(unit).wait()
    return optimizer


def wrong_plots_a_view(units, backwards, optimizer_cls, rank, world_size):
    mine, plot = [unit.chunk(world_size)[rank] for unit in units], []
    optimizer = optimizer_cls(mine)
    for backward in backwards:
        for number, gradient in backward:
            plot.append(gradient[:1])
            reduce_scatter(gradient).wait()
            mine[number].grad = gradient.chunk(world_size)[rank] / world_size
            del gradient
        optimizer.step()
        for unit in units:
            all_gather(unit).wait()
    return optimizer
