import numpy as np
import torch


def right_in_place(units, inputs):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    for unit in units:
        unit.allocate()
        unit.parameters.chunk(world_size)[rank].copy_(unit.mine)
        all_gather(unit.parameters).wait()
        inputs = unit.forward(inputs)
        unit.release()
    return inputs


def right_with_a_helper(units, inputs):
    rank, world_size = dist.get_rank(), dist.get_world_size()

    def gather(unit):
        unit.allocate()
        size = unit.mine.numel()
        unit.parameters[rank * size : (rank + 1) * size] = unit.mine
        return all_gather(unit.parameters)

    def through(unit, inputs):
        gather(unit).wait()
        outputs = unit.forward(inputs)
        unit.release()
        return outputs

    for number in range(len(units)):
        inputs = through(units[number], inputs)
    return inputs


def right_one_unit_ahead(units, inputs):
    rank, world_size = dist.get_rank(), dist.get_world_size()

    def start(unit):
        unit.allocate()
        unit.parameters.view(world_size, -1)[rank] = unit.mine
        return all_gather(unit.parameters, name=f"unit {units.index(unit)}")

    coming = start(units[0])
    for number, unit in enumerate(units):
        arriving, coming = coming, start(units[number + 1]) if number + 1 < len(units) else None
        arriving.wait()
        inputs = unit.forward(inputs)
        unit.release()
    return inputs


def right_under_no_grad(units, inputs):
    with torch.no_grad():
        return right_in_place(units, inputs)


def right_recursive(units, inputs):
    if not units:
        return inputs
    first, *others = units
    return right_recursive(others, right_in_place([first], inputs))


def wrong_nothing_of_its_own_sent(units, inputs):
    """are NaN: memory was read that nobody had filled"""
    for unit in units:
        unit.allocate()
        all_gather(unit.parameters).wait()
        inputs = unit.forward(inputs)
        unit.release()
    return inputs


def wrong_always_in_the_first_place(units, inputs):
    """copy `unit.mine` there before"""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    for unit in units:
        unit.allocate()
        unit.parameters.chunk(world_size)[0].copy_(unit.mine)
        all_gather(unit.parameters).wait()
        inputs = unit.forward(inputs)
        unit.release()
    return inputs


def wrong_all_whole_first(units, inputs):
    """too many units were whole at a time"""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    for unit in units:
        unit.allocate()
        unit.parameters.chunk(world_size)[rank].copy_(unit.mine)
        all_gather(unit.parameters).wait()
    for unit in units:
        inputs = unit.forward(inputs)
        unit.release()
    return inputs


def wrong_released_at_the_end(units, inputs):
    """Release a unit before you gather the one after the next."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    for unit in units:
        unit.allocate()
        unit.parameters.chunk(world_size)[rank].copy_(unit.mine)
        all_gather(unit.parameters).wait()
        inputs = unit.forward(inputs)
    for unit in units:
        unit.release()
    return inputs


def wrong_kept_for_backward(units, inputs):
    """too many units were whole at a time"""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    for unit in units:
        unit.allocate()
        unit.parameters.chunk(world_size)[rank].copy_(unit.mine)
        all_gather(unit.parameters).wait()
        inputs = unit.forward(inputs)
    return inputs


def wrong_released_before_use(units, inputs):
    """the forward of unit 0 was used after release"""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    for unit in units:
        unit.allocate()
        unit.parameters.chunk(world_size)[rank].copy_(unit.mine)
        all_gather(unit.parameters).wait()
        unit.release()
        inputs = unit.forward(inputs)
    return inputs


def wrong_not_gathered(units, inputs):
    """the forward of unit 0 was used after release"""
    for unit in units:
        inputs = unit.forward(inputs)
    return inputs


def wrong_without_allocating(units, inputs):
    """Call `unit.allocate()` before anything is written"""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    for unit in units:
        unit.parameters.chunk(world_size)[rank].copy_(unit.mine)
        all_gather(unit.parameters).wait()
        inputs = unit.forward(inputs)
        unit.release()
    return inputs


def wrong_returns_nothing(units, inputs):
    """`forward` returned nothing; it should return the outputs of the last unit"""
    right_in_place(units, inputs)


def wrong_returns_all_outputs(units, inputs):
    """`forward` returned a list; it should return the outputs of the last unit"""
    return [right_in_place(units, inputs)]


def wrong_leaves_the_last_unit_out(units, inputs):
    """the outputs of the last unit are"""
    return right_in_place(units[:-1], inputs)


def wrong_sums_zeros_and_shards(units, inputs):
    """made 12 all_reduce"""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    for unit in units:
        unit.allocate()
        unit.parameters.zero_()
        unit.parameters.chunk(world_size)[rank].copy_(unit.mine)
        all_reduce(unit.parameters).wait()
        inputs = unit.forward(inputs)
        unit.release()
    return inputs


def wrong_keeps_whole_units_as_numpy(units, inputs):
    """outside of torch"""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    kept = []
    for unit in units:
        unit.allocate()
        unit.parameters.chunk(world_size)[rank].copy_(unit.mine)
        all_gather(unit.parameters).wait()
        kept.append(np.array(unit.parameters.tolist(), dtype=np.float32))
        inputs = unit.forward(inputs)
        unit.release()
    return inputs


def wrong_calls_the_shipped_solution(units, inputs):
    """write your own"""
    from zerolab.exercises.zero3_forward import forward

    return forward(units, inputs)


def right_by_torchs_own_all_gather(units, inputs):
    for unit in units:
        unit.allocate()
        dist.all_gather(list(unit.parameters.chunk(dist.get_world_size())), unit.mine)
        inputs = unit.forward(inputs)
        unit.release()
    return inputs
