def right_by_norm_squared(mine, max_norm):
    total = mine.norm() ** 2
    dist.all_reduce(total)
    norm = float(total) ** 0.5
    if norm > max_norm:
        mine *= max_norm / norm


def right_by_a_dot_product(mine, max_norm):
    squares = torch.dot(mine, mine).reshape(1)
    dist.all_reduce(squares)
    mine.mul_(min(1.0, max_norm / squares.sqrt().item()))


def right_in_float64(mine, max_norm):
    squares = torch.tensor([mine.double().norm().item() ** 2], dtype=torch.float64)
    dist.all_reduce(squares)
    norm = math.sqrt(squares.item())
    if norm > max_norm:
        mine.mul_(max_norm / norm)


import math


def right_by_clamp(mine, max_norm):
    squares = (mine**2).sum()
    dist.all_reduce(squares, op=dist.ReduceOp.SUM)
    mine.mul_((max_norm / squares.sqrt()).clamp(max=1.0))


def right_by_copying_back(mine, max_norm):
    squares = mine.pow(2).sum()
    dist.all_reduce(squares)
    if squares > max_norm**2:
        mine.copy_(mine * (max_norm / squares.sqrt()))


def right_waiting_late(mine, max_norm):
    squares = mine.square().sum()
    work = dist.all_reduce(squares, async_op=True)
    work.wait()
    scale = max_norm / torch.sqrt(squares)
    if scale < 1:
        mine.mul_(scale)


def right_by_vector_norm_over_a_vector_of_ranks(mine, max_norm):
    norms = torch.zeros(dist.get_world_size())
    norms[dist.get_rank()] = mine.norm()
    dist.all_reduce(norms)
    norm = norms.norm()
    if norm > max_norm:
        mine.mul_(max_norm / norm)


def wrong_own_norm(mine, max_norm):
    norm = mine.norm()
    dist.all_reduce(torch.zeros(1))
    if norm > max_norm:
        mine.mul_(max_norm / norm)


def wrong_sum_of_norms(mine, max_norm):
    norm = mine.norm()
    dist.all_reduce(norm)
    if norm > max_norm:
        mine.mul_(max_norm / norm)


def wrong_no_root(mine, max_norm):
    squares = mine.square().sum()
    dist.all_reduce(squares)
    if squares > max_norm:
        mine.mul_(max_norm / squares)


def wrong_always_scales(mine, max_norm):
    squares = mine.square().sum()
    dist.all_reduce(squares)
    mine.mul_(max_norm / squares.sqrt())


def wrong_never_scales(mine, max_norm):
    squares = mine.square().sum()
    dist.all_reduce(squares)


def wrong_not_in_place(mine, max_norm):
    squares = mine.square().sum()
    dist.all_reduce(squares)
    if squares.sqrt() > max_norm:
        mine = mine * (max_norm / squares.sqrt())
    return mine


def wrong_torch_clip(mine, max_norm):
    mine.grad = mine.clone()
    torch.nn.utils.clip_grad_norm_([mine], max_norm)
    mine.copy_(mine.grad)


def wrong_only_who_is_above(mine, max_norm):
    squares = mine.square().sum()
    if squares.sqrt() > max_norm:
        dist.all_reduce(squares)
        mine.mul_(max_norm / squares.sqrt())


def wrong_where_a_part_is_zero_nothing_is_sent(mine, max_norm):
    if not mine.any():
        return
    right_by_norm_squared(mine, max_norm)


def wrong_mean_of_squares(mine, max_norm):
    squares = mine.square().mean()
    dist.all_reduce(squares)
    norm = squares.sqrt()
    if norm > max_norm:
        mine.mul_(max_norm / norm)


def wrong_gathers_everything(mine, max_norm):
    parts = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, mine)
    norm = torch.cat(parts).norm()
    if norm > max_norm:
        mine.mul_(max_norm / norm)


def wrong_reduces_the_gradient(mine, max_norm):
    total = mine.clone()
    dist.all_reduce(total)
    norm = total.norm()
    if norm > max_norm:
        mine.mul_(max_norm / norm)


def wrong_clips_each_element(mine, max_norm):
    dist.all_reduce(torch.zeros(1))
    mine.clamp_(-max_norm, max_norm)


def wrong_twice(mine, max_norm):
    for _ in range(2):
        right_by_norm_squared(mine, max_norm)


def wrong_maximum_of_norms(mine, max_norm):
    norm = mine.norm()
    dist.all_reduce(norm, op=dist.ReduceOp.MAX)
    if norm > max_norm:
        mine.mul_(max_norm / norm)


def wrong_inverse(mine, max_norm):
    squares = mine.square().sum()
    dist.all_reduce(squares)
    if squares.sqrt() > max_norm:
        mine.mul_(squares.sqrt() / max_norm)


def wrong_a_numpy_copy_of_ten_parts(mine, max_norm):
    """outside of torch"""
    copies = np.concatenate([mine.numpy()] * 10)
    right_by_norm_squared(mine, max_norm)
    del copies


import numpy as np


def wrong_in_new_memory(mine, max_norm):
    """leaves `mine` as it was; it is to be multiplied in place"""
    squares = mine.square().sum()
    dist.all_reduce(squares)
    if squares.sqrt() > max_norm:
        mine.data = mine * (max_norm / squares.sqrt())
