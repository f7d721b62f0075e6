def right_as_the_halves(flat):
    reduce_scatter(flat).wait()
    all_gather(flat).wait()


def right_in_a_loop(flat):
    for half in (reduce_scatter, all_gather):
        half(flat).wait()


def right_that_returns_the_flat(flat):
    reduce_scatter(flat).wait()
    exchange = all_gather(flat)
    exchange.wait()
    return flat


def right_with_a_scratch_of_one_part(flat):
    reduce_scatter(flat).wait()
    rank, size = dist.get_rank(), dist.get_world_size()
    mine = flat.chunk(size)[rank].clone()
    flat.chunk(size)[rank].copy_(mine)
    all_gather(flat).wait()


def right_by_a_helper_without_gradients(flat):
    def finish(start):
        with torch.no_grad():
            start(flat).wait()

    import torch

    finish(reduce_scatter)
    finish(all_gather)


def right_that_zeroes_the_other_parts(flat):
    reduce_scatter(flat).wait()
    for number, part in enumerate(flat.chunk(dist.get_world_size())):
        if number != dist.get_rank():
            part.zero_()
    all_gather(flat).wait()


def wrong_gathered_first(flat):
    all_gather(flat).wait()
    reduce_scatter(flat).wait()


def wrong_only_scattered(flat):
    reduce_scatter(flat).wait()


def wrong_only_gathered(flat):
    all_gather(flat).wait()


def wrong_all_reduce(flat):
    all_reduce(flat).wait()


def wrong_torch_all_reduce(flat):
    dist.all_reduce(flat)


def wrong_the_mean(flat):
    reduce_scatter(flat).wait()
    flat.div_(dist.get_world_size())
    all_gather(flat).wait()


def wrong_waits_at_the_end(flat):
    first = reduce_scatter(flat)
    second = all_gather(flat)
    first.wait()
    second.wait()


def wrong_first_not_waited_for(flat):
    reduce_scatter(flat)
    all_gather(flat).wait()


def wrong_last_not_waited_for(flat):
    reduce_scatter(flat).wait()
    all_gather(flat)


def wrong_on_a_copy(flat):
    copy = flat.clone()
    reduce_scatter(copy).wait()
    all_gather(copy).wait()
    flat.copy_(copy)


def wrong_a_copy_that_is_returned(flat):
    copy = flat * 1
    reduce_scatter(copy).wait()
    all_gather(copy).wait()
    return copy


def wrong_rank_0_first(flat):
    if dist.get_rank() == 0:
        reduce_scatter(flat).wait()
    all_gather(flat).wait()


def wrong_gathered_twice(flat):
    reduce_scatter(flat).wait()
    all_gather(flat).wait()
    all_gather(flat).wait()


def wrong_a_numpy_copy_of_the_flat(flat):
    """outside of torch"""
    before = flat.numpy().copy()
    reduce_scatter(flat).wait()
    all_gather(flat).wait()
    del before


def wrong_a_list_of_all_numbers(flat):
    """outside of torch"""
    before = flat.tolist()
    reduce_scatter(flat).wait()
    all_gather(flat).wait()
    del before
