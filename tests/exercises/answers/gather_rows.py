def right_by_pad(mine, rows):
    most = math.ceil(rows / dist.get_world_size())
    part = torch.nn.functional.pad(mine, (0, 0, 0, most - len(mine)))
    parts = [torch.empty_like(part) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, part)
    return torch.cat(parts)[:rows]


def right_into_one_tensor(mine, rows):
    size = dist.get_world_size()
    most = -(-rows // size)
    whole = mine.new_zeros(size * most, mine.shape[1])
    part = mine.new_zeros(most, mine.shape[1])
    part[: mine.shape[0]] = mine
    dist.all_gather(list(whole.chunk(size)), part)
    return whole[:rows]


def right_leaving_out_rank_by_rank(mine, rows):
    size = dist.get_world_size()
    most = (rows + size - 1) // size
    part = torch.cat([mine, torch.zeros(most - len(mine), mine.shape[1])])
    parts = [torch.zeros(most, mine.shape[1]) for _ in range(size)]
    dist.all_gather(parts, part)
    return torch.cat([each[: max(0, min(most, rows - number * most))] for number, each in enumerate(parts)])


def right_with_a_wait(mine, rows):
    size = dist.get_world_size()
    most = -(-rows // size)
    part = torch.full((most, mine.shape[1]), float("nan"))
    part[: len(mine)] = mine
    parts = list(torch.empty(size, most, mine.shape[1]))
    dist.all_gather(parts, part, async_op=True).wait()
    return torch.cat(parts)[:rows].clone()


def right_flat(mine, rows):
    size, columns = dist.get_world_size(), mine.shape[1]
    most = -(-rows // size) * columns
    part = torch.zeros(most)
    part[: mine.numel()] = mine.flatten()
    parts = [torch.empty(most) for _ in range(size)]
    dist.all_gather(parts, part)
    return torch.cat(parts)[: rows * columns].view(rows, columns)


def wrong_with_what_was_filled_up(mine, rows):
    """leaves the rows in with which the parts were filled up"""
    most = -(-rows // dist.get_world_size())
    part = torch.nn.functional.pad(mine, (0, 0, 0, most - len(mine)))
    parts = [torch.empty_like(part) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, part)
    return torch.cat(parts)


def wrong_filled_up_above(mine, rows):
    """right is"""
    most = -(-rows // dist.get_world_size())
    part = torch.nn.functional.pad(mine, (0, 0, most - len(mine), 0))
    parts = [torch.empty_like(part) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, part)
    return torch.cat(parts)[:rows]


def wrong_rounded_down(mine, rows):
    """At places 6 to 11 stand the rows that belong 1 place further on."""
    most = rows // dist.get_world_size()
    part = torch.nn.functional.pad(mine[:most], (0, 0, 0, max(0, most - len(mine))))
    parts = [torch.empty_like(part) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, part)
    return torch.cat(parts)[:rows]


def wrong_its_own_rows_only(mine, rows):
    """It is `mine` as your function got it."""
    return mine


def wrong_own_rows_in_a_whole(mine, rows):
    """right is"""
    whole = mine.new_zeros(rows, mine.shape[1])
    most = -(-rows // dist.get_world_size())
    whole[dist.get_rank() * most :][: len(mine)] = mine
    return whole


def wrong_by_a_sum(mine, rows):
    """started all_reduce; the target is all_gather"""
    whole = mine.new_zeros(rows, mine.shape[1])
    most = -(-rows // dist.get_world_size())
    whole[dist.get_rank() * most :][: len(mine)] = mine
    dist.all_reduce(whole)
    return whole


def wrong_by_broadcasts(mine, rows):
    """broadcast; the target is all_gather"""
    most, parts = -(-rows // dist.get_world_size()), []
    for rank in range(dist.get_world_size()):
        part = (
            mine.clone()
            if rank == dist.get_rank()
            else torch.empty(max(0, min(most, rows - rank * most)), mine.shape[1])
        )
        if len(part):
            dist.broadcast(part, src=rank)
        parts.append(part)
    return torch.cat(parts)


def wrong_sizes_gathered_first(mine, rows):
    """started 2 all_gather; the target is all_gather"""
    sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(dist.get_world_size())]
    dist.all_gather(sizes, torch.tensor([len(mine)]))
    most = int(max(sizes))
    part = torch.nn.functional.pad(mine, (0, 0, 0, most - len(mine)))
    parts = [torch.empty_like(part) for _ in sizes]
    dist.all_gather(parts, part)
    return torch.cat([each[: int(size)] for each, size in zip(parts, sizes)])


def wrong_in_float64(mine, rows):
    """bytes; the target is"""
    most = -(-rows // dist.get_world_size())
    part = torch.nn.functional.pad(mine.double(), (0, 0, 0, most - len(mine)))
    parts = [torch.empty_like(part) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, part)
    return torch.cat(parts)[:rows].float()


def wrong_columns_joined(mine, rows):
    """right is"""
    most = -(-rows // dist.get_world_size())
    part = torch.nn.functional.pad(mine, (0, 0, 0, most - len(mine)))
    parts = [torch.empty_like(part) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, part)
    return torch.cat(parts, dim=1)


def wrong_last_rank_stays_away(mine, rows):
    """`gather_rows` hangs"""
    most = -(-rows // dist.get_world_size())
    part = torch.nn.functional.pad(mine, (0, 0, 0, most - len(mine)))
    parts = [torch.empty_like(part) for _ in range(dist.get_world_size())]
    if len(mine) == most:
        dist.all_gather(parts, part)
    return torch.cat(parts)[:rows]


def wrong_a_row_too_many_where_n_divides_them(mine, rows):
    """belongs there"""
    part = mine.new_zeros(rows // dist.get_world_size() + 1, mine.shape[1])
    part[: len(mine)] = mine
    parts = [torch.empty_like(part) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, part)
    return torch.cat(parts)[:rows]
