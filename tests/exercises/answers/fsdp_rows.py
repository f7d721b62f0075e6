def right_clamped(rows, world_size, rank):
    size = -(-rows // world_size)
    return min(rank * size, rows), min((rank + 1) * size, rows)


def right_by_torch(rows, world_size, rank):
    chunks = torch.arange(rows).chunk(world_size)
    if rank >= len(chunks) or not len(chunks[rank]):
        return rows, rows
    return int(chunks[rank][0]), int(chunks[rank][-1]) + 1


def right_as_a_list(rows, world_size, rank):
    size = (rows + world_size - 1) // world_size
    start = min(size * rank, rows)
    return [start, min(start + size, rows)]


def right_as_tensors_without_dimensions(rows, world_size, rank):
    size = -(-rows // world_size)
    return torch.tensor(min(rank * size, rows)), torch.tensor(min((rank + 1) * size, rows))


def right_by_sets(rows, world_size, rank):
    size = math.ceil(rows / world_size)
    mine = [row for row in range(rows) if row // size == rank]
    return (mine[0], mine[-1] + 1) if mine else (rows, rows)


def right_as_an_array(rows, world_size, rank):
    size = -(-rows // world_size)
    return np.minimum(np.array([rank, rank + 1]) * size, rows)


def right_as_a_tensor(rows, world_size, rank):
    size = -(-rows // world_size)
    return (torch.tensor([rank, rank + 1]) * size).clamp(max=rows)


def wrong_rounded_down(rows, world_size, rank):
    size = rows // world_size
    return rank * size, (rank + 1) * size


def wrong_rounded_down_last_takes_the_rest(rows, world_size, rank):
    size = rows // world_size
    return rank * size, rows if rank == world_size - 1 else (rank + 1) * size


def wrong_spread_evenly(rows, world_size, rank):
    size, rest = divmod(rows, world_size)
    start = rank * size + min(rank, rest)
    return start, start + size + (rank < rest)


def wrong_beyond_the_end(rows, world_size, rank):
    size = -(-rows // world_size)
    return rank * size, (rank + 1) * size


def wrong_start_beyond_the_end(rows, world_size, rank):
    size = -(-rows // world_size)
    return rank * size, min((rank + 1) * size, rows)


def wrong_empty_is_zero(rows, world_size, rank):
    size = -(-rows // world_size)
    return (rank * size, min((rank + 1) * size, rows)) if rank * size < rows else (0, 0)


def wrong_empty_is_none(rows, world_size, rank):
    size = -(-rows // world_size)
    return (rank * size, min((rank + 1) * size, rows)) if rank * size < rows else None


def wrong_stop_within(rows, world_size, rank):
    size = -(-rows // world_size)
    return min(rank * size, rows), min((rank + 1) * size, rows) - 1


def wrong_one_more_row(rows, world_size, rank):
    size = rows // world_size + 1
    return min(rank * size, rows), min((rank + 1) * size, rows)


def wrong_start_and_length(rows, world_size, rank):
    size = -(-rows // world_size)
    start = min(rank * size, rows)
    return start, min(size, rows - start)


def wrong_counts_from_the_last(rows, world_size, rank):
    return right_clamped(rows, world_size, world_size - 1 - rank)


def wrong_rounded_to_nearest(rows, world_size, rank):
    size = max(1, round(rows / world_size))
    return min(rank * size, rows), min((rank + 1) * size, rows)


def wrong_where_rows_are_fewer_than_ranks(rows, world_size, rank):
    return right_clamped(rows, world_size, rank) if rows >= world_size else (0, rows)
