def right_with_a_clock(computing, reducing):
    computed = reduced = 0.0
    for compute, reduce in zip(computing, reducing):
        computed += compute
        reduced = max(computed, reduced) + reduce
    return reduced - computed


def right_as_backlog(computing, reducing):
    backlog = 0.0
    for compute, reduce in zip(computing, reducing):
        backlog = max(0.0, backlog - compute) + reduce
    backlog_before_first_compute = backlog
    return backlog_before_first_compute


def right_as_a_maximum(computing, reducing):
    total = sum(computing)
    return max(sum(computing[: k + 1]) + sum(reducing[k:]) for k in range(len(computing))) - total


def right_by_numpy(computing, reducing):
    done, suffix = np.cumsum(computing), np.cumsum(reducing[::-1])[::-1]
    return float((done + suffix).max() - done[-1])


def right_as_a_tensor_without_dimensions(computing, reducing):
    done = torch.tensor(computing, dtype=torch.float64).cumsum(0)
    suffix = torch.tensor(reducing, dtype=torch.float64).flip(0).cumsum(0).flip(0)
    return (done + suffix).max() - done[-1]


def wrong_the_sum_of_reductions(computing, reducing):
    return sum(reducing)


def wrong_only_the_last(computing, reducing):
    return reducing[-1]


def wrong_sum_minus_sum(computing, reducing):
    return max(0.0, sum(reducing) - sum(computing))


def wrong_sum_minus_rest(computing, reducing):
    return max(0.0, sum(reducing) - sum(computing[1:]))


def wrong_end_and_not_difference(computing, reducing):
    computed = reduced = 0.0
    for compute, reduce in zip(computing, reducing):
        computed += compute
        reduced = max(computed, reduced) + reduce
    return reduced


def wrong_reductions_side_by_side(computing, reducing):
    total, now, end = sum(computing), 0.0, 0.0
    for compute, reduce in zip(computing, reducing):
        now += compute
        end = max(end, now + reduce)
    return end - total


def wrong_starts_with_compute(computing, reducing):
    computed = reduced = 0.0
    for compute, reduce in zip(computing, reducing):
        reduced = max(computed, reduced) + reduce
        computed += compute
    return max(0.0, reduced - computed)


def wrong_backwards(computing, reducing):
    return right_with_a_clock(computing[::-1], reducing[::-1])


def wrong_absolute_difference(computing, reducing):
    return abs(sum(computing) - sum(reducing))


def wrong_one_unit_hides_all(computing, reducing):
    return 0.0 if len(computing) == 1 else right_with_a_clock(computing, reducing)


def wrong_counts_idle_of_the_stream(computing, reducing):
    computed = reduced = 0.0
    for compute, reduce in zip(computing, reducing):
        computed += compute
        reduced = computed + reduce
    return reduced - computed


def wrong_in_milliseconds(computing, reducing):
    return 1000 * right_with_a_clock(computing, reducing)


def wrong_the_largest_excess(computing, reducing):
    return max(0.0, *(r - c for c, r in zip(computing, reducing)), 0.0)


def right_in_float32(computing, reducing):
    ends = torch.tensor(computing).cumsum(0)
    communicated = torch.zeros(())
    for end, seconds in zip(ends, reducing, strict=True):
        communicated = torch.maximum(communicated, end) + seconds
    return communicated - ends[-1]
