def _padded(unit, n):
    return -(-unit // n) * n


def right_by_windows(units, world_size, prefetch):
    flats = [_padded(u, world_size) for u in units]
    return 4 * (sum(flats) // world_size + max(sum(flats[i : i + 1 + prefetch]) for i in range(len(flats))))


def right_by_bytes(units, world_size, prefetch):
    shards = [4 * math.ceil(u / world_size) for u in units]
    peak = 0
    for i in range(len(units)):
        peak = max(peak, sum(shards) + sum(s * world_size for s in shards[i : i + prefetch + 1]))
    return peak


def right_with_a_queue(units, world_size, prefetch):
    flats = [_padded(u, world_size) for u in units]
    whole, highest, started = [], 0, 0
    for i in range(len(flats)):
        while started < len(flats) and started <= i + prefetch:
            whole.append(flats[started])
            started += 1
        highest = max(highest, sum(whole))
        whole.pop(0)
    return 4 * (highest + sum(flat // world_size for flat in flats))


def right_by_numpy(units, world_size, prefetch):
    shards = -(-np.array(units) // world_size)
    windows = [shards[i : i + prefetch + 1].sum() for i in range(len(units))]
    return 4 * (shards.sum() + max(windows) * world_size)


def right_as_a_tensor_without_dimensions(units, world_size, prefetch):
    return torch.tensor(right_by_windows(units, world_size, prefetch))


def wrong_no_prefetch(units, world_size, prefetch):
    return right_by_windows(units, world_size, 0)


def wrong_always_one(units, world_size, prefetch):
    return right_by_windows(units, world_size, 1)


def wrong_no_shards(units, world_size, prefetch):
    flats = [_padded(u, world_size) for u in units]
    return 4 * max(sum(flats[i : i + 1 + prefetch]) for i in range(len(flats)))


def wrong_shard_inside_the_flat(units, world_size, prefetch):
    flats = [_padded(u, world_size) for u in units]
    n = world_size
    return 4 * (sum(flats) // n + max(sum(flats[i : i + 1 + prefetch]) * (n - 1) // n for i in range(len(flats))))


def wrong_no_padding(units, world_size, prefetch):
    return 4 * (sum(u // world_size for u in units) + max(sum(units[i : i + 1 + prefetch]) for i in range(len(units))))


def wrong_the_largest_ones(units, world_size, prefetch):
    flats = [_padded(u, world_size) for u in units]
    return 4 * (sum(flats) // world_size + sum(sorted(flats)[-1 - prefetch :]))


def wrong_times_the_largest(units, world_size, prefetch):
    flats = [_padded(u, world_size) for u in units]
    return 4 * (sum(flats) // world_size + (1 + prefetch) * max(flats))


def wrong_first_units(units, world_size, prefetch):
    flats = [_padded(u, world_size) for u in units]
    return 4 * (sum(flats) // world_size + sum(flats[: 1 + prefetch]))


def wrong_full_windows_only(units, world_size, prefetch):
    flats = [_padded(u, world_size) for u in units]
    starts = range(max(0, len(flats) - prefetch))
    return 4 * (sum(flats) // world_size + max((sum(flats[i : i + 1 + prefetch]) for i in starts), default=0))


def wrong_everything_whole(units, world_size, prefetch):
    flats = [_padded(u, world_size) for u in units]
    return 4 * (sum(flats) // world_size + sum(flats))


def wrong_only_shards(units, world_size, prefetch):
    return 4 * sum(_padded(u, world_size) for u in units) // world_size


def wrong_in_elements(units, world_size, prefetch):
    return right_by_windows(units, world_size, prefetch) // 4


def wrong_wraps_around(units, world_size, prefetch):
    flats = [_padded(u, world_size) for u in units]
    n = len(flats)
    return 4 * (sum(flats) // world_size + max(sum(flats[(i + k) % n] for k in range(1 + prefetch)) for i in range(n)))


def wrong_alone_nothing_is_gathered(units, world_size, prefetch):
    return 4 * sum(units) if world_size == 1 else right_by_windows(units, world_size, prefetch)


def wrong_pads_the_sum(units, world_size, prefetch):
    flats = [_padded(u, world_size) for u in units]
    shard = _padded(sum(units), world_size) // world_size
    return 4 * (shard + max(sum(flats[i : i + 1 + prefetch]) for i in range(len(flats))))


def wrong_the_unit_before_is_still_there(units, world_size, prefetch):
    flats = [_padded(u, world_size) for u in units]
    return 4 * (sum(flats) // world_size + max(sum(flats[max(0, i - 1) : i + 1 + prefetch]) for i in range(len(flats))))
