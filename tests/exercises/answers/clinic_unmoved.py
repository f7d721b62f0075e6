import numpy as np


def _train(units, backwards, optimizer_cls, rank, world_size, buckets):
    mine = [unit.chunk(world_size)[rank] for unit in units]
    optimizer = optimizer_cls(mine)

    def reduce(bucket):
        exchanges = [reduce_scatter(gradient) for _, gradient in bucket]
        for (number, gradient), exchange in zip(bucket, exchanges):
            exchange.wait()
            mine[number].grad = gradient.chunk(world_size)[rank].div_(world_size)

    for backward in backwards:
        for bucket in buckets(backward, len(units)):
            reduce(bucket)
        optimizer.step()
        for unit in units:
            all_gather(unit).wait()
    return optimizer


def _by(size, rest=True):
    def buckets(backward, _units):
        bucket = []
        for pair in backward:
            bucket.append(pair)
            if len(bucket) == size:
                yield bucket
                bucket = []
        if rest and bucket:
            yield bucket

    return buckets


def right_the_rest_too(units, backwards, optimizer_cls, rank, world_size):
    return _train(units, backwards, optimizer_cls, rank, world_size, _by(4))


def right_one_at_a_time(units, backwards, optimizer_cls, rank, world_size):
    return _train(units, backwards, optimizer_cls, rank, world_size, _by(1))


def right_five_at_a_time(units, backwards, optimizer_cls, rank, world_size):
    return _train(units, backwards, optimizer_cls, rank, world_size, _by(5))


def right_all_at_once(units, backwards, optimizer_cls, rank, world_size):
    return _train(units, backwards, optimizer_cls, rank, world_size, lambda backward, _: [list(backward)])


def right_the_last_unit_closes_the_bucket(units, backwards, optimizer_cls, rank, world_size):
    def buckets(backward, _units):
        bucket = []
        for number, gradient in backward:
            bucket.append((number, gradient))
            if len(bucket) == 4 or number == 0:
                yield bucket
                bucket = []

    return _train(units, backwards, optimizer_cls, rank, world_size, buckets)


def right_an_empty_bucket_at_the_end(units, backwards, optimizer_cls, rank, world_size):
    def buckets(backward, _units):
        yield from _by(3)(backward, _units)
        yield []

    return _train(units, backwards, optimizer_cls, rank, world_size, buckets)


def wrong_four_without_the_rest(units, backwards, optimizer_cls, rank, world_size):
    return _train(units, backwards, optimizer_cls, rank, world_size, _by(4, rest=False))


def wrong_five_without_the_rest(units, backwards, optimizer_cls, rank, world_size):
    return _train(units, backwards, optimizer_cls, rank, world_size, _by(5, rest=False))


def wrong_bucket_never_emptied(units, backwards, optimizer_cls, rank, world_size):
    def buckets(backward, _units):
        bucket = []
        for pair in backward:
            bucket.append(pair)
            if len(bucket) >= 4:
                yield bucket

    return _train(units, backwards, optimizer_cls, rank, world_size, buckets)


def wrong_rest_in_the_next_step(units, backwards, optimizer_cls, rank, world_size):
    left = []

    def buckets(backward, _units):
        for pair in backward:
            left.append(pair)
            if len(left) == 4:
                yield [left.pop(0) for _ in range(4)]

    return _train(units, backwards, optimizer_cls, rank, world_size, buckets)


def wrong_only_the_rest(units, backwards, optimizer_cls, rank, world_size):
    return _train(units, backwards, optimizer_cls, rank, world_size, lambda backward, _: [list(backward)[4:]])


def wrong_rest_on_rank_0_only(units, backwards, optimizer_cls, rank, world_size):
    return _train(units, backwards, optimizer_cls, rank, world_size, _by(4, rest=rank == 0))


def wrong_another_size_on_each_rank(units, backwards, optimizer_cls, rank, world_size):
    return _train(
        units,
        backwards,
        optimizer_cls,
        rank,
        world_size,
        lambda backward, _: [sorted(backward, key=lambda pair: pair[0], reverse=rank == 0)],
    )


def wrong_last_one_twice(units, backwards, optimizer_cls, rank, world_size):
    def buckets(backward, _units):
        pairs = list(backward)
        yield pairs
        yield pairs[-1:]

    return _train(units, backwards, optimizer_cls, rank, world_size, buckets)


def wrong_numpy_copies(units, backwards, optimizer_cls, rank, world_size):
    """outside of torch"""
    kept = []

    def buckets(backward, _units):
        for number, gradient in backward:
            kept.append(gradient.numpy().copy())
            yield [(number, gradient)]

    return _train(units, backwards, optimizer_cls, rank, world_size, buckets)


def wrong_clones(units, backwards, optimizer_cls, rank, world_size):
    kept = []

    def buckets(backward, _units):
        for number, gradient in backward:
            kept.append(gradient.clone())
            yield [(number, gradient)]

    return _train(units, backwards, optimizer_cls, rank, world_size, buckets)


def wrong_four_units_hard_coded(units, backwards, optimizer_cls, rank, world_size):
    return _train(units[-4:], backwards, optimizer_cls, rank, world_size, lambda backward, _: [])


def wrong_update_after_each_bucket(units, backwards, optimizer_cls, rank, world_size):
    mine = [unit.chunk(world_size)[rank] for unit in units]
    optimizer = optimizer_cls(mine)
    for backward in backwards:
        for bucket in _by(4)(backward, 6):
            for number, gradient in bucket:
                reduce_scatter(gradient).wait()
                mine[number].grad = gradient.chunk(world_size)[rank].div_(world_size)
            optimizer.step()
        for unit in units:
            all_gather(unit).wait()
    return optimizer


def wrong_six_without_the_rest(units, backwards, optimizer_cls, rank, world_size):
    """unit 0: the optimizer updates nothing"""
    return _train(units, backwards, optimizer_cls, rank, world_size, _by(6, rest=False))
