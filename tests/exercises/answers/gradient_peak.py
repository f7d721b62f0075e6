def _padded(unit, n):
    return -(-unit // n) * n


def right_by_running_shards(units, world_size):
    kept = highest = 0
    for unit in reversed(units):
        flat = _padded(unit, world_size)
        highest = max(highest, kept + flat)
        kept += flat // world_size
    return 4 * highest


def right_by_comprehension(units, world_size):
    n = world_size
    return 4 * max(_padded(u, n) + sum(_padded(v, n) for v in units[i + 1 :]) // n for i, u in enumerate(units))


def right_all_states_of_one_pass(units, world_size):
    states, held = [], []
    for unit in units[::-1]:
        held.append(math.ceil(unit / world_size) * world_size)
        states.append(sum(held))
        held[-1] //= world_size
        states.append(sum(held))
    return 4 * max(states)


def right_by_numpy(units, world_size):
    flats = np.array([_padded(unit, world_size) for unit in units][::-1])
    shards = np.cumsum(flats // world_size) - flats // world_size
    return 4 * (flats + shards).max()


def right_as_a_tensor_without_dimensions(units, world_size):
    return torch.tensor(right_by_comprehension(units, world_size))


def wrong_the_largest_unit(units, world_size):
    return 4 * max(_padded(u, world_size) for u in units)


def wrong_all_shards_and_the_largest(units, world_size):
    flats = [_padded(u, world_size) for u in units]
    return 4 * (sum(flats) // world_size + max(flats))


def wrong_no_padding(units, world_size):
    return 4 * max(u + sum(v // world_size for v in units[i + 1 :]) for i, u in enumerate(units))


def wrong_forward_order(units, world_size):
    return right_by_comprehension(units[::-1], world_size)


def wrong_at_the_end_only(units, world_size):
    flats = [_padded(u, world_size) for u in units]
    return 4 * (flats[0] + sum(flats[1:]) // world_size)


def wrong_its_own_shard_beside(units, world_size):
    n = world_size
    return 4 * max(_padded(u, n) + sum(_padded(v, n) for v in units[i:]) // n for i, u in enumerate(units))


def wrong_all_whole(units, world_size):
    return 4 * sum(_padded(u, world_size) for u in units)


def wrong_only_shards(units, world_size):
    return 4 * sum(_padded(u, world_size) for u in units) // world_size


def wrong_in_elements(units, world_size):
    return right_by_comprehension(units, world_size) // 4


def wrong_two_whole(units, world_size):
    n = world_size
    return 4 * max(_padded(u, n) + sum(_padded(v, n) for v in units[i + 1 : i + 2]) for i, u in enumerate(units))


def wrong_pads_the_sum(units, world_size):
    n = world_size
    return 4 * max(_padded(u, n) + _padded(sum(units[i + 1 :]), n) // n for i, u in enumerate(units))


def wrong_shards_padded_flats_not(units, world_size):
    n = world_size
    return 4 * max(u + sum(_padded(v, n) for v in units[i + 1 :]) // n for i, u in enumerate(units))


def wrong_flats_padded_shards_not(units, world_size):
    n = world_size
    return 4 * max(_padded(u, n) + sum(v // n for v in units[i + 1 :]) for i, u in enumerate(units))


def wrong_a_whole_row_of_padding_always(units, world_size):
    n = world_size
    flats = [(u // n + 1) * n for u in units]
    return 4 * max(u + sum(flats[i + 1 :]) // n for i, u in enumerate(flats))


def wrong_of_one_unit_a_shard(units, world_size):
    return (
        4 * _padded(units[0], world_size) // world_size
        if len(units) == 1
        else right_by_comprehension(units, world_size)
    )
