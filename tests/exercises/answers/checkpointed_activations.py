def right_over_segments(blocks, segment, input_bytes, inside_bytes):
    sizes = [min(segment, blocks - first) for first in range(0, blocks, segment)]
    return max(
        (number + 1) * input_bytes + size * inside_bytes + (size - 1) * input_bytes for number, size in enumerate(sizes)
    )


def right_last_two_only(blocks, segment, input_bytes, inside_bytes):
    count = -(-blocks // segment)
    last = blocks - (count - 1) * segment
    at = lambda number, size: number * input_bytes + size * inside_bytes + (size - 1) * input_bytes
    return max(at(count, last), at(count - 1, segment) if count > 1 else 0)


def right_event_by_event(blocks, segment, input_bytes, inside_bytes):
    firsts = list(range(0, blocks, segment))
    held, highest = len(firsts) * input_bytes, 0
    for first in reversed(firsts):
        size = min(segment, blocks - first)
        again = size * inside_bytes + (size - 1) * input_bytes
        highest = max(highest, held + again)
        held -= input_bytes
    return highest


def right_by_numpy(blocks, segment, input_bytes, inside_bytes):
    firsts = np.arange(0, blocks, segment)
    sizes = np.minimum(segment, blocks - firsts)
    return (np.arange(1, len(firsts) + 1) * input_bytes + sizes * (inside_bytes + input_bytes) - input_bytes).max()


def right_as_a_tensor_without_dimensions(blocks, segment, input_bytes, inside_bytes):
    return torch.tensor(right_over_segments(blocks, segment, input_bytes, inside_bytes))


def right_without_ceil_as_a_whole_segment_is_higher_than_a_shorter_one(blocks, segment, input_bytes, inside_bytes):
    count = max(1, blocks // segment)
    size = min(segment, blocks)
    return count * input_bytes + size * inside_bytes + (size - 1) * input_bytes


def wrong_with_ceil_and_a_whole_segment(blocks, segment, input_bytes, inside_bytes):
    size = min(segment, blocks)
    return -(-blocks // segment) * input_bytes + size * inside_bytes + (size - 1) * input_bytes


def wrong_last_segment_only(blocks, segment, input_bytes, inside_bytes):
    count = -(-blocks // segment)
    size = blocks - (count - 1) * segment
    return count * input_bytes + size * inside_bytes + (size - 1) * input_bytes


def wrong_segment_longer_than_the_model(blocks, segment, input_bytes, inside_bytes):
    if segment > blocks:
        return input_bytes + segment * inside_bytes + (segment - 1) * input_bytes
    return right_over_segments(blocks, segment, input_bytes, inside_bytes)


def right_with_divmod(blocks, segment, input_bytes, inside_bytes):
    count, rest = divmod(blocks, segment)
    if count == 0:
        return right_over_segments(blocks, segment, input_bytes, inside_bytes)
    return count * input_bytes + segment * inside_bytes + (segment - 1) * input_bytes


def right_of_whole_segments_only(blocks, segment, input_bytes, inside_bytes):
    sizes = [segment] * (blocks // segment) or [blocks]
    return max((i + 1) * input_bytes + s * inside_bytes + (s - 1) * input_bytes for i, s in enumerate(sizes))


def wrong_inputs_inside_forgotten(blocks, segment, input_bytes, inside_bytes):
    sizes = [min(segment, blocks - first) for first in range(0, blocks, segment)]
    return max((i + 1) * input_bytes + s * inside_bytes for i, s in enumerate(sizes))


def wrong_own_input_twice(blocks, segment, input_bytes, inside_bytes):
    sizes = [min(segment, blocks - first) for first in range(0, blocks, segment)]
    return max((i + 1) * input_bytes + s * (inside_bytes + input_bytes) for i, s in enumerate(sizes))


def wrong_all_inputs_stay(blocks, segment, input_bytes, inside_bytes):
    sizes = [min(segment, blocks - first) for first in range(0, blocks, segment)]
    return max(len(sizes) * input_bytes + s * inside_bytes + (s - 1) * input_bytes for s in sizes)


def wrong_input_of_every_block(blocks, segment, input_bytes, inside_bytes):
    return blocks * input_bytes + min(segment, blocks) * inside_bytes


def wrong_no_checkpoints(blocks, segment, input_bytes, inside_bytes):
    return blocks * (input_bytes + inside_bytes)


def wrong_one_block_recomputed(blocks, segment, input_bytes, inside_bytes):
    return -(-blocks // segment) * input_bytes + inside_bytes


def wrong_a_single_segment_keeps_no_input(blocks, segment, input_bytes, inside_bytes):
    if segment >= blocks:
        return blocks * inside_bytes + (blocks - 1) * input_bytes
    return right_over_segments(blocks, segment, input_bytes, inside_bytes)


def wrong_of_one_block_the_inside(blocks, segment, input_bytes, inside_bytes):
    return inside_bytes if blocks == 1 else right_over_segments(blocks, segment, input_bytes, inside_bytes)


def wrong_keeps_no_input_where_the_segment_is_longer_than_the_model(blocks, segment, input_bytes, inside_bytes):
    size = min(segment, blocks)
    return blocks // segment * input_bytes + size * inside_bytes + (size - 1) * input_bytes
