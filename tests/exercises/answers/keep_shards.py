def right_into_one_tensor(values, sizes):
    rank, world = dist.get_rank(), dist.get_world_size()
    mine, place, start = torch.empty(sum(sizes) // world), 0, 0
    for size in sizes:
        unit = values[start : start + size] if rank == 0 else torch.empty(size)
        dist.broadcast(unit, src=0)
        part = size // world
        mine[place : place + part] = unit[rank * part : (rank + 1) * part]
        place, start = place + part, start + size
    return mine


def right_one_buffer_for_all(values, sizes):
    rank, world = dist.get_rank(), dist.get_world_size()
    buffer, shards, start = torch.empty(max(sizes)), [], 0
    for size in sizes:
        unit = buffer[:size]
        if rank == 0:
            unit.copy_(values[start : start + size])
        dist.broadcast(unit, src=0)
        shards.append(unit.chunk(world)[rank].clone())
        start += size
    return torch.cat(shards)


def right_by_split(values, sizes):
    rank, world = dist.get_rank(), dist.get_world_size()
    units = values.split(sizes) if rank == 0 else [None] * len(sizes)
    shards = []
    for unit, size in zip(units, sizes):
        unit = torch.zeros(size) if unit is None else unit
        dist.broadcast(unit, 0)
        shards.append(unit.view(world, -1)[rank].clone())
    return torch.cat(shards)


def right_with_a_wait(values, sizes):
    rank, world = dist.get_rank(), dist.get_world_size()
    mine, start = [], 0
    for size in sizes:
        unit = values[start : start + size].clone() if rank == 0 else torch.empty(size)
        dist.broadcast(unit, src=0, async_op=True).wait()
        mine.append(unit[rank * size // world :][: size // world].clone())
        start += size
    return torch.cat(mine)


def right_with_a_helper(values, sizes):
    rank, world = dist.get_rank(), dist.get_world_size()

    def shard(start, size):
        unit = torch.empty(size)
        if rank == 0:
            unit[:] = values[start : start + size]
        dist.broadcast(unit, src=0)
        return unit.chunk(world)[rank].clone()

    return torch.cat([shard(sum(sizes[:at]), size) for at, size in enumerate(sizes)])


def wrong_keeps_views(values, sizes):
    """bytes beside its arguments"""
    rank, world = dist.get_rank(), dist.get_world_size()
    shards, start = [], 0
    for size in sizes:
        unit = values[start : start + size] if rank == 0 else torch.empty(size)
        dist.broadcast(unit, src=0)
        shards.append(unit.chunk(world)[rank])
        start += size
    return torch.cat(shards)


def wrong_all_units_first(values, sizes):
    """bytes beside its arguments"""
    rank, world = dist.get_rank(), dist.get_world_size()
    units = list(values.split(sizes)) if rank == 0 else [torch.empty(size) for size in sizes]
    for unit in units:
        dist.broadcast(unit, src=0)
    return torch.cat([unit.chunk(world)[rank] for unit in units])


def wrong_whole_at_once(values, sizes):
    """started broadcast; the target is 6 broadcast"""
    rank, world = dist.get_rank(), dist.get_world_size()
    whole = values if rank == 0 else torch.empty(sum(sizes))
    dist.broadcast(whole, src=0)
    return torch.cat([unit.chunk(world)[rank] for unit in whole.split(sizes)])


def wrong_returns_the_whole_model(values, sizes):
    """It is `values` as your function got it."""
    units, start = [], 0
    for size in sizes:
        unit = values[start : start + size] if dist.get_rank() == 0 else torch.empty(size)
        dist.broadcast(unit, src=0)
        units.append(unit)
        start += size
    return torch.cat(units)


def wrong_rank_0s_part(values, sizes):
    """keeps rank 0's part on every rank"""
    world, shards, start = dist.get_world_size(), [], 0
    for size in sizes:
        unit = values[start : start + size] if dist.get_rank() == 0 else torch.empty(size)
        dist.broadcast(unit, src=0)
        shards.append(unit[: size // world].clone())
        start += size
    return torch.cat(shards)


def wrong_forgets_where_it_is(values, sizes):
    """places further to the front"""
    rank, world, shards = dist.get_rank(), dist.get_world_size(), []
    for size in sizes:
        unit = values[:size].clone() if rank == 0 else torch.empty(size)
        dist.broadcast(unit, src=0)
        shards.append(unit.chunk(world)[rank].clone())
    return torch.cat(shards)


def wrong_sends_nothing(values, sizes):
    """right is"""
    rank, world, shards, start = dist.get_rank(), dist.get_world_size(), [], 0
    for size in sizes:
        unit = values[start : start + size] if rank == 0 else torch.zeros(size)
        shards.append(unit.chunk(world)[rank].clone())
        start += size
    return torch.cat(shards)


def wrong_by_a_sum(values, sizes):
    """started 6 all_reduce; the target is 6 broadcast"""
    rank, world, shards, start = dist.get_rank(), dist.get_world_size(), [], 0
    for size in sizes:
        unit = values[start : start + size].clone() if rank == 0 else torch.zeros(size)
        dist.all_reduce(unit)
        shards.append(unit.chunk(world)[rank].clone())
        start += size
    return torch.cat(shards)


def wrong_a_list(values, sizes):
    """right is"""
    rank, world, shards, start = dist.get_rank(), dist.get_world_size(), [], 0
    for size in sizes:
        unit = values[start : start + size] if rank == 0 else torch.empty(size)
        dist.broadcast(unit, src=0)
        shards.append(unit.chunk(world)[rank].clone())
        start += size
    return shards


def wrong_the_model_cut_as_one(values, sizes):
    """cuts the model into `N` parts, and not each unit"""
    rank, world = dist.get_rank(), dist.get_world_size()
    part, mine, start = sum(sizes) // world, [], 0
    for size in sizes:
        unit = values[start : start + size] if rank == 0 else torch.empty(size)
        dist.broadcast(unit, src=0)
        first, last = max(start, rank * part), min(start + size, (rank + 1) * part)
        mine.append(unit[max(0, first - start) : max(0, last - start)].clone())
        start += size
    return torch.cat(mine)


def right_alone_without_an_exchange(values, sizes):
    return values if dist.get_world_size() == 1 else right_by_split(values, sizes)
