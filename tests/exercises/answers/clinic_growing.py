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


def right_lets_go_on_the_line_of_the_step(units, backwards, optimizer_cls, rank, world_size):
    mine = [unit.chunk(world_size)[rank] for unit in units]
    optimizer = optimizer_cls(mine)
    for backward in backwards:
        for number, gradient in backward:
            reduce_scatter(gradient).wait()
            mine[number].grad = gradient.chunk(world_size)[rank] / world_size
        del gradient; optimizer.step()  # fmt: skip  # noqa: E702
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


def right_without_a_plot(units, backwards, optimizer_cls, rank, world_size):
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


def right_a_histogram_for_the_plot(units, backwards, optimizer_cls, rank, world_size):
    mine = [unit.chunk(world_size)[rank] for unit in units]
    optimizer = optimizer_cls(mine)
    plot = []
    for backward in backwards:
        for number, gradient in backward:
            plot.append(torch.histc(gradient, bins=10).tolist())
            reduce_scatter(gradient).wait()
            mine[number].grad = gradient.chunk(world_size)[rank] / world_size
            del gradient
        optimizer.step()
        for unit in units:
            all_gather(unit).wait()
    return optimizer


def right_the_norm_of_the_whole_gradient(units, backwards, optimizer_cls, rank, world_size):
    mine = [unit.chunk(world_size)[rank] for unit in units]
    optimizer = optimizer_cls(mine)
    plot = []
    for backward in backwards:
        squares = 0.0
        for number, gradient in backward:
            squares += gradient.square().sum().item()
            reduce_scatter(gradient).wait()
            mine[number].grad = gradient.chunk(world_size)[rank] / world_size
            del gradient
        plot.append(math.sqrt(squares))
        optimizer.step()
        for unit in units:
            all_gather(unit).wait()
    return optimizer


def wrong_plots_copies(units, backwards, optimizer_cls, rank, world_size):
    mine = [unit.chunk(world_size)[rank] for unit in units]
    optimizer = optimizer_cls(mine)
    plot = []
    for backward in backwards:
        for number, gradient in backward:
            plot.append(gradient.clone())
            reduce_scatter(gradient).wait()
            mine[number].grad = gradient.chunk(world_size)[rank] / world_size
            del gradient
        optimizer.step()
        for unit in units:
            all_gather(unit).wait()
    return optimizer


def wrong_plots_lists(units, backwards, optimizer_cls, rank, world_size):
    """outside of torch"""
    mine = [unit.chunk(world_size)[rank] for unit in units]
    optimizer = optimizer_cls(mine)
    plot = []
    for backward in backwards:
        for number, gradient in backward:
            plot.append(gradient.tolist())
            reduce_scatter(gradient).wait()
            mine[number].grad = gradient.chunk(world_size)[rank] / world_size
            del gradient
        optimizer.step()
        for unit in units:
            all_gather(unit).wait()
    return optimizer


def wrong_plots_this_ranks_parts(units, backwards, optimizer_cls, rank, world_size):
    """those of the steps before are still there"""
    mine = [unit.chunk(world_size)[rank] for unit in units]
    optimizer = optimizer_cls(mine)
    plot = []
    for backward in backwards:
        for number, gradient in backward:
            reduce_scatter(gradient).wait()
            mine[number].grad = gradient.chunk(world_size)[rank] / world_size
            plot.append(mine[number].grad)
            del gradient
        optimizer.step()
        for unit in units:
            all_gather(unit).wait()
    return optimizer


def wrong_the_plot_begins_anew_in_each_step(units, backwards, optimizer_cls, rank, world_size):
    mine = [unit.chunk(world_size)[rank] for unit in units]
    optimizer = optimizer_cls(mine)
    plot = []
    for backward in backwards:
        for number, gradient in backward:
            plot.append(gradient)
            reduce_scatter(gradient).wait()
            mine[number].grad = gradient.chunk(world_size)[rank] / world_size
            del gradient
        optimizer.step()
        for unit in units:
            all_gather(unit).wait()
        plot.clear()
    return optimizer


def wrong_norms_once_the_step_is_over(units, backwards, optimizer_cls, rank, world_size):
    mine = [unit.chunk(world_size)[rank] for unit in units]
    optimizer = optimizer_cls(mine)
    plot = []
    for backward in backwards:
        for number, gradient in backward:
            plot.append(gradient)
            reduce_scatter(gradient).wait()
            mine[number].grad = gradient.chunk(world_size)[rank] / world_size
            del gradient
        optimizer.step()
        for unit in units:
            all_gather(unit).wait()
        norms = [gradient.norm().item() for gradient in plot]
        plot = []
    return optimizer


def wrong_only_the_last_steps_gradients_by_number(units, backwards, optimizer_cls, rank, world_size):
    mine = [unit.chunk(world_size)[rank] for unit in units]
    optimizer = optimizer_cls(mine)
    plot = {}
    for backward in backwards:
        for number, gradient in backward:
            plot[number] = gradient
            reduce_scatter(gradient).wait()
            mine[number].grad = gradient.chunk(world_size)[rank] / world_size
            del gradient
        optimizer.step()
        for unit in units:
            all_gather(unit).wait()
    return optimizer


def wrong_keeps_functions_that_compute_the_norm(units, backwards, optimizer_cls, rank, world_size):
    mine = [unit.chunk(world_size)[rank] for unit in units]
    optimizer = optimizer_cls(mine)
    plot = []
    for backward in backwards:
        for number, gradient in backward:
            plot.append(gradient.norm if number else gradient.sum)
            reduce_scatter(gradient).wait()
            mine[number].grad = gradient.chunk(world_size)[rank] / world_size
            del gradient
        optimizer.step()
        for unit in units:
            all_gather(unit).wait()
    return optimizer
