import torch


def right_block_by_block(mine, first, numel, block):
    largest = torch.zeros((numel + block - 1) // block)
    for at, value in enumerate(mine.tolist(), start=first):
        largest[at // block] = max(largest[at // block].item(), abs(value))
    dist.all_reduce(largest, op=dist.ReduceOp.MAX)
    scales = torch.tensor([largest[at // block] / 127 for at in range(first, first + len(mine))])
    return torch.round(mine / scales) * scales


def right_in_a_flat_of_zeros(mine, first, numel, block):
    flat = torch.zeros(-(-numel // block) * block)
    flat[first : first + len(mine)] = mine
    largest = flat.view(-1, block).abs().amax(dim=1)
    dist.all_reduce(largest, op=dist.ReduceOp.MAX)
    steps = (largest / 127).repeat_interleave(block)[first : first + len(mine)]
    return (mine / steps).round() * steps


def right_by_scales(mine, first, numel, block):
    numbers = torch.arange(first, first + mine.numel()).div(block, rounding_mode="floor")
    scales = torch.zeros(-(-numel // block)).index_reduce_(0, numbers, mine.abs() / 127, "amax")
    dist.all_reduce(scales, op=dist.ReduceOp.MAX, async_op=True).wait()
    each = scales[numbers]
    return each * torch.round(mine / each)


def wrong_alone(mine, first, numel, block):
    """takes for a block that lies on two ranks the largest of its own part alone"""
    flat = torch.zeros(-(-numel // block) * block)
    flat[first : first + len(mine)] = mine
    steps = (flat.view(-1, block).abs().amax(dim=1) / 127).repeat_interleave(block)[first : first + len(mine)]
    return (mine / steps).round() * steps


def wrong_blocks_of_the_shard(mine, first, numel, block):
    """begins a block with each shard"""
    numbers = torch.arange(len(mine)) // block
    largest = torch.zeros(-(-numel // block)).scatter_reduce_(0, numbers, mine.abs(), "amax")
    dist.all_reduce(largest, op=dist.ReduceOp.MAX)
    steps = (largest / 127)[numbers]
    return (mine / steps).round() * steps


def wrong_added_up(mine, first, numel, block):
    """adds up what the ranks have"""
    numbers = (first + torch.arange(len(mine))) // block
    largest = torch.zeros(-(-numel // block)).scatter_reduce_(0, numbers, mine.abs(), "amax")
    dist.all_reduce(largest)
    steps = (largest / 127)[numbers]
    return (mine / steps).round() * steps


def wrong_one_scale(mine, first, numel, block):
    """has one scale for the whole flat"""
    largest = mine.abs().max()
    dist.all_reduce(largest, op=dist.ReduceOp.MAX)
    return (mine / (largest / 127)).round() * (largest / 127)


def wrong_without_sign(mine, first, numel, block):
    """forgets that a number below zero may be the largest in size"""
    numbers = (first + torch.arange(len(mine))) // block
    largest = torch.zeros(-(-numel // block)).scatter_reduce_(0, numbers, mine, "amax")
    dist.all_reduce(largest, op=dist.ReduceOp.MAX)
    steps = (largest / 127)[numbers]
    return (mine / steps).round() * steps


def wrong_codes_returned(mine, first, numel, block):
    """returns the whole numbers"""
    numbers = (first + torch.arange(len(mine))) // block
    largest = torch.zeros(-(-numel // block)).scatter_reduce_(0, numbers, mine.abs(), "amax")
    dist.all_reduce(largest, op=dist.ReduceOp.MAX)
    return (mine / (largest / 127)[numbers]).round()


def right_by_padding_to_blocks(mine, first, numel, block):
    before = first % block
    rows = torch.nn.functional.pad(mine, (before, -(before + len(mine)) % block)).view(-1, block)
    largest = torch.zeros(-(-numel // block))
    largest[first // block : first // block + len(rows)] = rows.abs().amax(1)
    dist.all_reduce(largest, op=dist.ReduceOp.MAX)
    scales = largest[first // block : first // block + len(rows), None] / 127
    return ((rows / scales).round() * scales).flatten()[before : before + len(mine)]


def right_by_the_smallest_of_negatives(mine, first, numel, block):
    numbers = (first + torch.arange(len(mine))) // block
    least = torch.zeros(-(-numel // block))
    least.scatter_reduce_(0, numbers, -mine.abs(), "amin")
    dist.all_reduce(least, op=dist.ReduceOp.MIN)
    each = -least[numbers] / 127
    return (mine / each).round() * each


def wrong_mean_of_ranks(mine, first, numel, block):
    """right is"""
    numbers = (first + torch.arange(len(mine))) // block
    largest = torch.zeros(-(-numel // block)).scatter_reduce_(0, numbers, mine.abs(), "amax")
    dist.all_reduce(largest)
    each = (largest / dist.get_world_size() / 127)[numbers]
    return (mine / each).round() * each


def wrong_by_a_gather(mine, first, numel, block):
    """started all_gather; the target is all_reduce"""
    numbers = (first + torch.arange(len(mine))) // block
    largest = torch.zeros(-(-numel // block)).scatter_reduce_(0, numbers, mine.abs(), "amax")
    there = [torch.empty_like(largest) for _ in range(dist.get_world_size())]
    dist.all_gather(there, largest)
    each = (torch.stack(there).amax(0) / 127)[numbers]
    return (mine / each).round() * each


def wrong_a_scale_for_each_element(mine, first, numel, block):
    """the target is"""
    flat = torch.zeros(-(-numel // block) * block)
    flat[first : first + len(mine)] = mine
    dist.all_reduce(flat)
    each = (flat.view(-1, block).abs().amax(1) / 127).repeat_interleave(block)[first : first + len(mine)]
    return (mine / each).round() * each


def wrong_who_shares_nothing_stays_away(mine, first, numel, block):
    """`scales_across_ranks` hangs"""
    numbers = (first + torch.arange(len(mine))) // block
    largest = torch.zeros(-(-numel // block)).scatter_reduce_(0, numbers, mine.abs(), "amax")
    if first % block:
        dist.all_reduce(largest, op=dist.ReduceOp.MAX)
    each = (largest / 127)[numbers]
    return (mine / each).round() * each


def wrong_a_block_more_where_none_is_begun(mine, first, numel, block):
    """the target is"""
    numbers = (first + torch.arange(len(mine))) // block
    largest = torch.zeros(numel // block + 1).scatter_reduce_(0, numbers, mine.abs(), "amax")
    dist.all_reduce(largest, op=dist.ReduceOp.MAX)
    each = (largest / 127)[numbers]
    return (mine / each).round() * each


def wrong_as_if_shards_were_alike(mine, first, numel, block):
    """right is"""
    numbers = (dist.get_rank() * len(mine) + torch.arange(len(mine))) // block
    largest = torch.zeros(-(-numel // block)).scatter_reduce_(0, numbers, mine.abs(), "amax")
    dist.all_reduce(largest, op=dist.ReduceOp.MAX)
    each = (largest / 127)[numbers]
    return (mine / each).round() * each


def wrong_by_128(mine, first, numel, block):
    """divides the largest by 128"""
    numbers = (first + torch.arange(len(mine))) // block
    largest = torch.zeros(-(-numel // block)).scatter_reduce_(0, numbers, mine.abs(), "amax")
    dist.all_reduce(largest, op=dist.ReduceOp.MAX)
    scales = (largest / 128)[numbers]
    return (mine / scales).round() * scales


def wrong_cut_off(mine, first, numel, block):
    """rounds towards zero"""
    numbers = (first + torch.arange(len(mine))) // block
    largest = torch.zeros(-(-numel // block)).scatter_reduce_(0, numbers, mine.abs(), "amax")
    dist.all_reduce(largest, op=dist.ReduceOp.MAX)
    scales = (largest / 127)[numbers]
    return (mine / scales).trunc() * scales


def wrong_rounded_down(mine, first, numel, block):
    """rounds down"""
    numbers = (first + torch.arange(len(mine))) // block
    largest = torch.zeros(-(-numel // block)).scatter_reduce_(0, numbers, mine.abs(), "amax")
    dist.all_reduce(largest, op=dist.ReduceOp.MAX)
    scales = (largest / 127)[numbers]
    return (mine / scales).floor() * scales
