def _bytes(num_params, gpus):
    shard = num_params // gpus
    return {
        "ddp": 16 * num_params,
        "zero1": 8 * num_params + 8 * shard,
        "zero2": 4 * num_params + 12 * shard,
        "zero3": 16 * shard,
    }


def right_first_of_a_dict(num_params, gpus, memory, activations):
    left = memory - activations
    return next((stage for stage, size in _bytes(num_params, gpus).items() if size <= left), "none")


def right_if_chain(num_params, gpus, memory, activations):
    free, p, s = memory - activations, num_params, num_params // gpus
    if free >= 16 * p:
        return "ddp"
    if free >= 8 * p + 8 * s:
        return "zero1"
    if free >= 4 * p + 12 * s:
        return "zero2"
    return "zero3" if free >= 16 * s else "none"


def right_in_fractions(num_params, gpus, memory, activations):
    sharded = {"ddp": 0, "zero1": 8, "zero2": 12, "zero3": 16}
    for stage, cut in sharded.items():
        if (16 - cut) * num_params + Fraction(cut * num_params, gpus) + activations <= memory:
            return stage
    return "none"


def right_counting_what_does_not_fit(num_params, gpus, memory, activations):
    names = ["ddp", "zero1", "zero2", "zero3", "none"]
    return names[sum(size + activations > memory for size in _bytes(num_params, gpus).values())]


def right_as_a_numpy_string(num_params, gpus, memory, activations):
    return np.array(["ddp", "zero1", "zero2", "zero3", "none"])[
        sum(size + activations > memory for size in _bytes(num_params, gpus).values())
    ]


def wrong_exactly_full_is_no_fit(num_params, gpus, memory, activations):
    left = memory - activations
    return next((stage for stage, size in _bytes(num_params, gpus).items() if size < left), "none")


def wrong_no_activations(num_params, gpus, memory, activations):
    return right_first_of_a_dict(num_params, gpus, memory, 0)


def wrong_activations_divided(num_params, gpus, memory, activations):
    return right_first_of_a_dict(num_params, gpus, memory, activations // gpus)


def wrong_highest_that_fits(num_params, gpus, memory, activations):
    fits = [stage for stage, size in _bytes(num_params, gpus).items() if size <= memory - activations]
    return fits[-1] if fits else "none"


def wrong_zero1_shards_gradients(num_params, gpus, memory, activations):
    sizes = _bytes(num_params, gpus)
    sizes["zero1"] = sizes["zero2"]
    return next((stage for stage, size in sizes.items() if size <= memory - activations), "none")


def wrong_never_none(num_params, gpus, memory, activations):
    found = right_first_of_a_dict(num_params, gpus, memory, activations)
    return "zero3" if found == "none" else found


def wrong_returns_python_none(num_params, gpus, memory, activations):
    found = right_first_of_a_dict(num_params, gpus, memory, activations)
    return None if found == "none" else found


def wrong_no_ddp_on_many(num_params, gpus, memory, activations):
    found = right_first_of_a_dict(num_params, gpus, memory, activations)
    return "zero1" if found == "ddp" and gpus > 1 else found


def wrong_on_one_gpu_zero3(num_params, gpus, memory, activations):
    found = right_first_of_a_dict(num_params, gpus, memory, activations)
    return "zero3" if found == "none" and gpus == 1 else found


def wrong_zero2_skipped(num_params, gpus, memory, activations):
    found = right_first_of_a_dict(num_params, gpus, memory, activations)
    return "zero3" if found == "zero2" else found


def wrong_memory_of_all(num_params, gpus, memory, activations):
    return right_first_of_a_dict(num_params, gpus, memory * gpus, activations)


def wrong_bf16(num_params, gpus, memory, activations):
    s = num_params // gpus
    sizes = {
        "ddp": 16 * num_params,
        "zero1": 4 * num_params + 12 * s,
        "zero2": 2 * num_params + 14 * s,
        "zero3": 16 * s,
    }
    return next((stage for stage, size in sizes.items() if size <= memory - activations), "none")


def wrong_capitals(num_params, gpus, memory, activations):
    return right_first_of_a_dict(num_params, gpus, memory, activations).upper()


def wrong_zero1_exactly_full_is_no_fit(num_params, gpus, memory, activations):
    return right_first_of_a_dict(
        num_params, gpus, memory - (_bytes(num_params, gpus)["zero1"] == memory - activations), activations
    )


def wrong_zero2_exactly_full_is_no_fit(num_params, gpus, memory, activations):
    return right_first_of_a_dict(
        num_params, gpus, memory - (_bytes(num_params, gpus)["zero2"] == memory - activations), activations
    )


def wrong_zero3_exactly_full_is_no_fit(num_params, gpus, memory, activations):
    return right_first_of_a_dict(
        num_params, gpus, memory - (_bytes(num_params, gpus)["zero3"] == memory - activations), activations
    )


def wrong_ddp_exactly_full_is_no_fit(num_params, gpus, memory, activations):
    return right_first_of_a_dict(num_params, gpus, memory - (16 * num_params == memory - activations), activations)
