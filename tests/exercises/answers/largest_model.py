def right_whole_numbers(mebibytes, reserved_gb, bytes_a_parameter):
    return max(0, mebibytes * 2**20 - reserved_gb * 10**9) // bytes_a_parameter


def right_by_floor(mebibytes, reserved_gb, bytes_a_parameter):
    left = Fraction(mebibytes) * 1024**2 - Fraction(reserved_gb) * 10**9
    return math.floor(left / bytes_a_parameter) if left > 0 else 0


def right_rounded_down_by_int(mebibytes, reserved_gb, bytes_a_parameter):
    left = int(mebibytes * 2**20) - int(reserved_gb * 1e9)
    return left // bytes_a_parameter if left > 0 else 0


def right_by_divmod(mebibytes, reserved_gb, bytes_a_parameter):
    fits, _ = divmod((mebibytes << 20) - 1_000_000_000 * reserved_gb, bytes_a_parameter)
    return max(fits, 0)


def right_as_a_tensor_without_dimensions(mebibytes, reserved_gb, bytes_a_parameter):
    return torch.tensor(max(0, mebibytes * 2**20 - reserved_gb * 10**9)) // bytes_a_parameter


def wrong_gib_reserved(mebibytes, reserved_gb, bytes_a_parameter):
    return max(0, (mebibytes - reserved_gb * 1024) * 2**20) // bytes_a_parameter


def wrong_thousand_mebibytes_a_gb(mebibytes, reserved_gb, bytes_a_parameter):
    return max(0, (mebibytes // 1000 - reserved_gb) * 10**9) // bytes_a_parameter


def wrong_swapped_units(mebibytes, reserved_gb, bytes_a_parameter):
    return max(0, mebibytes * 10**6 - reserved_gb * 2**30) // bytes_a_parameter


def wrong_nothing_reserved(mebibytes, reserved_gb, bytes_a_parameter):
    return mebibytes * 2**20 // bytes_a_parameter


def wrong_negative(mebibytes, reserved_gb, bytes_a_parameter):
    return (mebibytes * 2**20 - reserved_gb * 10**9) // bytes_a_parameter


def wrong_absolute(mebibytes, reserved_gb, bytes_a_parameter):
    return abs(mebibytes * 2**20 - reserved_gb * 10**9) // bytes_a_parameter


def wrong_not_rounded(mebibytes, reserved_gb, bytes_a_parameter):
    return max(0, mebibytes * 2**20 - reserved_gb * 10**9) / bytes_a_parameter


def wrong_rounded_up(mebibytes, reserved_gb, bytes_a_parameter):
    return max(0, -(-(mebibytes * 2**20 - reserved_gb * 10**9) // bytes_a_parameter))


def wrong_rounded_to_nearest(mebibytes, reserved_gb, bytes_a_parameter):
    return max(0, round((mebibytes * 2**20 - reserved_gb * 10**9) / bytes_a_parameter))


def wrong_one_less(mebibytes, reserved_gb, bytes_a_parameter):
    return max(0, (mebibytes * 2**20 - reserved_gb * 10**9 - 1) // bytes_a_parameter)


def wrong_always_sixteen(mebibytes, reserved_gb, bytes_a_parameter):
    return max(0, mebibytes * 2**20 - reserved_gb * 10**9) // 16


def wrong_in_billions(mebibytes, reserved_gb, bytes_a_parameter):
    return max(0, mebibytes * 2**20 - reserved_gb * 10**9) // bytes_a_parameter / 1e9


def wrong_seven_percent(mebibytes, reserved_gb, bytes_a_parameter):
    return int(max(0, mebibytes * 2**20 - reserved_gb * 1.07 * 10**9) // bytes_a_parameter)


def wrong_none_where_nothing_is_left(mebibytes, reserved_gb, bytes_a_parameter):
    left = mebibytes * 2**20 - reserved_gb * 10**9
    return left // bytes_a_parameter if left > 0 else None
