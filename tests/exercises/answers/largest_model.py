def right_whole_numbers(gigabytes, reserved_gib, bytes_a_parameter):
    return max(0, gigabytes * 10**9 - reserved_gib * 2**30) // bytes_a_parameter


def right_by_floor(gigabytes, reserved_gib, bytes_a_parameter):
    left = Fraction(gigabytes) * 10**9 - Fraction(reserved_gib) * 1024**3
    return math.floor(left / bytes_a_parameter) if left > 0 else 0


def right_rounded_down_by_int(gigabytes, reserved_gib, bytes_a_parameter):
    left = int(gigabytes * 1e9) - int(reserved_gib * 2**30)
    return left // bytes_a_parameter if left > 0 else 0


def right_by_divmod(gigabytes, reserved_gib, bytes_a_parameter):
    fits, _ = divmod(1_000_000_000 * gigabytes - (reserved_gib << 30), bytes_a_parameter)
    return max(fits, 0)


def right_as_a_tensor_without_dimensions(gigabytes, reserved_gib, bytes_a_parameter):
    return torch.tensor(max(0, gigabytes * 10**9 - reserved_gib * 2**30)) // bytes_a_parameter


def wrong_gib_for_gb(gigabytes, reserved_gib, bytes_a_parameter):
    return max(0, (gigabytes - reserved_gib) * 2**30) // bytes_a_parameter


def wrong_gb_for_gib(gigabytes, reserved_gib, bytes_a_parameter):
    return max(0, (gigabytes - reserved_gib) * 10**9) // bytes_a_parameter


def wrong_swapped_units(gigabytes, reserved_gib, bytes_a_parameter):
    return max(0, gigabytes * 2**30 - reserved_gib * 10**9) // bytes_a_parameter


def wrong_nothing_reserved(gigabytes, reserved_gib, bytes_a_parameter):
    return gigabytes * 10**9 // bytes_a_parameter


def wrong_negative(gigabytes, reserved_gib, bytes_a_parameter):
    return (gigabytes * 10**9 - reserved_gib * 2**30) // bytes_a_parameter


def wrong_absolute(gigabytes, reserved_gib, bytes_a_parameter):
    return abs(gigabytes * 10**9 - reserved_gib * 2**30) // bytes_a_parameter


def wrong_not_rounded(gigabytes, reserved_gib, bytes_a_parameter):
    return max(0, gigabytes * 10**9 - reserved_gib * 2**30) / bytes_a_parameter


def wrong_rounded_up(gigabytes, reserved_gib, bytes_a_parameter):
    return max(0, -(-(gigabytes * 10**9 - reserved_gib * 2**30) // bytes_a_parameter))


def wrong_rounded_to_nearest(gigabytes, reserved_gib, bytes_a_parameter):
    return max(0, round((gigabytes * 10**9 - reserved_gib * 2**30) / bytes_a_parameter))


def wrong_one_less(gigabytes, reserved_gib, bytes_a_parameter):
    return max(0, (gigabytes * 10**9 - reserved_gib * 2**30 - 1) // bytes_a_parameter)


def wrong_always_sixteen(gigabytes, reserved_gib, bytes_a_parameter):
    return max(0, gigabytes * 10**9 - reserved_gib * 2**30) // 16


def wrong_in_billions(gigabytes, reserved_gib, bytes_a_parameter):
    return max(0, gigabytes * 10**9 - reserved_gib * 2**30) // bytes_a_parameter / 1e9


def wrong_seven_percent(gigabytes, reserved_gib, bytes_a_parameter):
    return int(max(0, gigabytes * 10**9 - reserved_gib * 1.07 * 10**9) // bytes_a_parameter)


def wrong_none_where_nothing_is_left(gigabytes, reserved_gib, bytes_a_parameter):
    left = gigabytes * 10**9 - reserved_gib * 2**30
    return left // bytes_a_parameter if left > 0 else None
