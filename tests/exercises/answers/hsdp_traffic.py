def right_by_formula(num_params, world_size, groups):
    inside = world_size // groups
    shard = num_params // inside
    return 3 * shard * (inside - 1), 2 * shard * (groups - 1) // groups


def right_as_a_list(num_params, world_size, groups):
    k = world_size // groups
    return [3 * (num_params - num_params // k), 2 * (num_params // k - num_params // k // groups)]


def right_as_floats(num_params, world_size, groups):
    k = world_size / groups
    return 3 * num_params * (k - 1) / k, 2 * num_params / k * (groups - 1) / groups


def right_as_tensors_without_dimensions(num_params, world_size, groups):
    k = world_size // groups
    return torch.tensor(3 * num_params * (k - 1) // k), torch.tensor(2 * (num_params // world_size) * (groups - 1))


def right_by_messages(num_params, world_size, groups):
    k = world_size // groups
    inside = sum(num_params // k for _ in range(3) for _ in range(k - 1))
    across = sum(num_params // k // groups for _ in range(2) for _ in range(groups - 1))
    return inside, across


def right_as_an_array(num_params, world_size, groups):
    k = world_size // groups
    return np.array([3 * num_params * (k - 1) // k, 2 * (num_params // world_size) * (groups - 1)])


def wrong_one_gather(num_params, world_size, groups):
    a, b = right_by_formula(num_params, world_size, groups)
    return 2 * a // 3, b


def wrong_whole_model_across(num_params, world_size, groups):
    k = world_size // groups
    return 3 * num_params // k * (k - 1), 2 * num_params * (groups - 1) // groups


def wrong_shard_across_once(num_params, world_size, groups):
    a, b = right_by_formula(num_params, world_size, groups)
    return a, b // 2


def wrong_groups_for_ranks(num_params, world_size, groups):
    return right_by_formula(num_params, world_size, world_size // groups)


def wrong_all_ranks_inside(num_params, world_size, groups):
    return 3 * num_params // world_size * (world_size - 1), right_by_formula(num_params, world_size, groups)[1]


def wrong_swapped(num_params, world_size, groups):
    return right_by_formula(num_params, world_size, groups)[::-1]


def wrong_sum(num_params, world_size, groups):
    return sum(right_by_formula(num_params, world_size, groups))


def wrong_sends_to_itself(num_params, world_size, groups):
    k = world_size // groups
    return 3 * num_params, 2 * num_params // k


def wrong_shard_of_the_world_across(num_params, world_size, groups):
    return right_by_formula(num_params, world_size, groups)[0], 2 * (num_params // world_size) * (groups - 1) // groups


def wrong_all_ranks_across(num_params, world_size, groups):
    k = world_size // groups
    return right_by_formula(num_params, world_size, groups)[0], 2 * (num_params // k) * (world_size - 1) // world_size


def wrong_with_one_group_as_ddp(num_params, world_size, groups):
    if groups == 1:
        return 2 * num_params * (world_size - 1) // world_size, 0
    return right_by_formula(num_params, world_size, groups)


def wrong_something_crosses_with_one_group(num_params, world_size, groups):
    a, b = right_by_formula(num_params, world_size, groups)
    return a, b if groups > 1 else 2 * num_params // world_size


def wrong_groups_of_one_gather_themselves(num_params, world_size, groups):
    a, b = right_by_formula(num_params, world_size, groups)
    return a if groups < world_size else 3 * num_params, b


def wrong_in_bytes(num_params, world_size, groups):
    a, b = right_by_formula(num_params, world_size, groups)
    return 4 * a, 4 * b
