def _counts(rows, world_size):
    size = -(-rows // world_size)
    return [max(0, min(size, rows - size * each)) for each in range(world_size)]


def _as_it_should_be(mine, rows, owner, orthogonal, rank):
    world_size = dist.get_world_size()
    counts = _counts(rows, world_size)
    if rank != owner:
        dist.send(mine, owner)
        new = torch.empty_like(mine)
        dist.recv(new, owner)
        return new
    pieces = [torch.empty(count, mine.shape[1]) for count in counts]
    pieces[rank] = mine
    for each in range(world_size):
        if each != rank:
            dist.recv(pieces[each], each)
    parts = orthogonal(torch.cat(pieces)).split(counts)
    for each in range(world_size):
        if each != rank:
            dist.send(parts[each].clone(), each)
    return parts[rank]


def right_with_a_new_tensor(mine, rows, owner, orthogonal, rank):
    world_size = dist.get_world_size()
    return _as_it_should_be(mine, rows, owner, orthogonal, rank)


def right_into_one_matrix(mine, rows, owner, orthogonal, rank):
    world_size = dist.get_world_size()
    size = -(-rows // world_size)
    if rank != owner:
        dist.send(mine, owner)
        dist.recv(mine, owner)
        return mine
    whole = torch.zeros(rows, mine.shape[1])
    whole[rank * size : rank * size + len(mine)] = mine
    for each in range(world_size):
        if each != rank:
            dist.recv(whole[each * size : (each + 1) * size], src=each)
    whole = orthogonal(whole).contiguous()
    for each in range(world_size):
        if each != rank:
            dist.send(whole[each * size : (each + 1) * size], dst=each)
    return whole[rank * size : rank * size + len(mine)]


def right_all_messages_at_once(mine, rows, owner, orthogonal, rank):
    world_size = dist.get_world_size()
    counts = _counts(rows, world_size)
    others = [each for each in range(world_size) if each != owner]
    if rank != owner:
        dist.isend(mine, owner).wait()
        dist.irecv(mine, owner).wait()
        return mine
    pieces = [mine if each == rank else torch.empty(counts[each], mine.shape[1]) for each in range(world_size)]
    for work in [dist.irecv(pieces[each], each) for each in others]:
        work.wait()
    parts = [part.contiguous() for part in orthogonal(torch.cat(pieces)).split(counts)]
    for work in [dist.isend(parts[each], each) for each in others]:
        work.wait()
    return parts[rank]


def right_by_an_all_to_all(mine, rows, owner, orthogonal, rank):
    world_size = dist.get_world_size()
    counts, columns = _counts(rows, world_size), mine.shape[1]
    mine_only = [len(mine) if each == owner else 0 for each in range(world_size)]
    everybodys = counts if rank == owner else [0] * world_size
    whole = torch.empty(sum(everybodys), columns)
    dist.all_to_all_single(whole, mine, everybodys, mine_only)
    result, new = (orthogonal(whole) if rank == owner else whole), torch.empty_like(mine)
    dist.all_to_all_single(new, result, mine_only, everybodys)
    return new


def right_from_the_last_rank_down(mine, rows, owner, orthogonal, rank):
    world_size = dist.get_world_size()
    counts = _counts(rows, world_size)
    if rank != owner:
        dist.send(mine, owner)
        dist.recv(mine, owner)
        return mine
    pieces = {rank: mine}
    for each in reversed(range(world_size)):
        if each != rank:
            pieces[each] = mine.new_empty(counts[each], mine.shape[1])
            dist.recv(pieces[each], each)
    parts = orthogonal(torch.cat([pieces[each] for each in sorted(pieces)])).split(counts)
    for each in reversed(range(world_size)):
        if each != rank:
            dist.send(parts[each].contiguous(), each)
    return parts[rank]


def wrong_each_its_own_rows(mine, rows, owner, orthogonal, rank):
    """makes each rank's rows orthogonal by themselves"""
    world_size = dist.get_world_size()
    return orthogonal(mine)


def wrong_the_owner_alone_is_orthogonal(mine, rows, owner, orthogonal, rank):
    """It is `mine` as your function got it"""
    return orthogonal(mine) if rank == owner else mine


def wrong_everybody_gathers(mine, rows, owner, orthogonal, rank):
    """bytes; the target is"""
    world_size = dist.get_world_size()
    pieces = [torch.zeros(-(-rows // world_size), mine.shape[1]) for _ in range(world_size)]
    dist.all_gather(pieces, torch.cat([mine, pieces[0]])[: len(pieces[0])])
    size = len(pieces[0])
    return orthogonal(torch.cat(pieces)[:rows])[rank * size : (rank + 1) * size]


def wrong_the_owner_sends_the_whole_to_all(mine, rows, owner, orthogonal, rank):
    """bytes; the target is"""
    world_size = dist.get_world_size()
    counts = _counts(rows, world_size)
    whole = torch.empty(rows, mine.shape[1])
    if rank == owner:
        for each, piece in enumerate(whole.split(counts)):
            if each == rank:
                piece.copy_(mine)
            else:
                dist.recv(piece, each)
        whole = orthogonal(whole).contiguous()
    else:
        dist.send(mine, owner)
    dist.broadcast(whole, src=owner)
    return whole.split(counts)[rank]


def wrong_rank_0_does_the_work(mine, rows, owner, orthogonal, rank):
    """bytes; the target is"""
    world_size = dist.get_world_size()
    return _as_it_should_be(mine, rows, 0, orthogonal, rank)


def wrong_own_rows_in_front(mine, rows, owner, orthogonal, rank):
    """puts the owner's rows in front of the others'"""
    world_size = dist.get_world_size()

    def in_another_order(whole):
        own = whole.split(_counts(rows, world_size))
        return orthogonal(torch.cat([own[rank], *own[:rank], *own[rank + 1 :]]))

    return _as_it_should_be(mine, rows, owner, in_another_order, rank)


def wrong_nothing_is_made_orthogonal(mine, rows, owner, orthogonal, rank):
    """orthogonalises nothing"""
    world_size = dist.get_world_size()
    return _as_it_should_be(mine, rows, owner, lambda whole: whole, rank)


def wrong_returns_what_it_had(mine, rows, owner, orthogonal, rank):
    """orthogonalises nothing"""
    world_size = dist.get_world_size()
    before = mine.clone()
    _as_it_should_be(mine, rows, owner, orthogonal, rank)
    return before


def wrong_returns_nothing(mine, rows, owner, orthogonal, rank):
    """returned nothing"""
    world_size = dist.get_world_size()
    _as_it_should_be(mine, rows, owner, orthogonal, rank)


def wrong_waits_for_what_nobody_sends(mine, rows, owner, orthogonal, rank):
    """hangs"""
    world_size = dist.get_world_size()
    if rank != owner:
        dist.recv(mine, owner)
        return mine
    return orthogonal(mine)


def wrong_sends_each_row_twice(mine, rows, owner, orthogonal, rank):
    """bytes; the target is"""
    world_size = dist.get_world_size()
    if rank == owner:
        for each in range(world_size):
            if each != rank:
                dist.recv(torch.empty(_counts(rows, world_size)[each], mine.shape[1]), each)
    else:
        dist.send(mine, owner)
    return _as_it_should_be(mine, rows, owner, orthogonal, rank)
