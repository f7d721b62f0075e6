def right_by_a_sum(written):
    sums = written.clone()
    dist.all_reduce(sums)
    return max((save for save, number in enumerate(sums.tolist()) if number == dist.get_world_size()), default=-1)


def right_by_a_product_of_bytes(written):
    product = written.to(torch.uint8)
    work = dist.all_reduce(product, dist.ReduceOp.PRODUCT, async_op=True)
    work.wait()
    return torch.cat([torch.tensor([1]), product]).nonzero().max() - 1


def right_by_what_is_missing(written):
    missing = 1 - written
    dist.all_reduce(missing, dist.ReduceOp.MAX)
    for save in reversed(range(len(missing))):
        if not missing[save]:
            return save
    return -1


def right_as_a_tensor_of_one_element(written):
    dist.all_reduce(written, dist.ReduceOp.MIN)
    whole = written.nonzero()
    return whole[-1] if len(whole) else torch.tensor([-1])


def wrong_own(written):
    """takes this rank's own last save, which another rank may have half written"""
    everywhere = written.clone()
    dist.all_reduce(everywhere)
    whole = written.nonzero()
    return int(whole[-1]) if len(whole) else -1


def wrong_earliest_of_the_last(written):
    """takes the earliest of the ranks' last saves"""
    last = torch.tensor(max((save for save in range(len(written)) if written[save]), default=-1))
    dist.all_reduce(last, dist.ReduceOp.MIN)
    return last.item()


def wrong_any(written):
    """takes the last save that any rank has"""
    sums = written.clone()
    dist.all_reduce(sums)
    found = (sums > 0).nonzero()
    return int(found[-1]) if len(found) else -1


def wrong_first(written):
    """takes the first whole save"""
    sums = written.clone()
    dist.all_reduce(sums, dist.ReduceOp.MIN)
    return int(sums.argmax()) if sums.any() else -1


def wrong_none_is_0(written):
    """answers 0 where there is none"""
    sums = written.clone()
    dist.all_reduce(sums, dist.ReduceOp.MIN)
    return max([save for save in range(len(sums)) if sums[save]] or [0])


def wrong_counted_from_1(written):
    """right is"""
    sums = written.clone()
    dist.all_reduce(sums, dist.ReduceOp.MIN)
    found = sums.nonzero()
    return int(found[-1]) + 1 if len(found) else 0


def wrong_gathered(written):
    """the target is all_reduce"""
    everyone = [torch.empty_like(written) for _ in range(dist.get_world_size())]
    dist.all_gather(everyone, written)
    found = torch.stack(everyone).all(dim=0).nonzero()
    return int(found[-1]) if len(found) else -1


def right_as_booleans(written):
    everywhere = written.bool().to(torch.uint8)
    dist.all_reduce(everywhere, op=dist.ReduceOp.MIN)
    places = torch.arange(len(everywhere))[everywhere.bool()]
    return places.max().item() if places.numel() else -1


def right_with_places_in_the_numbers(written):
    numbers = (written * torch.arange(1, len(written) + 1)).to(torch.float32)
    dist.all_reduce(numbers, dist.ReduceOp.MIN)
    return int(numbers.max()) - 1


def wrong_sum_over_two(written):
    """right is"""
    sums = written.clone()
    dist.all_reduce(sums)
    found = (sums >= 2).nonzero()
    return int(found[-1]) if len(found) else -1


def wrong_none_is_none(written):
    """returned nothing"""
    sums = written.clone()
    dist.all_reduce(sums, dist.ReduceOp.MIN)
    found = sums.nonzero()
    return int(found[-1]) if len(found) else None


def wrong_how_many(written):
    """right is"""
    sums = written.clone()
    dist.all_reduce(sums, dist.ReduceOp.MIN)
    return int(sums.sum()) - 1
