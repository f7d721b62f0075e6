def _split(stage, precision):
    sizes = (4, 4, 8) if precision == "fp32" else (2, 2, 12)
    cut = {"ddp": 3, "zero1": 2, "zero2": 1, "zero3": 0}[stage]
    return sum(sizes[:cut]), sum(sizes[cut:])


def right_by_formula(stage, num_params, precision, memory):
    whole, rest = _split(stage, precision)
    left = memory - whole * num_params
    if rest == 0:
        return 1 if left >= 0 else 0
    return 0 if left <= 0 else -(-rest * num_params // left)


def right_by_bisection(stage, num_params, precision, memory):
    whole, rest = _split(stage, precision)
    fits = lambda n: (memory - whole * num_params) * n >= rest * num_params
    if fits(1):
        return 1
    if memory <= whole * num_params or not rest:
        return 0
    high = 2
    while not fits(high):
        high *= 2
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high


def right_with_fractions(stage, num_params, precision, memory):
    whole, rest = _split(stage, precision)
    left = Fraction(memory) - whole * num_params
    if left < 0 or (left == 0 and rest):
        return 0
    return max(1, math.ceil(rest * num_params / left)) if left else 1


def right_as_a_tensor_without_dimensions(stage, num_params, precision, memory):
    return torch.tensor(right_by_formula(stage, num_params, precision, memory))


def right_all_on_one_first(stage, num_params, precision, memory):
    whole, rest = _split(stage, precision)
    if memory >= 16 * num_params:
        return 1
    left = memory - whole * num_params
    return (rest * num_params + left - 1) // left if left > 0 and rest else 0


def wrong_ddp_always_one(stage, num_params, precision, memory):
    return 1 if stage == "ddp" else right_by_formula(stage, num_params, precision, memory)


def wrong_ddp_divides(stage, num_params, precision, memory):
    return (
        max(1, -(-16 * num_params // memory))
        if stage == "ddp"
        else right_by_formula(stage, num_params, precision, memory)
    )


def wrong_one_too_many(stage, num_params, precision, memory):
    whole, rest = _split(stage, precision)
    left = memory - whole * num_params
    return max(1, rest * num_params // left + 1) if left > 0 else 0


def wrong_exactly_full_does_not_fit(stage, num_params, precision, memory):
    whole, rest = _split(stage, precision)
    left = memory - whole * num_params
    if left < 0 or (left == 0 and rest):
        return 0
    if left == 0:
        return 0
    return max(1, rest * num_params // left + 1)


def wrong_ddp_exactly_full_is_no_fit(stage, num_params, precision, memory):
    whole, rest = _split(stage, precision)
    left = memory - whole * num_params
    return 0 if left <= 0 else max(1, -(-rest * num_params // left))


def wrong_nothing_left_is_one(stage, num_params, precision, memory):
    whole, rest = _split(stage, precision)
    left = memory - whole * num_params
    if left < 0:
        return 0
    return max(1, -(-rest * num_params // left)) if left else 1


def wrong_zero_gpus(stage, num_params, precision, memory):
    whole, rest = _split(stage, precision)
    left = memory - whole * num_params
    return 0 if left <= 0 else -(-rest * num_params // left)


def wrong_none_where_none(stage, num_params, precision, memory):
    n = right_by_formula(stage, num_params, precision, memory)
    return n if n else None


def wrong_minus_one_where_none(stage, num_params, precision, memory):
    return right_by_formula(stage, num_params, precision, memory) or -1


def wrong_at_least_two(stage, num_params, precision, memory):
    n = right_by_formula(stage, num_params, precision, memory)
    return max(2, n) if n and stage != "ddp" else n


def wrong_a_power_of_two(stage, num_params, precision, memory):
    n = right_by_formula(stage, num_params, precision, memory)
    return 1 << (n - 1).bit_length() if n else 0


def wrong_up_to_64(stage, num_params, precision, memory):
    whole, rest = _split(stage, precision)
    return next((n for n in range(1, 65) if (memory - whole * num_params) * n >= rest * num_params), 0)


def wrong_in_floats_rounded(stage, num_params, precision, memory):
    whole, rest = _split(stage, precision)
    left = memory - whole * num_params
    return max(1, round(rest * num_params / left)) if left > 0 else 0


def wrong_bf16_with_the_cast(stage, num_params, precision, memory):
    if precision == "fp32":
        return right_by_formula(stage, num_params, precision, memory)
    whole, rest = _split(stage, precision)
    left = memory - (whole + (4 if stage == "ddp" else 0)) * num_params
    rest += 0 if stage == "ddp" else 4
    if rest == 0 or stage == "ddp":
        return 1 if left >= 0 else 0
    return 0 if left <= 0 else -(-rest * num_params // left)


def wrong_ddp_divides_the_optimizer_state(stage, num_params, precision, memory):
    return right_by_formula("zero1" if stage == "ddp" else stage, num_params, precision, memory)
