"""The length of a gradient that lies in several flats, and in parts on several ranks."""

from collections.abc import Sequence
from functools import reduce

import torch
import torch.distributed as dist

from zerolab.engines.agreement import communication_device


def norm_over_ranks(sharded: Sequence[torch.Tensor], whole: Sequence[torch.Tensor]) -> torch.Tensor:
    """The Euclidean norm of all gradients together, a single number in fp32 or better.

    Args:
        sharded: those of which each rank has a part: their squares are added up, by one all_reduce of a number.
        whole: those that every rank has, of any floating-point or complex types, too.
    """
    squares = []
    if sharded:
        # From main memory, where offloaded gradients were unscaled.
        squares.append(_sum_of_squares(sharded).to(communication_device()))
        dist.all_reduce(squares[0])
    if whole:
        squares.append(_sum_of_squares(whole).to(communication_device()))
    return torch.stack(squares).sum().sqrt()


def _sum_of_squares(gradients: Sequence[torch.Tensor]) -> torch.Tensor:
    # A complex number counts with both parts.
    parts = [torch.view_as_real(each) if each.is_complex() else each for each in gradients]
    # A bf16 sum of squares would lose all but 8 bits.
    wide = reduce(torch.promote_types, [part.dtype for part in parts], torch.float32)
    return torch.stack([torch.linalg.vector_norm(part, dtype=wide) ** 2 for part in parts]).sum()
