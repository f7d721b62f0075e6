def right_by_a_table(num_params, moments, precision):
    per = {"fp32": 4 + 4, "mixed": 2 + 2 + 4}[precision]
    return num_params * (per + 4 * moments)


def right_the_same_in_both_precisions(num_params, moments, precision):
    return num_params * 4 * (2 + moments)


def right_as_a_float(num_params, moments, precision):
    return float(num_params) * (8 + 4 * moments)


def right_as_a_tensor_without_dimensions(num_params, moments, precision):
    return torch.tensor(num_params * (8 + 4 * moments))


def right_by_numpy(num_params, moments, precision):
    return np.dot(np.array([4, 4, 4 * moments]), np.full(3, num_params))


def right_as_an_array_without_dimensions(num_params, moments, precision):
    return np.array(num_params * (8 + 4 * moments))


def right_as_a_fraction(num_params, moments, precision):
    return Fraction(num_params) * (8 + 4 * moments)


def wrong_no_master_copy(num_params, moments, precision):
    return num_params * ((8 if precision == "fp32" else 4) + 4 * moments)


def wrong_moments_in_bf16(num_params, moments, precision):
    return num_params * ((8 + 4 * moments) if precision == "fp32" else (8 + 2 * moments))


def wrong_always_adam(num_params, moments, precision):
    return 16 * num_params


def wrong_master_copy_even_without_moments_forgotten(num_params, moments, precision):
    return num_params * (8 + 4 * moments if precision == "fp32" or moments else 4)


def wrong_master_copy_in_fp32_too(num_params, moments, precision):
    return num_params * (12 + 4 * moments if precision == "fp32" else 8 + 4 * moments)


def wrong_gradients_forgotten(num_params, moments, precision):
    return num_params * (4 + 4 * moments)


def wrong_bits(num_params, moments, precision):
    return 8 * num_params * (8 + 4 * moments)


def wrong_in_gigabytes(num_params, moments, precision):
    return num_params * (8 + 4 * moments) / 1e9


def wrong_as_text(num_params, moments, precision):
    return str(num_params * (8 + 4 * moments))


def wrong_only_fp32_known(num_params, moments, precision):
    if precision == "fp32":
        return num_params * (8 + 4 * moments)


def wrong_momentum_counts_as_adam(num_params, moments, precision):
    return num_params * (8 + (8 if moments else 0))


def wrong_sgd_has_a_moment(num_params, moments, precision):
    return num_params * (8 + 4 * max(1, moments))


def wrong_gradient_in_fp32_when_mixed(num_params, moments, precision):
    return num_params * ((8 if precision == "fp32" else 10) + 4 * moments)


def wrong_a_rounded_number(num_params, moments, precision):
    return round(num_params * (8 + 4 * moments), -6)
