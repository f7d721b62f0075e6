def right_by_turns(flat, rank, world_size):
    parts = flat.chunk(world_size)
    right, left = (rank + 1) % world_size, (rank - 1) % world_size
    for turn in range(world_size - 1):
        send, receive = parts[(rank - turn) % world_size], parts[(rank - turn - 1) % world_size]
        for work in [dist.isend(send, dst=right), dist.irecv(receive, src=left)]:
            work.wait()


def right_with_a_place_that_walks(flat, rank, world_size):
    parts, place = flat.view(world_size, -1), rank
    for _ in range(world_size - 1):
        arriving = (place - 1) % world_size
        receiving = dist.irecv(parts[arriving], src=(rank - 1) % world_size)
        sending = dist.isend(parts[place], dst=(rank + 1) % world_size)
        receiving.wait()
        sending.wait()
        place = arriving


def right_by_recursion(flat, rank, world_size):
    parts = flat.chunk(world_size)

    def hand_on(place, turns):
        if turns:
            works = [
                dist.isend(parts[place], dst=(rank + 1) % world_size),
                dist.irecv(parts[place - 1], src=(rank - 1) % world_size),
            ]
            for work in works:
                work.wait()
            hand_on((place - 1) % world_size, turns - 1)

    hand_on(rank, world_size - 1)


def right_with_a_rotated_list(flat, rank, world_size):
    parts = list(flat.chunk(world_size))
    order = [parts[(rank - k) % world_size] for k in range(world_size)]
    for mine, next_one in zip(order, order[1:]):
        a = dist.isend(mine, dst=(rank + 1) % world_size)
        b = dist.irecv(next_one, src=(rank + world_size - 1) % world_size)
        a.wait(), b.wait()


def right_by_slices(flat, rank, world_size):
    size = len(flat) // world_size
    at = lambda part: flat[part % world_size * size : (part % world_size + 1) * size]
    for turn in range(world_size - 1):
        works = [dist.irecv(at(rank - turn - 1), src=(rank - 1) % world_size)]
        works.append(dist.isend(at(rank - turn), dst=(rank + 1) % world_size))
        while works:
            works.pop().wait()


def right_by_a_batch(flat, rank, world_size):
    parts = flat.chunk(world_size)
    for turn in range(world_size - 1):
        ops = [
            dist.P2POp(dist.isend, parts[(rank - turn) % world_size], (rank + 1) % world_size),
            dist.P2POp(dist.irecv, parts[(rank - turn - 1) % world_size], (rank - 1) % world_size),
        ]
        for work in dist.batch_isend_irecv(ops):
            work.wait()


def wrong_always_its_own(flat, rank, world_size):
    parts = flat.chunk(world_size)
    for turn in range(world_size - 1):
        send, receive = parts[rank], parts[(rank - turn - 1) % world_size]
        for work in [dist.isend(send, dst=(rank + 1) % world_size), dist.irecv(receive, src=(rank - 1) % world_size)]:
            work.wait()


def wrong_to_the_left(flat, rank, world_size):
    parts = flat.chunk(world_size)
    for turn in range(world_size - 1):
        send, receive = parts[(rank + turn) % world_size], parts[(rank + turn + 1) % world_size]
        for work in [dist.isend(send, dst=(rank - 1) % world_size), dist.irecv(receive, src=(rank + 1) % world_size)]:
            work.wait()


def wrong_to_everybody(flat, rank, world_size):
    parts, works = flat.chunk(world_size), []
    for peer in range(world_size):
        if peer != rank:
            works += [dist.isend(parts[rank], dst=peer), dist.irecv(parts[peer], src=peer)]
    for work in works:
        work.wait()


def wrong_waits_for_the_receive_first(flat, rank, world_size):
    parts = flat.chunk(world_size)
    for turn in range(world_size - 1):
        dist.irecv(parts[(rank - turn - 1) % world_size], src=(rank - 1) % world_size).wait()
        dist.isend(parts[(rank - turn) % world_size], dst=(rank + 1) % world_size).wait()


def wrong_one_turn_more(flat, rank, world_size):
    parts = flat.chunk(world_size)
    if world_size == 1:
        return
    for turn in range(world_size):
        send, receive = parts[(rank - turn) % world_size], parts[(rank - turn - 1) % world_size]
        for work in [dist.isend(send, dst=(rank + 1) % world_size), dist.irecv(receive, src=(rank - 1) % world_size)]:
            work.wait()


def wrong_one_turn_less(flat, rank, world_size):
    parts = flat.chunk(world_size)
    for turn in range(world_size - 2):
        send, receive = parts[(rank - turn) % world_size], parts[(rank - turn - 1) % world_size]
        for work in [dist.isend(send, dst=(rank + 1) % world_size), dist.irecv(receive, src=(rank - 1) % world_size)]:
            work.wait()


def wrong_receives_into_a_copy(flat, rank, world_size):
    parts = [part.clone() for part in flat.chunk(world_size)]
    for turn in range(world_size - 1):
        send, receive = parts[(rank - turn) % world_size], parts[(rank - turn - 1) % world_size]
        for work in [dist.isend(send, dst=(rank + 1) % world_size), dist.irecv(receive, src=(rank - 1) % world_size)]:
            work.wait()


def wrong_with_a_buffer(flat, rank, world_size):
    """beside its arguments"""
    parts = flat.chunk(world_size)
    buffer = torch.empty_like(parts[0])
    for turn in range(world_size - 1):
        send = parts[(rank - turn) % world_size]
        for work in [dist.isend(send, dst=(rank + 1) % world_size), dist.irecv(buffer, src=(rank - 1) % world_size)]:
            work.wait()
        parts[(rank - turn - 1) % world_size].copy_(buffer)


import torch


def wrong_with_a_clone_of_each_message(flat, rank, world_size):
    """beside its arguments"""
    parts = flat.chunk(world_size)
    for turn in range(world_size - 1):
        send, receive = parts[(rank - turn) % world_size].clone(), parts[(rank - turn - 1) % world_size]
        for work in [dist.isend(send, dst=(rank + 1) % world_size), dist.irecv(receive, src=(rank - 1) % world_size)]:
            work.wait()


def wrong_never_waits(flat, rank, world_size):
    parts = flat.chunk(world_size)
    for turn in range(world_size - 1):
        dist.isend(parts[(rank - turn) % world_size], dst=(rank + 1) % world_size)
        dist.irecv(parts[(rank - turn - 1) % world_size], src=(rank - 1) % world_size)


def wrong_waits_at_the_end(flat, rank, world_size):
    parts, works = flat.chunk(world_size), []
    for turn in range(world_size - 1):
        works.append(dist.isend(parts[(rank - turn) % world_size], dst=(rank + 1) % world_size))
        works.append(dist.irecv(parts[(rank - turn - 1) % world_size], src=(rank - 1) % world_size))
    for work in works:
        work.wait()


def wrong_sends_not_waited_for(flat, rank, world_size):
    parts = flat.chunk(world_size)
    for turn in range(world_size - 1):
        dist.isend(parts[(rank - turn) % world_size], dst=(rank + 1) % world_size)
        dist.irecv(parts[(rank - turn - 1) % world_size], src=(rank - 1) % world_size).wait()


def wrong_places_off_by_one(flat, rank, world_size):
    parts = flat.chunk(world_size)
    for turn in range(world_size - 1):
        send, receive = parts[(rank + turn) % world_size], parts[(rank - turn) % world_size]
        for work in [dist.isend(send, dst=(rank + 1) % world_size), dist.irecv(receive, src=(rank - 1) % world_size)]:
            work.wait()


def wrong_torch_all_gather(flat, rank, world_size):
    parts = list(flat.chunk(world_size))
    dist.all_gather(parts, parts[rank].clone())


def wrong_a_new_flat(flat, rank, world_size):
    return flat.clone()
