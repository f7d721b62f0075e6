def right_by_cases(stage, num_params, world_size):
    shard = num_params // world_size
    return {
        "ddp": 20 * num_params,
        "zero1": 4 * num_params + 16 * shard,
        "zero2": 2 * num_params + 18 * shard,
        "zero3": 20 * shard,
    }[stage]


def right_term_by_term(stage, num_params, world_size):
    level = ("ddp", "zero1", "zero2", "zero3").index(stage)
    sizes = ((3, 2), (2, 2), (1, 12), (1, 4))
    return sum(b * num_params // (world_size if level >= first else 1) for first, b in sizes)


def right_with_true_division(stage, num_params, world_size):
    n = world_size
    total = num_params * (2 if stage != "zero3" else 2 / n)
    total += num_params * (2 if stage in ("ddp", "zero1") else 2 / n)
    return total + num_params * (16 if stage == "ddp" else 16 / n)


def right_as_a_tensor_without_dimensions(stage, num_params, world_size):
    own = num_params if stage == "ddp" else num_params // world_size
    grad = own if stage in ("zero2", "zero3") else num_params
    param = own if stage == "zero3" else num_params
    return torch.tensor(2 * param + 2 * grad + 16 * own)


def right_by_match(stage, num_params, world_size):
    match stage:
        case "ddp":
            whole = 20
        case "zero1":
            whole = 4
        case "zero2":
            whole = 2
        case _:
            whole = 0
    return whole * num_params + (20 - whole) * num_params // world_size


def wrong_no_cast(stage, num_params, world_size):
    s = num_params // world_size
    return {
        "ddp": 16 * num_params,
        "zero1": 4 * num_params + 12 * s,
        "zero2": 2 * num_params + 14 * s,
        "zero3": 16 * s,
    }[stage]


def wrong_cast_of_the_whole(stage, num_params, world_size):
    s = num_params // world_size
    return (
        4 * num_params
        + {"ddp": 16 * num_params, "zero1": 4 * num_params + 12 * s, "zero2": 2 * num_params + 14 * s, "zero3": 16 * s}[
            stage
        ]
    )


def wrong_no_cast_in_ddp(stage, num_params, world_size):
    s = num_params // world_size
    return {
        "ddp": 16 * num_params,
        "zero1": 4 * num_params + 16 * s,
        "zero2": 2 * num_params + 18 * s,
        "zero3": 20 * s,
    }[stage]


def wrong_cast_replaces_the_gradient(stage, num_params, world_size):
    s = num_params // world_size
    return {
        "ddp": 18 * num_params,
        "zero1": 2 * num_params + 16 * s,
        "zero2": 2 * num_params + 16 * s,
        "zero3": 18 * s,
    }[stage]


def wrong_zero1_shards_gradients(stage, num_params, world_size):
    s = num_params // world_size
    return {
        "ddp": 20 * num_params,
        "zero1": 2 * num_params + 18 * s,
        "zero2": 2 * num_params + 18 * s,
        "zero3": 20 * s,
    }[stage]


def wrong_zero3_keeps_parameters(stage, num_params, world_size):
    s = num_params // world_size
    return {
        "ddp": 20 * num_params,
        "zero1": 4 * num_params + 16 * s,
        "zero2": 2 * num_params + 18 * s,
        "zero3": 2 * num_params + 18 * s,
    }[stage]


def wrong_all_sharded(stage, num_params, world_size):
    return 20 * num_params // world_size


def wrong_nothing_sharded(stage, num_params, world_size):
    return 20 * num_params


def wrong_master_copy_whole(stage, num_params, world_size):
    s = num_params // world_size
    return {
        "ddp": 20 * num_params,
        "zero1": 8 * num_params + 12 * s,
        "zero2": 6 * num_params + 14 * s,
        "zero3": 20 * s,
    }[stage]


def wrong_fp32_throughout(stage, num_params, world_size):
    s = num_params // world_size
    return {"ddp": 16 * num_params, "zero1": 8 * num_params + 8 * s, "zero2": 4 * num_params + 12 * s, "zero3": 16 * s}[
        stage
    ]


def wrong_one_rank_is_ddp_without_cast(stage, num_params, world_size):
    if world_size == 1:
        return 16 * num_params
    s = num_params // world_size
    return {
        "ddp": 20 * num_params,
        "zero1": 4 * num_params + 16 * s,
        "zero2": 2 * num_params + 18 * s,
        "zero3": 20 * s,
    }[stage]
