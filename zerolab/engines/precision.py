"""What "fp32" and "bf16" mean to an engine.

bf16 is mixed precision: parameters, gradients and activations in bf16, 2 bytes each; the optimizer updates an fp32
master copy of what the rank owns, and keeps its state in fp32 (Micikevicius et al., arXiv 1710.03740, section 3.1).
"""

from typing import Any

import torch
from torch.utils._pytree import tree_map_only

COMPUTE_DTYPES: dict[str, torch.dtype | None] = {"fp32": None, "bf16": torch.bfloat16}  # None: as the module has it


def compute_dtype(precision: str) -> torch.dtype | None:
    """The dtype of parameters and activations, None for the module's own.

    Raises:
        ValueError: an unknown precision.
    """
    if precision not in COMPUTE_DTYPES:
        raise ValueError(f"precision is {precision!r}: choose one of {', '.join(COMPUTE_DTYPES)}")
    return COMPUTE_DTYPES[precision]


def cast_floating(values: Any, dtype: torch.dtype) -> Any:
    """The same nest of values, its floating-point tensors in `dtype`."""
    # Token numbers and masks are no quantities: they stay as they are.
    return tree_map_only(torch.Tensor, lambda t: t.to(dtype) if t.is_floating_point() else t, values)
