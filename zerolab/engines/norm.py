"""The length of a gradient that lies in several flats, and in parts on several ranks."""

from collections.abc import Sequence
from functools import reduce

import torch
import torch.distributed as dist

from zerolab.engines.agreement import communication_device


def norm_over_ranks(gradients: Sequence[torch.Tensor], *, is_sharded: bool) -> torch.Tensor:
    """The Euclidean norm of all `gradients` together, a single number in fp32 or better.

    Args:
        gradients: this rank's, of any floating-point or complex types.
        is_sharded: each rank has its own part: the squares are added up over ranks, by one all_reduce of a number.
    """
    # A complex number counts with both parts.
    parts = [torch.view_as_real(each) if each.is_complex() else each for each in gradients]
    # A bf16 sum of squares would lose all but 8 bits.
    wide = reduce(torch.promote_types, [part.dtype for part in parts], torch.float32)
    square = torch.stack([torch.linalg.vector_norm(part, dtype=wide) ** 2 for part in parts]).sum()
    if is_sharded:
        square = square.to(communication_device())  # from main memory, where offloaded gradients were unscaled
        dist.all_reduce(square)
    return square.sqrt()
