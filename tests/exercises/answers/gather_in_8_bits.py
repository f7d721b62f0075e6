import torch


def right_in_one_message(mine, block):
    blocks = mine.reshape(-1, block)
    scales = blocks.abs().max(dim=1).values / 127
    codes = torch.round(blocks / scales[:, None]).char()
    message = torch.cat([codes.flatten().view(torch.uint8), scales.view(torch.uint8)])
    messages = [torch.empty_like(message) for _ in range(dist.get_world_size())]
    dist.all_gather(messages, message)
    whole = []
    for each in messages:
        numbers, steps = each[: mine.numel()].view(torch.int8), each[mine.numel() :].clone().view(torch.float32)
        whole.append(numbers * steps.repeat_interleave(block))
    return torch.cat(whole)


def right_by_a_factor(mine, block):
    size = dist.get_world_size()
    blocks = mine.view(-1, block)
    largest = blocks.abs().amax(1)
    codes = (blocks * (127 / largest)[:, None]).round().to(torch.int8)
    every_code = torch.empty(size, *codes.shape, dtype=torch.int8)
    every_scale = torch.empty(size, len(largest))
    dist.all_gather(list(every_scale.unbind()), largest / 127)
    dist.all_gather(list(every_code.unbind()), codes)
    return (every_code.float() * every_scale[..., None]).view(-1)


def right_with_clamp_and_waits(mine, block):
    parts = []
    scales = torch.stack([each.abs().max() / 127 for each in mine.split(block)])
    codes = (mine / scales.repeat_interleave(block)).round().clamp(-127, 127).to(torch.int8)
    for part in (codes, scales):
        there = [torch.zeros_like(part) for _ in range(dist.get_world_size())]
        dist.all_gather(there, part, async_op=True).wait()
        parts.append(torch.cat(there))
    return parts[0] * parts[1].repeat_interleave(block)


def wrong_one_scale(mine, block):
    """takes one scale for the whole shard"""
    scale = (mine.abs().max() / 127).reshape(1)
    codes = (mine / scale).round().to(torch.int8)
    both = []
    for part in (codes, scale):
        there = [torch.empty_like(part) for _ in range(dist.get_world_size())]
        dist.all_gather(there, part)
        both.append(torch.stack(there))
    return (both[0] * both[1]).flatten()


def wrong_not_rounded(mine, block):
    """cuts off what is behind the point"""
    blocks = mine.view(-1, block)
    scales = blocks.abs().amax(1, keepdim=True) / 127
    both = []
    for part in ((blocks / scales).to(torch.int8), scales):
        there = [torch.empty_like(part) for _ in range(dist.get_world_size())]
        dist.all_gather(there, part)
        both.append(torch.cat(there))
    return (both[0] * both[1]).flatten()


def wrong_own_shard_exact(mine, block):
    """keeps this rank's own shard as it was"""
    blocks = mine.view(-1, block)
    scales = blocks.abs().amax(1, keepdim=True) / 127
    both = []
    for part in ((blocks / scales).round().to(torch.int8), scales):
        there = [torch.empty_like(part) for _ in range(dist.get_world_size())]
        dist.all_gather(there, part)
        both.append(there)
    shards = [(codes * steps).flatten() for codes, steps in zip(*both)]
    shards[dist.get_rank()] = mine
    return torch.cat(shards)


def wrong_scales_not_sent(mine, block):
    """multiplies all ranks' codes with this rank's scales"""
    blocks = mine.view(-1, block)
    scales = blocks.abs().amax(1, keepdim=True) / 127
    codes = (blocks / scales).round().to(torch.int8)
    there = [torch.empty_like(codes) for _ in range(dist.get_world_size())]
    dist.all_gather(there, codes)
    return torch.cat([(each * scales).flatten() for each in there])


def wrong_codes_as_int32(mine, block):
    """bytes; the target is"""
    blocks = mine.view(-1, block)
    scales = blocks.abs().amax(1, keepdim=True) / 127
    both = []
    for part in ((blocks / scales).round().to(torch.int32), scales):
        there = [torch.empty_like(part) for _ in range(dist.get_world_size())]
        dist.all_gather(there, part)
        both.append(torch.cat(there))
    return (both[0] * both[1]).flatten()


def wrong_only_its_own(mine, block):
    """right is"""
    blocks = mine.view(-1, block)
    scales = blocks.abs().amax(1, keepdim=True) / 127
    return ((blocks / scales).round() * scales).flatten()


def right_into_one_tensor(mine, block):
    size = dist.get_world_size()
    blocks = mine.unflatten(0, (-1, block))
    scales = torch.linalg.vector_norm(blocks, float("inf"), dim=1) / 127
    codes = blocks.div(scales.unsqueeze(1)).round_().to(torch.int8).flatten()
    every_code, every_scale = torch.empty(size * len(codes), dtype=torch.int8), torch.empty(size * len(scales))
    dist.all_gather(list(every_code.chunk(size)), codes)
    dist.all_gather(list(every_scale.chunk(size)), scales)
    return every_code.float().mul(every_scale.repeat_interleave(block))


def right_half_up(mine, block):
    scales = mine.view(-1, block).abs().amax(1) / 127
    codes = torch.floor(mine.view(-1, block) / scales[:, None] + 0.5).to(torch.int8)
    there = [[torch.empty_like(part) for _ in range(dist.get_world_size())] for part in (codes, scales)]
    dist.all_gather(there[0], codes)
    dist.all_gather(there[1], scales)
    return torch.cat([(numbers * steps[:, None]).flatten() for numbers, steps in zip(*there)])


def wrong_codes_only(mine, block):
    """returns the codes, and leaves out their scales"""
    blocks = mine.view(-1, block)
    codes = (blocks / (blocks.abs().amax(1, keepdim=True) / 127)).round().to(torch.int8)
    there = [torch.empty_like(codes) for _ in range(dist.get_world_size())]
    dist.all_gather(there, codes)
    return torch.cat(there).flatten().float()


def wrong_whole_shards_sent(mine, block):
    """bytes; the target is"""
    there = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(there, mine)
    blocks = torch.cat(there).view(-1, block)
    scales = blocks.abs().amax(1, keepdim=True) / 127
    return ((blocks / scales).round() * scales).flatten()


def wrong_exact(mine, block):
    """right is"""
    there = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(there, mine)
    return torch.cat(there)


def wrong_scales_of_a_hundred(mine, block):
    """right is"""
    blocks = mine.view(-1, block)
    scales = blocks.abs().amax(1, keepdim=True) / 100
    both = []
    for part in ((blocks / scales).round().to(torch.int8), scales):
        there = [torch.empty_like(part) for _ in range(dist.get_world_size())]
        dist.all_gather(there, part)
        both.append(torch.cat(there))
    return (both[0] * both[1]).flatten()


def wrong_scales_in_fp64(mine, block):
    """bytes; the target is"""
    blocks = mine.view(-1, block)
    scales = blocks.abs().amax(1, keepdim=True) / 127
    both = []
    for part in ((blocks / scales).round().to(torch.int8), scales.double()):
        there = [torch.empty_like(part) for _ in range(dist.get_world_size())]
        dist.all_gather(there, part)
        both.append(torch.cat(there))
    return (both[0] * both[1].float()).flatten()
