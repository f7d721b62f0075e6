"""The numbers of small tensors: what a collective was given, and what it brought."""

import math
from collections.abc import Iterable

import torch
from torch.utils._python_dispatch import _disable_current_modes

MOST = 64  # nobody reads more than this off a picture


def numbers_of(tensors: Iterable[torch.Tensor]) -> tuple[float, ...] | None:
    """All numbers of the tensors, one after the other; None where they are many, not finite, or not in main memory.

    A GPU is not asked: the host would have to wait for the answer. A sparse tensor has no list of all its numbers.
    """
    given = list(tensors)
    if not given or sum(tensor.numel() for tensor in given) > MOST:
        return None
    plain = (type(tensor) is torch.Tensor and tensor.layout is torch.strided for tensor in given)
    if not all(plain) or any(not tensor.is_cpu or tensor.is_complex() for tensor in given):
        return None
    with _disable_current_modes():  # looking is not part of the run
        found = tuple(float(number) for tensor in given for number in tensor.detach().flatten().tolist())
    return found if all(map(math.isfinite, found)) else None
