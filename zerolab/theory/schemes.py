"""Schemes of mixed precision, by the bytes that each keeps per parameter with Adam. No torch.

All compute in bf16 or fp16 and update in fp32; they differ in what else they keep:

* `zerolab`, 20 bytes: bf16 parameters and gradients (2 + 2), and at the update an fp32 copy of the gradients (4),
  masters and two moments (12). ZeRO's paper leaves out the copy, and says 16.
* `deepspeed`, 20 bytes: the same, but that its ZeRO-3 updates a thousand million numbers at a time (`sub_group_size`),
  and copies the gradients of no more (deepspeedai/DeepSpeed, runtime/zero/stage3.py, `step`); and keeps as many whole
  until the loss.
* `megatron`, 18 bytes in bf16: gradients are accumulated and reduced in fp32 (4), in a buffer that is never freed, plus
  bf16 parameters (2) and the 12. Its distributed optimizer shards the 12: 6 + 12/N. In fp16 it accumulates in fp16, and
  the update reads an fp32 copy: 20 bytes, or 4 + 16/N (NVIDIA/Megatron-LM, docs on the distributed optimizer; its
  training script turns fp32 gradients on with `--bf16` alone).
* `fsdp2`, 16 bytes: with `MixedPrecisionPolicy(param_dtype=torch.bfloat16)` the shards stay fp32 and *are* the masters
  (4 + 4 + 8), and bf16 exists only while a unit is gathered. Nothing is kept twice, and everything is sharded.
"""

from __future__ import annotations

from zerolab.names import check_known
from zerolab.theory import forms

STAGES = {
    "zerolab": ("ddp", "zero1", "zero2", "zero3"),
    "deepspeed": ("ddp", "zero1", "zero2", "zero3"),
    "megatron": ("ddp", "zero1"),
    "fsdp2": ("zero2", "zero3"),
}
"""The stages of each: Megatron's distributed optimizer is stage 1; FSDP2 keeps its units gathered from forward to
backward (2), or gathers them again (3)."""
SUB_GROUP = LIVE = 10**9
"""Parameters that DeepSpeed's ZeRO-3 updates at a time; and that stay whole if they are used again soon, or are fetched
early (`stage3_max_live_parameters`)."""


def stages_of(scheme: str) -> tuple[str, ...]:
    """The stages that a scheme has. Raises ValueError for an unknown scheme."""
    check_known("scheme", scheme, STAGES)
    return STAGES[scheme]


def updated_at_once(scheme: str, stage: str, owned: int) -> int:
    """How many of the parameters that a rank owns are updated together, and have an fp32 copy of their gradients."""
    return min(owned, SUB_GROUP) if (scheme, stage) == ("deepspeed", "zero3") else owned


def reduces_in_fp32(scheme: str, precision: str) -> bool:
    """Whether gradients are accumulated and sent in 4 bytes, though they are computed in fewer: Megatron's in bf16."""
    return scheme == "megatron" and precision == "bf16"


def scheme_bytes(
    scheme: str, stage: str, num_params: float, world_size: int, precision: str = "bf16", *, moments: str = "fp32"
) -> dict[str, int]:
    """Bytes of parameters, gradients and optimizer state that a rank holds at the update, under a scheme.

    As `theory.state_bytes`, but with the fp32 copy of the gradients among the gradients. In fp32 there are no masters,
    so all schemes keep 16 bytes; FSDP2 shards all of them in stage 2 too. `moments` is one of
    `theory.MOMENTS`; masters stay fp32.

    Raises ValueError for an unknown scheme or kind of moments, a stage that it lacks, and as `theory.state_bytes` does.
    """
    held = forms.state_bytes(stage, num_params, world_size, precision, moments=moments)
    if stage not in stages_of(scheme):
        raise ValueError(f"{scheme} has no {stage}: it has {', '.join(STAGES[scheme])}")
    if scheme == "fsdp2":  # it shards everything; what stage 2 keeps gathered are buffers, not state
        return forms.state_bytes("zero3", num_params, world_size, "fp32", moments=moments)
    if precision == "fp32":
        return held
    if reduces_in_fp32(scheme, precision):
        return held | {"gradients": forms.FP32_BYTES * int(num_params)}
    owned = int(num_params) // (1 if stage == "ddp" else int(world_size))
    return held | {"gradients": held["gradients"] + forms.FP32_BYTES * updated_at_once(scheme, stage, owned)}
