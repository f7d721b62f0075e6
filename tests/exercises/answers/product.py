def right_in_place(number):
    dist.all_reduce(number, op=dist.ReduceOp.PRODUCT)
    return number


def right_on_a_copy(number):
    result = number.clone()
    dist.all_reduce(result, dist.ReduceOp.PRODUCT)
    return result


def right_waiting(number):
    work = dist.all_reduce(number, op=dist.ReduceOp.PRODUCT, async_op=True)
    work.wait()
    return number


def right_by_logarithms(number):
    number.log_()
    dist.all_reduce(number)
    return number.exp().round()


def right_with_a_group(number):
    dist.all_reduce(number, op=dist.ReduceOp.PRODUCT, group=dist.group.WORLD)
    return number.detach()


def right_as_a_number(number):
    dist.all_reduce(number, op=dist.ReduceOp.PRODUCT)
    return number.item()


def wrong_sum(number):
    """adds the numbers up"""
    dist.all_reduce(number)
    return number


def wrong_largest(number):
    """right is"""
    dist.all_reduce(number, op=dist.ReduceOp.MAX)
    return number


def wrong_alone(number):
    """nothing was exchanged"""
    return number


def wrong_what_the_call_returns(number):
    """returned nothing"""
    return dist.all_reduce(number, op=dist.ReduceOp.PRODUCT)


def wrong_one_too_many(number):
    """right is"""
    dist.all_reduce(number, op=dist.ReduceOp.PRODUCT)
    return number * (dist.get_rank() + 1)


def wrong_rank_2_skips(number):
    """`product` hangs"""
    if dist.get_rank() != 2:
        dist.all_reduce(number, op=dist.ReduceOp.PRODUCT)
    return number


def wrong_a_loop_over_ranks(number):
    """4 all_reduce; the target is all_reduce"""
    for rank in range(dist.get_world_size()):
        factor = number.clone() if rank == 0 else torch.ones(1)
        dist.all_reduce(factor, op=dist.ReduceOp.PRODUCT)
        number = factor if rank == 0 else number * factor
    return number


def wrong_by_heart(number):
    """started nothing; the target is all_reduce"""
    return torch.tensor([24.0])


def wrong_gathered(number):
    """started all_gather; the target is all_reduce"""
    everyone = [torch.zeros_like(number) for _ in range(dist.get_world_size())]
    dist.all_gather(everyone, number)
    return torch.stack(everyone).prod(0)


def wrong_only_rank_0_gets_it(number):
    """right is"""
    dist.reduce(number, dst=0, op=dist.ReduceOp.PRODUCT)
    return number if dist.get_rank() == 0 else torch.zeros(1)
