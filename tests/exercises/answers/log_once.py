def right_as_shipped(losses, counts):
    some = counts > 0
    sums = torch.stack([(losses[some] * counts[some]).sum(), counts.sum()])
    dist.all_reduce(sums)
    return (sums[0] / sums[1]).item()


def right_nan_to_num(losses, counts):
    sums = torch.stack((losses.nan_to_num() @ counts, counts.sum()))
    dist.all_reduce(sums)
    total, number = sums.tolist()
    return total / number


def right_in_a_loop(losses, counts):
    sums = torch.zeros(2, dtype=torch.float64)
    for loss, count in zip(losses, counts):
        if count:
            sums[0] += loss * count
            sums[1] += count
    dist.all_reduce(sums)
    return float(sums[0] / sums[1])


def right_where(losses, counts):
    weighted = torch.where(counts > 0, losses * counts, torch.zeros_like(losses))
    both = torch.stack([weighted, counts]).sum(dim=1)
    dist.all_reduce(both)
    return both[0] / both[1]


def right_async(losses, counts):
    both = torch.tensor([(losses * counts).nansum(), counts.sum()])
    work = dist.all_reduce(both, async_op=True)
    work.wait()
    return (both[0] / both[1]).item()


def right_all_parts_sent(losses, counts):
    both = torch.stack([(losses * counts).nan_to_num(), counts])
    dist.all_reduce(both)
    return (both[0].sum() / both[1].sum()).item()


def wrong_mean_of_parts(losses, counts):
    """takes the mean of the micro-batches' means"""
    mean = losses.nanmean()
    dist.all_reduce(mean)
    return mean.item() / dist.get_world_size()


def wrong_mean_of_ranks(losses, counts):
    """takes the mean of the ranks' means"""
    mean = (losses * counts).nansum() / counts.sum()
    dist.all_reduce(mean)
    return mean.item() / dist.get_world_size()


def wrong_nan(losses, counts):
    """lets in a `nan`, of a micro-batch or of a rank without tokens"""
    sums = torch.stack([(losses * counts).sum(), counts.sum()])
    dist.all_reduce(sums)
    return (sums[0] / sums[1]).item()


def wrong_two_exchanges(losses, counts):
    """started 2 all_reduce; the target is all_reduce"""
    total, number = (losses * counts).nansum(), counts.sum()
    dist.all_reduce(total)
    dist.all_reduce(number)
    return (total / number).item()


def wrong_an_exchange_for_each(losses, counts):
    """started 4 all_reduce; the target is all_reduce"""
    sums = torch.zeros(2)
    for loss, count in zip(losses, counts):
        both = torch.stack([(loss * count).nan_to_num(), count])
        dist.all_reduce(both)
        sums += both
    return (sums[0] / sums[1]).item()


def wrong_gathered(losses, counts):
    """started all_gather; the target is all_reduce"""
    mine = torch.stack([(losses * counts).nansum(), counts.sum()])
    every = [torch.zeros(2) for _ in range(dist.get_world_size())]
    dist.all_gather(every, mine)
    total, number = sum(every)
    return (total / number).item()


def wrong_own_loss(losses, counts):
    """tells each rank its own loss"""
    return ((losses * counts).nansum() / counts.sum()).item()


def wrong_divided_by_n(losses, counts):
    """divides by N once more"""
    sums = torch.stack([(losses * counts).nansum(), counts.sum()])
    dist.all_reduce(sums)
    return (sums[0] / sums[1]).item() / dist.get_world_size()


def wrong_the_largest(losses, counts):
    """right is"""
    sums = torch.stack([(losses * counts).nansum(), counts.sum()])
    dist.all_reduce(sums, op=dist.ReduceOp.MAX)
    return (sums[0] / sums[1]).item()


def wrong_skips_a_rank_with_an_empty_part(losses, counts):
    """`log_step` hangs"""
    sums = torch.stack([(losses * counts).nansum(), counts.sum()])
    if not losses.isnan().any():
        dist.all_reduce(sums)
    return (sums[0] / sums[1]).item()


def wrong_sums_returned(losses, counts):
    """right is"""
    sums = torch.stack([(losses * counts).nansum(), counts.sum()])
    dist.all_reduce(sums)
    return sums


def wrong_returns_nothing(losses, counts):
    """returned nothing"""
    sums = torch.stack([(losses * counts).nansum(), counts.sum()])
    dist.all_reduce(sums)


def wrong_own_mean_by_its_tokens(losses, counts):
    """lets in a `nan`, of a micro-batch or of a rank without tokens"""
    number = counts.sum()
    own = (losses * counts).nansum() / number
    sums = torch.stack([own * number, number])
    dist.all_reduce(sums)
    return (sums[0] / sums[1]).item()
