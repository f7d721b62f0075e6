def right_by_places(bucket, sizes):
    start, mine = 0, None
    for owner, size in enumerate(sizes):
        piece = bucket[start : start + size]
        dist.reduce(piece, dst=owner)
        if owner == dist.get_rank():
            mine = piece / len(sizes)
        start += size
    return mine


def right_dividing_first(bucket, sizes):
    bucket /= dist.get_world_size()
    pieces = bucket.split(sizes)
    for owner in range(len(sizes)):
        dist.reduce(pieces[owner], owner)
    return pieces[dist.get_rank()]


def right_all_started_then_waited_for(bucket, sizes):
    pieces = torch.split(bucket, list(sizes))
    works = [dist.reduce(piece, dst=owner, async_op=True) for owner, piece in enumerate(pieces)]
    for work in works:
        work.wait()
    return pieces[dist.get_rank()].clone().div_(len(works))


def right_on_copies(bucket, sizes):
    pieces = [piece.clone() for piece in bucket.split(sizes)]
    for owner, piece in enumerate(pieces):
        dist.reduce(piece, dst=owner, op=dist.ReduceOp.SUM)
    return pieces[dist.get_rank()] / dist.get_world_size()


def right_from_the_last(bucket, sizes):
    pieces = bucket.split(sizes)
    for owner in reversed(range(len(sizes))):
        dist.reduce(pieces[owner], dst=owner)
    return pieces[dist.get_rank()].mul(1 / dist.get_world_size())


def wrong_sum(bucket, sizes):
    """returns the sum over all ranks"""
    pieces = bucket.split(sizes)
    for owner, piece in enumerate(pieces):
        dist.reduce(piece, dst=owner)
    return pieces[dist.get_rank()]


def wrong_divided_twice(bucket, sizes):
    """right is"""
    bucket /= dist.get_world_size()
    pieces = bucket.split(sizes)
    for owner, piece in enumerate(pieces):
        dist.reduce(piece, dst=owner)
    return pieces[dist.get_rank()] / dist.get_world_size()


def wrong_largest(bucket, sizes):
    """right is"""
    pieces = bucket.split(sizes)
    for owner, piece in enumerate(pieces):
        dist.reduce(piece, dst=owner, op=dist.ReduceOp.MAX)
    return pieces[dist.get_rank()]


def wrong_nothing_sent(bucket, sizes):
    """reduces nothing"""
    return bucket.split(sizes)[dist.get_rank()] / dist.get_world_size()


def wrong_equal_parts(bucket, sizes):
    """cuts the bucket into equal parts"""
    pieces = bucket.chunk(len(sizes))
    for owner, piece in enumerate(pieces):
        dist.reduce(piece, dst=owner)
    return pieces[dist.get_rank()] / len(sizes)


def wrong_whole_bucket(bucket, sizes):
    """started all_reduce; the target is"""
    dist.all_reduce(bucket)
    return bucket.split(sizes)[dist.get_rank()] / len(sizes)


def wrong_whole_bucket_to_each(bucket, sizes):
    """bytes; the target is"""
    mine = None
    for owner in range(len(sizes)):
        copy = bucket.clone()
        dist.reduce(copy, dst=owner)
        if owner == dist.get_rank():
            mine = copy.split(sizes)[owner] / len(sizes)
    return mine


def wrong_each_in_its_own_order(bucket, sizes):
    """`mean_of_mine` failed"""
    pieces, rank = bucket.split(sizes), dist.get_rank()
    for distance in range(len(sizes)):
        owner = (rank + distance) % len(sizes)
        dist.reduce(pieces[owner], dst=owner)
    return pieces[rank] / len(sizes)


def wrong_all_to_rank_0(bucket, sizes):
    """right is"""
    pieces = bucket.split(sizes)
    for piece in pieces:
        dist.reduce(piece, dst=0)
    return pieces[dist.get_rank()] / len(sizes)


def wrong_neighbours_piece(bucket, sizes):
    """right is"""
    pieces = bucket.split(sizes)
    for owner, piece in enumerate(pieces):
        dist.reduce(piece, dst=owner)
    return pieces[(dist.get_rank() + 1) % len(sizes)] / len(sizes)


def wrong_returns_nothing(bucket, sizes):
    """returned nothing"""
    for owner, piece in enumerate(bucket.split(sizes)):
        dist.reduce(piece, dst=owner)
        piece /= len(sizes)
