def right_by_cases(stage, num_params, largest, gpus):
    return 18 * num_params // gpus + (2 * num_params if stage == 2 else 4 * largest)


def right_term_by_term(stage, num_params, largest, gpus):
    shard = num_params // gpus
    total = sum(b * shard for b in (4, 8, 2, 4))
    if stage == 2:
        total += num_params * 2
    if stage == 3:
        total += largest * 4
    return total


def right_as_a_float(stage, num_params, largest, gpus):
    return num_params * 18 / gpus + {2: num_params * 2.0, 3: largest * 4.0}[stage]


def right_by_numpy(stage, num_params, largest, gpus):
    return np.int64(num_params // gpus) * 18 + (np.int64(num_params) * 2 if stage < 3 else np.int64(largest) * 4)


def right_as_a_tensor_without_dimensions(stage, num_params, largest, gpus):
    return torch.tensor(18 * (num_params // gpus) + (2 * num_params if stage == 2 else 4 * largest))


def wrong_stage_3_keeps_a_shard_of_fp16(stage, num_params, largest, gpus):
    return 18 * num_params // gpus + (2 * num_params if stage == 2 else 4 * largest + 2 * num_params // gpus)


def wrong_largest_counts_twice_two(stage, num_params, largest, gpus):
    return 18 * num_params // gpus + (2 * num_params if stage == 2 else 2 * largest)


def wrong_no_fp32_gradient(stage, num_params, largest, gpus):
    return 14 * num_params // gpus + (2 * num_params if stage == 2 else 4 * largest)


def wrong_stage_2_keeps_gradients_whole(stage, num_params, largest, gpus):
    return 16 * num_params // gpus + 2 * num_params + (2 * num_params if stage == 2 else 4 * largest)


def wrong_nothing_is_sharded(stage, num_params, largest, gpus):
    return 18 * num_params + (2 * num_params if stage == 2 else 4 * largest)


def wrong_largest_in_stage_2_too(stage, num_params, largest, gpus):
    return 18 * num_params // gpus + 4 * largest + (2 * num_params if stage == 2 else 0)


def wrong_stage_3_without_largest(stage, num_params, largest, gpus):
    return 18 * num_params // gpus + (2 * num_params if stage == 2 else 0)


def wrong_largest_is_sharded(stage, num_params, largest, gpus):
    return 18 * num_params // gpus + (2 * num_params if stage == 2 else 4 * largest // gpus)


def wrong_sixteen(stage, num_params, largest, gpus):
    return 16 * num_params // gpus + (2 * num_params if stage == 2 else 4 * largest)


def wrong_stage_2_shards_all(stage, num_params, largest, gpus):
    return 20 * num_params // gpus if stage == 2 else 18 * num_params // gpus + 4 * largest


def wrong_both_stages_alike(stage, num_params, largest, gpus):
    return 18 * num_params // gpus + 2 * num_params


def wrong_one_gpu_is_plain_training(stage, num_params, largest, gpus):
    return 16 * num_params if gpus == 1 else right_by_cases(stage, num_params, largest, gpus)


def wrong_text_stage(stage, num_params, largest, gpus):
    return 18 * num_params // gpus + (2 * num_params if stage == "2" else 4 * largest)
