def _span(numel, owner, ranks):
    size = (numel + ranks - 1) // ranks
    return min(numel, owner * size), min(numel, (owner + 1) * size)


def _overlap(one, other):
    low, high = max(one[0], other[0]), min(one[1], other[1])
    return (low, high) if low < high else None


def right_by_overlaps(mine, numel, after, rank, world_size):
    had = _span(numel, rank, world_size)
    gets = _span(numel, rank, after) if rank < after else (0, 0)
    new, works = torch.empty(gets[1] - gets[0]), []
    for other in range(after):
        common = _overlap(had, _span(numel, other, after))
        if common and other != rank:
            works.append(dist.isend(mine[common[0] - had[0] : common[1] - had[0]], other))
    for other in range(world_size):
        common = _overlap(gets, _span(numel, other, world_size))
        if common:
            place = new[common[0] - gets[0] : common[1] - gets[0]]
            if other == rank:
                place.copy_(mine[common[0] - had[0] : common[1] - had[0]])
            else:
                works.append(dist.irecv(place, other))
    for work in works:
        work.wait()
    return new


def right_with_indices(mine, numel, after, rank, world_size):
    size, larger = -(-numel // world_size), -(-numel // after)
    mine_at = range(rank * size, rank * size + len(mine))
    wants = range(rank * larger, min(numel, (rank + 1) * larger)) if rank < after else range(0)
    new, works = torch.zeros(len(wants)), []
    for peer in range(world_size):
        first, last = max(mine_at.start, peer * larger), min(mine_at.stop, (peer + 1) * larger, numel)
        if peer < after and first < last:
            piece = mine[first - mine_at.start : last - mine_at.start]
            if peer == rank:
                new[first - wants.start : last - wants.start] = piece
            else:
                works.append(dist.isend(piece.clone(), peer))
        first, last = max(wants.start, peer * size), min(wants.stop, (peer + 1) * size, numel)
        if peer != rank and first < last:
            works.append(dist.irecv(new[first - wants.start : last - wants.start], peer))
    [work.wait() for work in works]
    return new


def right_in_pieces_joined(mine, numel, after, rank, world_size):
    had = _span(numel, rank, world_size)
    works = []
    for other in range(after):
        common = _overlap(had, _span(numel, other, after))
        if common and other != rank:
            works.append(dist.isend(mine[common[0] - had[0] : common[1] - had[0]], other))
    pieces = [mine[:0]]
    for other in range(world_size if rank < after else 0):
        common = _overlap(_span(numel, rank, after), _span(numel, other, world_size))
        if common and other == rank:
            pieces.append(mine[common[0] - had[0] : common[1] - had[0]])
        elif common:
            pieces.append(torch.empty(common[1] - common[0]))
            works.append(dist.irecv(pieces[-1], other))
    for work in works:
        work.wait()
    return torch.cat(pieces)


def right_receives_first(mine, numel, after, rank, world_size):
    had, works = _span(numel, rank, world_size), []
    gets = _span(numel, rank, after) if rank < after else (0, 0)
    new = mine.new_zeros(gets[1] - gets[0])
    for other in range(world_size):
        common = _overlap(gets, _span(numel, other, world_size))
        if common and other != rank:
            works.append(dist.irecv(new[common[0] - gets[0] : common[1] - gets[0]], src=other))
    for other in range(after):
        common = _overlap(had, _span(numel, other, after))
        if common:
            piece = mine[common[0] - had[0] : common[1] - had[0]]
            if other == rank:
                new[common[0] - gets[0] : common[1] - gets[0]] = piece
            else:
                works.append(dist.isend(piece, dst=other))
    for work in works:
        work.wait()
    return new


def right_blocking_from_the_last(mine, numel, after, rank, world_size):
    had = _span(numel, rank, world_size)
    gets = _span(numel, rank, after) if rank < after else (0, 0)
    new = torch.empty(gets[1] - gets[0])
    for sender in reversed(range(world_size)):
        for receiver in range(after):
            common = _overlap(_span(numel, sender, world_size), _span(numel, receiver, after))
            if not common:
                continue
            if sender == rank == receiver:
                new[common[0] - gets[0] : common[1] - gets[0]] = mine[common[0] - had[0] : common[1] - had[0]]
            elif sender == rank:
                dist.send(mine[common[0] - had[0] : common[1] - had[0]], receiver)
            elif receiver == rank:
                dist.recv(new[common[0] - gets[0] : common[1] - gets[0]], sender)
    return new


def wrong_keeps_its_shard(mine, numel, after, rank, world_size):
    """It is `mine` as your function got it"""
    return mine if rank < after else mine[:0]


def wrong_everything_everywhere(mine, numel, after, rank, world_size):
    """bytes; the target is"""
    size, larger = -(-numel // world_size), -(-numel // after)
    part = torch.nn.functional.pad(mine, (0, size - len(mine)))
    parts = [torch.empty(size) for _ in range(world_size)]
    dist.all_gather(parts, part)
    whole = torch.cat(parts)[:numel]
    return whole[rank * larger : (rank + 1) * larger].clone() if rank < after else mine[:0]


def wrong_forgets_what_stays(mine, numel, after, rank, world_size):
    """forgets what stays"""
    had = _span(numel, rank, world_size)
    gets = _span(numel, rank, after) if rank < after else (0, 0)
    new, works = torch.zeros(gets[1] - gets[0]), []
    for other in range(world_size):
        common = _overlap(gets, _span(numel, other, world_size))
        if common and other != rank:
            works.append(dist.irecv(new[common[0] - gets[0] : common[1] - gets[0]], other))
    for other in range(after):
        common = _overlap(had, _span(numel, other, after))
        if common and other != rank:
            works.append(dist.isend(mine[common[0] - had[0] : common[1] - had[0]], other))
    for work in works:
        work.wait()
    return new


def wrong_last_gives_all_to_one(mine, numel, after, rank, world_size):
    """It is `mine` as your function got it"""
    if rank == world_size - 1 and after < world_size:
        dist.send(mine, after - 1)
        return mine[:0]
    if rank == after - 1 and after < world_size:
        more = torch.empty(numel - _span(numel, world_size - 1, world_size)[0])
        dist.recv(more, world_size - 1)
        return torch.cat([mine, more])
    return mine


def wrong_never_waits(mine, numel, after, rank, world_size):
    """never waited for"""
    had = _span(numel, rank, world_size)
    gets = _span(numel, rank, after) if rank < after else (0, 0)
    new = torch.zeros(gets[1] - gets[0])
    for other in range(world_size):
        common = _overlap(gets, _span(numel, other, world_size))
        if common and other != rank:
            dist.irecv(new[common[0] - gets[0] : common[1] - gets[0]], other)
        elif common:
            new[common[0] - gets[0] : common[1] - gets[0]] = mine[common[0] - had[0] : common[1] - had[0]]
    for other in range(after):
        common = _overlap(had, _span(numel, other, after))
        if common and other != rank:
            dist.isend(mine[common[0] - had[0] : common[1] - had[0]], other)
    return new


def wrong_nothing_is_sent(mine, numel, after, rank, world_size):
    """`move_shards` hangs"""
    had = _span(numel, rank, world_size)
    gets = _span(numel, rank, after) if rank < after else (0, 0)
    new = torch.zeros(gets[1] - gets[0])
    for other in range(world_size):
        common = _overlap(gets, _span(numel, other, world_size))
        if common and other != rank:
            dist.recv(new[common[0] - gets[0] : common[1] - gets[0]], other)
    return new


def wrong_zeros_for_what_comes(mine, numel, after, rank, world_size):
    """keeps what stays, and what comes is received into a copy of its place"""
    larger = -(-numel // after)
    whole = torch.zeros(numel)
    first = _span(numel, rank, world_size)[0]
    whole[first : first + len(mine)] = mine
    return whole[rank * larger : (rank + 1) * larger].clone() if rank < after else mine[:0]


def wrong_sizes_rounded_down(mine, numel, after, rank, world_size):
    """bytes; the target is"""
    larger = numel // after
    size = -(-numel // world_size)
    part = torch.nn.functional.pad(mine, (0, size - len(mine)))
    parts = [torch.empty(size) for _ in range(world_size)]
    dist.all_gather(parts, part)
    return torch.cat(parts)[rank * larger : (rank + 1) * larger].clone() if rank < after else mine[:0]


def wrong_returns_nothing_where_left_out(mine, numel, after, rank, world_size):
    """returned nothing"""
    if rank >= after:
        for other in range(after):
            common = _overlap(_span(numel, rank, world_size), _span(numel, other, after))
            if common:
                first = _span(numel, rank, world_size)[0]
                dist.send(mine[common[0] - first : common[1] - first], other)
        return None
    return right_receives_first(mine, numel, after, rank, world_size)


def wrong_shard_sent_whole(mine, numel, after, rank, world_size):
    """are enough"""
    size, larger = -(-numel // world_size), -(-numel // after)
    works = [dist.isend(mine, other) for other in range(after) if other != rank]
    shards = [torch.empty(max(0, min(size, numel - size * other))) for other in range(world_size)]
    shards[rank] = mine
    if rank < after:
        works += [dist.irecv(shards[other], other) for other in range(world_size) if other != rank]
    for work in works:
        work.wait()
    return torch.cat(shards)[rank * larger : (rank + 1) * larger].clone() if rank < after else mine[:0]


def wrong_neighbours_only(mine, numel, after, rank, world_size):
    """`move_shards` hangs"""
    size, larger = -(-numel // world_size), -(-numel // after)
    had = rank * size, min((rank + 1) * size, numel)
    gets = (rank * larger, min((rank + 1) * larger, numel)) if rank < after else (had[1], had[1])
    head, tail = max(0, gets[0] - had[0]), max(0, gets[1] - had[1])
    more, works = torch.empty(tail), []
    if head:
        works.append(dist.isend(mine[:head], rank - 1))
    if tail:
        works.append(dist.irecv(more, rank + 1))
    for work in works:
        work.wait()
    return torch.cat([mine[head:], more])


def wrong_begins_beyond_the_end(mine, numel, after, rank, world_size):
    """negative dimension"""

    def span(owner, ranks):
        size = -(-numel // ranks)
        return owner * size, min((owner + 1) * size, numel)

    had, gets = span(rank, world_size), span(rank, after) if rank < after else (0, 0)
    new, works = torch.empty(gets[1] - gets[0]), []
    for other in range(world_size):
        common = _overlap(gets, span(other, world_size))
        if common and other == rank:
            new[common[0] - gets[0] : common[1] - gets[0]] = mine[common[0] - had[0] : common[1] - had[0]]
        elif common:
            works.append(dist.irecv(new[common[0] - gets[0] : common[1] - gets[0]], other))
        common = _overlap(had, span(other, after)) if other < after else None
        if common and other != rank:
            works.append(dist.isend(mine[common[0] - had[0] : common[1] - had[0]], other))
    for work in works:
        work.wait()
    return new
