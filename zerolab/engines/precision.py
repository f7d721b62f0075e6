"""What "fp32", "bf16" and "fp16" mean to an engine.

bf16 and fp16 are mixed precision: parameters, gradients and activations in 2 bytes each; the optimizer updates an fp32
master copy of what the rank owns, and keeps its state in fp32 (Micikevicius et al., arXiv 1710.03740, section 3.1).
bf16 has the range of fp32. fp16 has three more bits of precision and no room for small gradients: its loss is scaled.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

# None: as the module has it
COMPUTE_DTYPES: dict[str, torch.dtype | None] = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}

# The largest power of two that fp16 holds: where the loss is fp16, the scale itself is its gradient. torch begins with
# twice that, which would cost such a loss its first step.
INIT_SCALE = 2.0**15


def compute_dtype(precision: str) -> torch.dtype | None:
    """The dtype of parameters and activations, None for the module's own.

    Raises:
        ValueError: an unknown precision.
    """
    if precision not in COMPUTE_DTYPES:
        raise ValueError(f"precision is {precision!r}: choose one of {', '.join(COMPUTE_DTYPES)}")
    return COMPUTE_DTYPES[precision]


def make_scaler(precision: str, device: torch.device) -> torch.amp.GradScaler:
    """What scales the loss in fp16; in any other precision it does nothing."""
    return torch.amp.GradScaler(device.type, init_scale=INIT_SCALE, enabled=precision == "fp16")


def cast_floating(values: Any, dtype: torch.dtype) -> Any:
    """The same nest of values, its floating-point tensors in `dtype`."""
    # Token numbers and masks are no quantities: they stay as they are.
    return tree_map_only(torch.Tensor, lambda t: t.to(dtype) if t.is_floating_point() else t, values)


@dataclass(frozen=True, slots=True)
class Formats:
    """In which dtypes, and where, the tensors of a flat are kept.

    Args:
        compute: the dtype of parameters and activations; None for the module's own.
        reduce: the dtype in which gradients are added up; None for that of the parameters.
        offload: whether the optimizer's part lies in main memory.
    """

    compute: torch.dtype | None = None
    reduce: torch.dtype | None = None
    offload: bool = False

    def of_parameters(self, own: torch.dtype) -> torch.dtype:
        """The dtype of parameters that the module has in `own`."""
        return self.compute if self.compute and own.is_floating_point else own

    def of_gradients(self, own: torch.dtype) -> torch.dtype:
        """The dtype in which the gradients of parameters that the module has in `own` are added up."""
        wanted = self.reduce or self.compute or own
        # In a real type a complex gradient would lose its imaginary part: there it says how precise both parts are.
        return torch.promote_types(own, wanted) if own.is_complex else wanted

    def make_master(self, shard: torch.Tensor, own: torch.dtype) -> torch.Tensor | None:
        """Memory for a copy of the shard that the optimizer updates; None where it updates the shard itself.

        Where parameters that the module has in `own` are rounded it is no less than fp32. For a GPU's shard in main
        memory it is pinned, which the GPU's link reaches at its full rate.
        """
        if not (self.compute or self.offload):
            return None
        dtype = torch.promote_types(own, torch.float32) if self.compute else own
        place = torch.device("cpu") if self.offload else shard.device
        return torch.empty_like(shard, dtype=dtype, device=place, pin_memory=shard.is_cuda and self.offload)
