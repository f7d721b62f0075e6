def right_by_cases(stage, num_params, world_size, micro_batches):
    once = num_params // world_size * (world_size - 1)
    return once * {"ddp": 2, "zero1": 2, "zero2": micro_batches + 1}[stage]


def right_with_a_loop(stage, num_params, world_size, micro_batches):
    sent = 0
    for number in range(micro_batches):
        if stage == "zero2" or number == micro_batches - 1:
            sent += (1 if stage != "ddp" else 2) * num_params * (world_size - 1) // world_size
    return sent + (0 if stage == "ddp" else num_params * (world_size - 1) // world_size)


def right_as_a_float(stage, num_params, world_size, micro_batches):
    return (num_params - num_params / world_size) * (2 if stage != "zero2" else 1 + micro_batches)


def right_by_subtraction(stage, num_params, world_size, micro_batches):
    others = num_params - num_params // world_size
    return others + (micro_batches if stage == "zero2" else 1) * others


def right_as_a_tensor_without_dimensions(stage, num_params, world_size, micro_batches):
    return torch.tensor(num_params) // world_size * (world_size - 1) * (2 if stage != "zero2" else 1 + micro_batches)


def wrong_all_stages_reduce_each_micro_batch(stage, num_params, world_size, micro_batches):
    once = num_params // world_size * (world_size - 1)
    return once * (2 * micro_batches if stage == "ddp" else 1 + micro_batches)


def wrong_zero2_reduces_once(stage, num_params, world_size, micro_batches):
    return 2 * (num_params // world_size) * (world_size - 1)


def wrong_gathers_each_micro_batch(stage, num_params, world_size, micro_batches):
    once = num_params // world_size * (world_size - 1)
    return once * {"ddp": 2, "zero1": 1 + micro_batches, "zero2": 2 * micro_batches}[stage]


def wrong_sends_to_itself(stage, num_params, world_size, micro_batches):
    return num_params * {"ddp": 2, "zero1": 2, "zero2": micro_batches + 1}[stage]


def wrong_all_reduce_counts_once(stage, num_params, world_size, micro_batches):
    once = num_params // world_size * (world_size - 1)
    return once * {"ddp": 1, "zero1": 2, "zero2": micro_batches + 1}[stage]


def wrong_no_gather(stage, num_params, world_size, micro_batches):
    once = num_params // world_size * (world_size - 1)
    return once * {"ddp": 2, "zero1": 1, "zero2": micro_batches}[stage]


def wrong_a_shard_only(stage, num_params, world_size, micro_batches):
    return num_params // world_size * {"ddp": 2, "zero1": 2, "zero2": micro_batches + 1}[stage]


def wrong_in_bytes(stage, num_params, world_size, micro_batches):
    once = num_params // world_size * (world_size - 1)
    return 4 * once * {"ddp": 2, "zero1": 2, "zero2": micro_batches + 1}[stage]


def wrong_micro_batches_minus_one(stage, num_params, world_size, micro_batches):
    once = num_params // world_size * (world_size - 1)
    return once * {"ddp": 2, "zero1": 2, "zero2": max(1, micro_batches - 1) + 1}[stage]


def wrong_alone_counts_as_two(stage, num_params, world_size, micro_batches):
    n = max(2, world_size)
    return num_params // n * (n - 1) * {"ddp": 2, "zero1": 2, "zero2": micro_batches + 1}[stage]


def wrong_all_ranks_together(stage, num_params, world_size, micro_batches):
    return num_params * (world_size - 1) * {"ddp": 2, "zero1": 2, "zero2": micro_batches + 1}[stage]


def wrong_one_micro_batch_needs_no_reduction(stage, num_params, world_size, micro_batches):
    once = num_params // world_size * (world_size - 1)
    if micro_batches == 1 and stage == "zero2":
        return once
    return once * {"ddp": 2, "zero1": 2, "zero2": micro_batches + 1}[stage]
