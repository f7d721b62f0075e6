import torch


def _cut(units, rank, world_size):
    for unit in units:
        unit.mine = unit.parameters.chunk(world_size)[rank].clone()
        unit.release()


def right_with_a_helper(units, batches, optimizer_cls, forward, backward):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    _cut(units, rank, world_size)
    optimizer = optimizer_cls([unit.mine for unit in units])
    for inputs, loss_gradient in batches:
        backward(units, loss_gradient(forward(units, inputs)))
        optimizer.step()
    return optimizer


def right_under_no_grad(units, batches, optimizer_cls, forward, backward):
    with torch.no_grad():
        return right_with_a_helper(units, batches, optimizer_cls, forward, backward)


def right_with_parameters(units, batches, optimizer_cls, forward, backward):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    for unit in units:
        unit.mine = torch.nn.Parameter(unit.parameters.view(world_size, -1)[rank].clone())
        unit.release()
    optimizer = optimizer_cls([unit.mine for unit in units])
    with torch.no_grad():
        for inputs, loss_gradient in batches:
            backward(units, loss_gradient(forward(units, inputs)))
            optimizer.step()
    return optimizer


def right_with_param_groups(units, batches, optimizer_cls, forward, backward):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    _cut(units, rank, world_size)
    optimizer = optimizer_cls([units[0].mine])
    for unit in units[1:]:
        optimizer.add_param_group({"params": unit.mine})
    for batch, loss_gradient in batches:
        outputs = forward(units, batch)
        output_gradient = loss_gradient(outputs)
        backward(units, output_gradient)
        optimizer.step()
    return optimizer


class _Several:
    def __init__(self, optimizers):
        self.optimizers = optimizers

    def step(self):
        for optimizer in self.optimizers:
            optimizer.step()


def right_one_optimizer_for_each_unit(units, batches, optimizer_cls, forward, backward):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    _cut(units, rank, world_size)
    optimizer = _Several([optimizer_cls([unit.mine]) for unit in units])
    for inputs, loss_gradient in batches:
        outputs = forward(units, inputs)
        backward(units, loss_gradient(outputs))
        optimizer.step()
    return optimizer


def right_forgets_gradients_in_between(units, batches, optimizer_cls, forward, backward):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    _cut(units, rank, world_size)
    optimizer = optimizer_cls([unit.mine for unit in units])
    for inputs, loss_gradient in batches:
        optimizer.zero_grad()
        outputs = forward(units, inputs)
        backward(units, loss_gradient(outputs))
        optimizer.step()
    return optimizer


def wrong_views(units, batches, optimizer_cls, forward, backward):
    """the optimizer's tensor for unit 0 lies in the flat, which is released"""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    for unit in units:
        unit.mine = unit.parameters.chunk(world_size)[rank]
        unit.release()
    optimizer = optimizer_cls([unit.mine for unit in units])
    for inputs, loss_gradient in batches:
        backward(units, loss_gradient(forward(units, inputs)))
        optimizer.step()
    return optimizer


def wrong_not_released(units, batches, optimizer_cls, forward, backward):
    """too many units were whole at a time"""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    for unit in units:
        unit.mine = unit.parameters.chunk(world_size)[rank].clone()
    optimizer = optimizer_cls([unit.mine for unit in units])
    for inputs, loss_gradient in batches:
        backward(units, loss_gradient(forward(units, inputs)))
        optimizer.step()
    return optimizer


def wrong_neighbours_shard(units, batches, optimizer_cls, forward, backward):
    """this rank owns shard 0"""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    _cut(units, (rank + 1) % world_size, world_size)
    optimizer = optimizer_cls([unit.mine for unit in units])
    for inputs, loss_gradient in batches:
        backward(units, loss_gradient(forward(units, inputs)))
        optimizer.step()
    return optimizer


def wrong_optimizer_over_the_flats(units, batches, optimizer_cls, forward, backward):
    """the optimizer updates whole flats"""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    _cut(units, rank, world_size)
    optimizer = optimizer_cls([unit.parameters for unit in units])
    for inputs, loss_gradient in batches:
        backward(units, loss_gradient(forward(units, inputs)))
        optimizer.step()
    return optimizer


def wrong_new_optimizer_in_each_step(units, batches, optimizer_cls, forward, backward):
    """the optimizer had forgotten the steps before"""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    _cut(units, rank, world_size)
    for inputs, loss_gradient in batches:
        optimizer = optimizer_cls([unit.mine for unit in units])
        backward(units, loss_gradient(forward(units, inputs)))
        optimizer.step()
    return optimizer


def wrong_no_update(units, batches, optimizer_cls, forward, backward):
    """the optimizer made no update"""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    _cut(units, rank, world_size)
    optimizer = optimizer_cls([unit.mine for unit in units])
    for inputs, loss_gradient in batches:
        backward(units, loss_gradient(forward(units, inputs)))
    return optimizer


def wrong_one_update_at_the_end(units, batches, optimizer_cls, forward, backward):
    """the optimizer made no update"""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    _cut(units, rank, world_size)
    optimizer = optimizer_cls([unit.mine for unit in units])
    for inputs, loss_gradient in batches:
        backward(units, loss_gradient(forward(units, inputs)))
    optimizer.step()
    return optimizer


def wrong_gathers_after_the_update(units, batches, optimizer_cls, forward, backward):
    """made 36 all_gather"""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    _cut(units, rank, world_size)
    optimizer = optimizer_cls([unit.mine for unit in units])
    for inputs, loss_gradient in batches:
        backward(units, loss_gradient(forward(units, inputs)))
        optimizer.step()
        for unit in units:
            unit.allocate()
            unit.parameters.chunk(world_size)[rank].copy_(unit.mine)
            all_gather(unit.parameters).wait()
            unit.release()
    return optimizer


def wrong_backward_of_the_outputs(units, batches, optimizer_cls, forward, backward):
    """differs from the mean over all ranks"""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    _cut(units, rank, world_size)
    optimizer = optimizer_cls([unit.mine for unit in units])
    for inputs, _ in batches:
        backward(units, forward(units, inputs))
        optimizer.step()
    return optimizer


def wrong_divided_once_more(units, batches, optimizer_cls, forward, backward):
    """the mean divided by `world_size` once too often"""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    _cut(units, rank, world_size)
    optimizer = optimizer_cls([unit.mine for unit in units])
    for inputs, loss_gradient in batches:
        backward(units, loss_gradient(forward(units, inputs)))
        for unit in units:
            unit.mine.grad.div_(world_size)
        optimizer.step()
    return optimizer


def wrong_two_updates_a_step(units, batches, optimizer_cls, forward, backward):
    """optimizer.step() was called 2 times"""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    _cut(units, rank, world_size)
    optimizer = optimizer_cls([unit.mine for unit in units])
    for inputs, loss_gradient in batches:
        backward(units, loss_gradient(forward(units, inputs)))
        optimizer.step()
        optimizer.step()
    return optimizer


def wrong_all_shards_of_every_unit(units, batches, optimizer_cls, forward, backward):
    """a second copy of the whole gradient or of the parameters"""
    backup = [unit.parameters.clone() for unit in units]
    optimizer = right_with_a_helper(units, batches, optimizer_cls, forward, backward)
    del backup
    return optimizer


def wrong_whole_parameters_as_numpy(units, batches, optimizer_cls, forward, backward):
    """outside of torch"""
    backup = [unit.parameters.clone().numpy().copy() for unit in units]
    optimizer = right_with_a_helper(units, batches, optimizer_cls, forward, backward)
    del backup
    return optimizer


def wrong_calls_the_shipped_solution(units, batches, optimizer_cls, forward, backward):
    """write your own"""
    from zerolab.exercises.zero3_train import zero3

    return zero3(units, batches, optimizer_cls, forward, backward)


def wrong_everybody_cuts_the_first_shard(units, batches, optimizer_cls, forward, backward):
    """rank 1, step 1: unit 0: the optimizer updates shard 0; this rank owns shard 1"""
    _cut(units, 0, dist.get_world_size())
    optimizer = optimizer_cls([unit.mine for unit in units])
    for inputs, loss_gradient in batches:
        backward(units, loss_gradient(forward(units, inputs)))
        optimizer.step()
    return optimizer
