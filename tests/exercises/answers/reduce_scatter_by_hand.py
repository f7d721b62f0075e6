def right_with_a_dict(flat, rank, world_size):
    parts, inbox, works = flat.chunk(world_size), {}, []
    for peer in range(world_size):
        if peer != rank:
            inbox[peer] = torch.empty_like(parts[rank])
            works += [dist.isend(parts[peer], dst=peer), dist.irecv(inbox[peer], src=peer)]
    for work in works:
        work.wait()
    return parts[rank] + sum(inbox.values(), torch.zeros_like(parts[rank]))


def right_pair_after_pair(flat, rank, world_size):
    parts = flat.chunk(world_size)
    total = parts[rank].clone()
    buffer = torch.empty_like(total)
    for distance in range(1, world_size):
        to, source = (rank + distance) % world_size, (rank - distance) % world_size
        works = [dist.isend(parts[to], dst=to), dist.irecv(buffer, src=source)]
        for work in works:
            work.wait()
        total += buffer
    return total


def right_by_a_sum_over_rows(flat, rank, world_size):
    parts = flat.chunk(world_size)
    buffer = torch.empty(world_size, len(parts[rank]))
    buffer[rank] = parts[rank]
    works = []
    for peer in range(world_size):
        if peer != rank:
            works.append(dist.irecv(buffer[peer], src=peer))
            works.append(dist.isend(parts[peer], dst=peer))
    for work in works:
        work.wait()
    return buffer.sum(0)


def right_by_stack(flat, rank, world_size):
    parts = flat.chunk(world_size)
    others = [peer for peer in range(world_size) if peer != rank]
    inbox = [torch.empty_like(parts[rank]) for _ in others]
    works = [dist.irecv(buffer, src=peer) for buffer, peer in zip(inbox, others)]
    works += [dist.isend(parts[peer], dst=peer) for peer in others]
    [work.wait() for work in works]
    return torch.stack([parts[rank], *inbox]).sum(dim=0)


def right_in_place_in_the_flat(flat, rank, world_size):
    parts = flat.chunk(world_size)
    works, inbox = [], []
    for peer in [*range(rank), *range(rank + 1, world_size)]:
        inbox.append(torch.empty_like(parts[rank]))
        works.append(dist.isend(parts[peer], dst=peer))
        works.append(dist.irecv(inbox[-1], src=peer))
    for work in works:
        work.wait()
    for buffer in inbox:
        parts[rank].add_(buffer)
    return parts[rank]


def right_that_reuses_what_was_sent(flat, rank, world_size):
    parts = flat.chunk(world_size)
    peers = [peer for peer in range(world_size) if peer != rank]
    sends = [dist.isend(parts[peer].clone(), dst=peer) for peer in peers]
    receives = [dist.irecv(parts[peer], src=peer) for peer in peers]
    for work in sends + receives:
        work.wait()
    return flat.view(world_size, -1).sum(0)


def wrong_junk_of_twenty_parts(flat, rank, world_size):
    """bytes beside its arguments"""
    parts = flat.chunk(world_size)
    peers = [peer for peer in range(world_size) if peer != rank]
    received = [torch.empty_like(parts[rank]) for _ in peers]
    works = [dist.irecv(buffer, src=peer) for buffer, peer in zip(received, peers)]
    works += [dist.isend(parts[peer], dst=peer) for peer in peers]
    for work in works:
        work.wait()
    junk = [parts[rank].clone() for _ in range(20)]
    total = parts[rank].clone()
    for buffer in received:
        total += buffer
    del junk
    return total


def wrong_junk_before_the_first_message(flat, rank, world_size):
    """bytes beside its arguments"""
    junk = [flat.clone() for _ in range(20)]
    del junk
    return right_with_a_dict(flat, rank, world_size)


def wrong_junk_as_numpy(flat, rank, world_size):
    """outside of torch"""
    junk = np.stack([flat.numpy()] * 20)
    total = right_with_a_dict(flat, rank, world_size)
    del junk
    return total


def wrong_no_own_part(flat, rank, world_size):
    return right_with_a_dict(flat, rank, world_size) - flat.chunk(world_size)[rank]


def wrong_mean(flat, rank, world_size):
    return right_with_a_dict(flat, rank, world_size) / world_size


def wrong_whole_flat(flat, rank, world_size):
    parts = flat.chunk(world_size)
    parts[rank].copy_(right_with_a_dict(flat, rank, world_size))
    return flat


def wrong_blocking_one_after_the_other(flat, rank, world_size):
    parts = flat.chunk(world_size)
    total = parts[rank].clone()
    for peer in range(world_size):
        if peer != rank:
            buffer = torch.empty_like(total)
            dist.irecv(buffer, src=peer).wait()
            dist.isend(parts[peer], dst=peer).wait()
            total += buffer
    return total


def wrong_sends_not_waited_for(flat, rank, world_size):
    """never waited for its send"""
    parts = flat.chunk(world_size)
    peers = [peer for peer in range(world_size) if peer != rank]
    received = [torch.empty_like(parts[rank]) for _ in peers]
    for peer in peers:
        dist.isend(parts[peer], dst=peer)
    for buffer, peer in zip(received, peers):
        dist.irecv(buffer, src=peer).wait()
    return parts[rank] + sum(received)


def wrong_adds_before_it_waits(flat, rank, world_size):
    parts = flat.chunk(world_size)
    peers = [peer for peer in range(world_size) if peer != rank]
    received = [torch.zeros_like(parts[rank]) for _ in peers]
    works = [dist.irecv(buffer, src=peer) for buffer, peer in zip(received, peers)]
    total = parts[rank] + sum(received)
    works += [dist.isend(parts[peer], dst=peer) for peer in peers]
    for work in works:
        work.wait()
    return total


def wrong_everything_over_rank_0(flat, rank, world_size):
    parts = flat.chunk(world_size)
    if rank == 0:
        total = flat.clone()
        buffer = torch.empty_like(flat)
        for peer in range(1, world_size):
            dist.irecv(buffer, src=peer).wait()
            total += buffer
        for peer in range(1, world_size):
            dist.isend(total.chunk(world_size)[peer].contiguous(), dst=peer).wait()
        return total.chunk(world_size)[0]
    dist.isend(flat, dst=0).wait()
    mine = torch.empty_like(parts[rank])
    dist.irecv(mine, src=0).wait()
    return mine


def wrong_sends_to_itself(flat, rank, world_size):
    parts = flat.chunk(world_size)
    received = [torch.empty_like(parts[rank]) for _ in range(world_size)]
    works = [dist.irecv(buffer, src=peer) for peer, buffer in enumerate(received)]
    works += [dist.isend(parts[peer], dst=peer) for peer in range(world_size)]
    for work in works:
        work.wait()
    return sum(received)


def wrong_part_of_the_neighbour(flat, rank, world_size):
    parts = flat.chunk(world_size)
    peers = [peer for peer in range(world_size) if peer != rank]
    received = [torch.empty_like(parts[rank]) for _ in peers]
    works = [dist.irecv(buffer, src=peer) for buffer, peer in zip(received, peers)]
    works += [dist.isend(parts[(peer + 1) % world_size], dst=peer) for peer in peers]
    for work in works:
        work.wait()
    return parts[rank] + sum(received)


def wrong_in_float64(flat, rank, world_size):
    parts = flat.double().chunk(world_size)
    peers = [peer for peer in range(world_size) if peer != rank]
    received = [torch.empty_like(parts[rank]) for _ in peers]
    works = [dist.irecv(buffer, src=peer) for buffer, peer in zip(received, peers)]
    works += [dist.isend(parts[peer], dst=peer) for peer in peers]
    for work in works:
        work.wait()
    return parts[rank] + sum(received)


def wrong_one_buffer_for_all(flat, rank, world_size):
    parts = flat.chunk(world_size)
    peers = [peer for peer in range(world_size) if peer != rank]
    buffer = torch.empty_like(parts[rank])
    works = [dist.irecv(buffer, src=peer) for peer in peers]
    works += [dist.isend(parts[peer], dst=peer) for peer in peers]
    for work in works:
        work.wait()
    return parts[rank] + buffer * len(peers)


def wrong_torch_reduce_scatter(flat, rank, world_size):
    mine = torch.empty_like(flat.chunk(world_size)[rank])
    dist.reduce_scatter(mine, list(flat.chunk(world_size)))
    return mine


def wrong_too_large_a_message(flat, rank, world_size):
    """tensors of different sizes"""
    parts = flat.chunk(world_size)
    peers = [peer for peer in range(world_size) if peer != rank]
    received = [torch.empty_like(parts[rank]) for _ in peers]
    works = [dist.irecv(buffer, src=peer) for buffer, peer in zip(received, peers)]
    works += [dist.isend(flat, dst=peer) for peer in peers]
    for work in works:
        work.wait()
    return parts[rank] + sum(received)
