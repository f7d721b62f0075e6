def right_by_a_sum_of_flags(mine, scale):
    bad = torch.tensor(float(not mine.isfinite().all()))
    dist.all_reduce(bad)
    return scale / 2 if bad > 0 else scale


def right_by_a_product(mine, scale):
    good = mine.isfinite().all().float()
    dist.all_reduce(good, op=dist.ReduceOp.PRODUCT)
    return scale if good == 1 else scale / 2


def right_by_the_smallest(mine, scale):
    good = torch.isfinite(mine).all().to(torch.float32).reshape(1)
    dist.all_reduce(good, op=dist.ReduceOp.MIN)
    return (scale, scale / 2)[int(good.item() == 0)]


def right_by_the_largest_magnitude(mine, scale):
    bad = torch.isnan(mine) | torch.isinf(mine)
    count = bad.sum().float()
    dist.all_reduce(count)
    return scale * (0.5 if count.item() else 1.0)


def right_by_an_infinite_number(mine, scale):
    worst = torch.where(mine.isfinite(), 0.0, 1.0).float().max()
    dist.all_reduce(worst, op=dist.ReduceOp.MAX, async_op=True).wait()
    return torch.tensor(scale) / (1 + worst)


def wrong_alone(mine, scale):
    """decides by this rank's shard alone"""
    return scale if mine.isfinite().all() else scale / 2


def wrong_without_nan(mine, scale):
    """does not see `nan`"""
    bad = mine.isinf().any().float()
    dist.all_reduce(bad, op=dist.ReduceOp.MAX)
    return scale / 2 if bad else scale


def wrong_without_inf(mine, scale):
    """right is"""
    bad = mine.isnan().any().float()
    dist.all_reduce(bad, op=dist.ReduceOp.MAX)
    return scale / 2 if bad else scale


def wrong_by_the_sum_in_fp16(mine, scale):
    """the sum of many overflows in fp16"""
    bad = (~mine.sum().isfinite()).float()
    dist.all_reduce(bad, op=dist.ReduceOp.MAX)
    return scale / 2 if bad else scale


def wrong_by_the_norm_in_fp16(mine, scale):
    """the sum of many overflows in fp16"""
    bad = (~(mine * mine).sum().isfinite()).float()
    dist.all_reduce(bad, op=dist.ReduceOp.MAX)
    return scale / 2 if bad else scale


def wrong_once_for_each(mine, scale):
    """halves once for every rank that has an overflow"""
    bad = (~mine.isfinite()).any().float()
    dist.all_reduce(bad)
    return scale / 2 ** bad.item()


def wrong_outvoted(mine, scale):
    """does not halve the scale where only some ranks have an overflow"""
    bad = (~mine.isfinite()).any().float()
    dist.all_reduce(bad, op=dist.ReduceOp.MIN)
    return scale / 2 if bad else scale


def wrong_majority(mine, scale):
    """right is"""
    bad = (~mine.isfinite()).any().float()
    dist.all_reduce(bad)
    return scale / 2 if bad > dist.get_world_size() / 2 else scale


def wrong_all_gradients(mine, scale):
    """bytes; the target is"""
    everything = mine.float()
    dist.all_reduce(everything)
    return scale if everything.isfinite().all() else scale / 2


def wrong_doubles_otherwise(mine, scale):
    """right is"""
    bad = (~mine.isfinite()).any().float()
    dist.all_reduce(bad, op=dist.ReduceOp.MAX)
    return scale / 2 if bad else scale * 2


def wrong_only_who_overflows_asks(mine, scale):
    """`next_scale` hangs"""
    bad = (~mine.isfinite()).any().float()
    if bad:
        dist.all_reduce(bad)
    return scale / 2 if bad else scale


def wrong_by_a_gather(mine, scale):
    """started all_gather; the target is all_reduce"""
    bad = (~mine.isfinite()).any().float()
    everyone = [torch.zeros_like(bad) for _ in range(dist.get_world_size())]
    dist.all_gather(everyone, bad)
    return scale / 2 if any(everyone) else scale


def wrong_by_the_largest(mine, scale):
    """does not see `-inf`"""
    largest = mine.max().float()
    dist.all_reduce(largest, op=dist.ReduceOp.MAX)
    return scale if largest.isfinite() else scale / 2


def wrong_by_inf_or_nan(mine, scale):
    """does not see `-inf`"""
    bad = ((mine == math.inf) | mine.isnan()).any().float()
    dist.all_reduce(bad, op=dist.ReduceOp.MAX)
    return scale / 2 if bad else scale


def wrong_by_the_largest_in_size(mine, scale):
    """does not see `nan`"""
    largest = mine.abs().max().float()
    dist.all_reduce(largest, op=dist.ReduceOp.MAX)
    return scale if largest.isfinite() else scale / 2


def wrong_largest_of_all_scales(mine, scale):
    """does not halve the scale where only some ranks have an overflow"""
    mine = torch.tensor(scale if mine.isfinite().all() else scale / 2)
    dist.all_reduce(mine, op=dist.ReduceOp.MAX)
    return mine.item()
