def right_with_a_running_sum(sizes, limit):
    out, room = [], -1
    for index in range(len(sizes) - 1, -1, -1):
        if sizes[index] > room or not out:
            out.append([])
            room = limit
        out[-1].append(index)
        room -= sizes[index]
    return out


def right_recursive(sizes, limit):
    def fill(index, bucket, total):
        if index < 0:
            return [bucket] if bucket else []
        if bucket and total + sizes[index] > limit:
            return [bucket, *fill(index - 1, [index], sizes[index])]
        return fill(index - 1, [*bucket, index], total + sizes[index])

    return fill(len(sizes) - 1, [], 0)


def right_tuples(sizes, limit):
    out = []
    for index in reversed(range(len(sizes))):
        if out and sum(sizes[i] for i in out[-1]) + sizes[index] <= limit:
            out[-1] = (*out[-1], index)
        else:
            out.append((index,))
    return tuple(out)


def right_emptying_a_stack(sizes, limit):
    stack, out = list(range(len(sizes))), []
    while stack:
        bucket = [stack.pop()]
        total = sizes[bucket[0]]
        while stack and total + sizes[stack[-1]] <= limit:
            total += sizes[stack[-1]]
            bucket.append(stack.pop())
        out.append(bucket)
    return out


def right_as_arrays(sizes, limit):
    out, total = [], None
    for index in range(len(sizes))[::-1]:
        if total is None or total + sizes[index] > limit:
            out.append([])
            total = 0
        total += sizes[index]
        out[-1].append(index)
    return [np.array(bucket) for bucket in out]


def right_that_writes_into_what_it_gets(sizes, limit):
    out = []
    while sizes:
        bucket, total = [], 0
        while sizes and (not bucket or total + sizes[-1] <= limit):
            total += sizes.pop()
            bucket.append(len(sizes))
        out.append(bucket)
    return out


def wrong_forward_order(sizes, limit):
    out, total = [], 0
    for index, size in enumerate(sizes):
        if not out or total + size > limit:
            out.append([])
            total = 0
        total += size
        out[-1].append(index)
    return out


def wrong_exactly_full_does_not_fit(sizes, limit):
    out, total = [], 0
    for index in reversed(range(len(sizes))):
        if not out or total + sizes[index] >= limit:
            out.append([])
            total = 0
        total += sizes[index]
        out[-1].append(index)
    return out


def wrong_an_empty_bucket_before_a_large_one(sizes, limit):
    out, total = [[]], 0
    for index in reversed(range(len(sizes))):
        if total + sizes[index] > limit:
            out.append([])
            total = 0
        total += sizes[index]
        out[-1].append(index)
    return out


def wrong_last_bucket_lost(sizes, limit):
    out, bucket, total = [], [], 0
    for index in reversed(range(len(sizes))):
        if bucket and total + sizes[index] > limit:
            out.append(bucket)
            bucket, total = [], 0
        bucket.append(index)
        total += sizes[index]
    return out


def wrong_closes_after_the_limit_is_passed(sizes, limit):
    out, total = [[]], 0
    for index in reversed(range(len(sizes))):
        out[-1].append(index)
        total += sizes[index]
        if total >= limit:
            out.append([])
            total = 0
    return [bucket for bucket in out if bucket]


def wrong_first_fit(sizes, limit):
    out = []
    for index in reversed(range(len(sizes))):
        for bucket in out:
            if sum(sizes[i] for i in bucket) + sizes[index] <= limit:
                bucket.append(index)
                break
        else:
            out.append([index])
    return out


def wrong_positions_of_backward(sizes, limit):
    out, total = [], 0
    for place, size in enumerate(reversed(sizes)):
        if not out or total + size > limit:
            out.append([])
            total = 0
        total += size
        out[-1].append(place)
    return out


def wrong_each_bucket_in_forward_order(sizes, limit):
    out, total = [], 0
    for index in reversed(range(len(sizes))):
        if not out or total + sizes[index] > limit:
            out.append([])
            total = 0
        total += sizes[index]
        out[-1].insert(0, index)
    return out


def wrong_the_total_is_never_reset(sizes, limit):
    out, total = [], 0
    for index in reversed(range(len(sizes))):
        if not out or total + sizes[index] > limit:
            out.append([])
        total += sizes[index]
        out[-1].append(index)
    return out


def wrong_sizes_in_place_of_indices(sizes, limit):
    out, total = [], 0
    for size in reversed(sizes):
        if not out or total + size > limit:
            out.append([])
            total = 0
        total += size
        out[-1].append(size)
    return out


def wrong_something_small_joins_a_large_one(sizes, limit):
    out, total = [], 0
    for index in reversed(range(len(sizes))):
        if sizes[index] > limit:
            out.append([index])
            continue
        if not out or total + sizes[index] > limit:
            out.append([])
            total = 0
        total += sizes[index]
        out[-1].append(index)
    return out


def wrong_a_large_one_is_left_out(sizes, limit):
    out, total = [], 0
    for index in reversed(range(len(sizes))):
        if sizes[index] > limit:
            continue
        if not out or total + sizes[index] > limit:
            out.append([])
            total = 0
        total += sizes[index]
        out[-1].append(index)
    return out


def wrong_of_one_gradient_nothing(sizes, limit):
    if len(sizes) < 2:
        return []
    return right_with_a_running_sum(sizes, limit)
