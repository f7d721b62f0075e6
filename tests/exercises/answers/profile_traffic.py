def right_by_cases(profile, world_size):
    sent = 0
    for op, elements_in, elements_out in profile:
        whole = {"all_reduce": elements_in, "reduce_scatter": elements_in, "all_gather": elements_out}[op]
        sent += (2 if op == "all_reduce" else 1) * whole // world_size * (world_size - 1)
    return sent


def right_by_the_larger_side(profile, world_size):
    return sum((1 + (op == "all_reduce")) * (max(a, b) - max(a, b) // world_size) for op, a, b in profile)


def right_by_shards(profile, world_size):
    others = world_size - 1
    sizes = {
        "all_reduce": lambda a, b: 2 * a // world_size,
        "reduce_scatter": lambda a, b: b,
        "all_gather": lambda a, b: a,
    }
    return sum(others * sizes[op](a, b) for op, a, b in profile)


def right_as_a_float(profile, world_size):
    return sum((2 if op == "all_reduce" else 1) * max(a, b) * (world_size - 1) / world_size for op, a, b in profile)


def right_as_a_tensor_without_dimensions(profile, world_size):
    return (
        torch.tensor([(1 + (op == "all_reduce")) * max(a, b) for op, a, b in profile]).sum()
        // world_size
        * (world_size - 1)
    )


def wrong_what_goes_in(profile, world_size):
    return sum((1 + (op == "all_reduce")) * a // world_size * (world_size - 1) for op, a, b in profile)


def wrong_what_comes_out(profile, world_size):
    return sum((1 + (op == "all_reduce")) * b // world_size * (world_size - 1) for op, a, b in profile)


def wrong_all_reduce_once(profile, world_size):
    return sum(max(a, b) // world_size * (world_size - 1) for op, a, b in profile)


def wrong_sends_to_itself(profile, world_size):
    return sum((1 + (op == "all_reduce")) * max(a, b) for op, a, b in profile)


def wrong_one_shard(profile, world_size):
    return sum((1 + (op == "all_reduce")) * max(a, b) // world_size for op, a, b in profile)


def wrong_alone_as_two(profile, world_size):
    return right_by_the_larger_side(profile, max(2, world_size))


def wrong_in_plus_out(profile, world_size):
    return sum((a + b) // world_size * (world_size - 1) for op, a, b in profile)


def wrong_gathers_left_out(profile, world_size):
    return right_by_cases([entry for entry in profile if entry[0] != "all_gather"], world_size)


def wrong_in_bytes(profile, world_size):
    return 4 * right_by_cases(profile, world_size)


def wrong_everything_twice(profile, world_size):
    return sum(2 * max(a, b) // world_size * (world_size - 1) for op, a, b in profile)


def wrong_only_the_first(profile, world_size):
    return right_by_cases(profile[:1], world_size)


def wrong_each_kind_once(profile, world_size):
    return right_by_cases(
        [(op, *next((a, b) for o, a, b in profile if o == op)) for op in {op for op, _, _ in profile}], world_size
    )
