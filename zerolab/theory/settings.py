"""What to type for the same in FSDP2, DeepSpeed and Megatron, and torch's own checkpointing. Text only, no torch."""

from __future__ import annotations

import json
from typing import Any

from zerolab.moved import renamed
from zerolab.names import check_known
from zerolab.theory.activations import CHECKPOINTING

DEEPSPEED = {"ddp": 0, "zero1": 1, "zero2": 2, "zero3": 3}
RESHARD = {"zero2": False, "zero3": True}  # FSDP2 has no ZeRO-1, and replicates only through DDP
TORCH_NAMES = {"bf16": "torch.bfloat16", "fp16": "torch.float16"}  # of what is computed in mixed precision
DISTRIBUTED_OPTIMIZER = {"ddp": False, "zero1": True}

_WHOLE_BLOCKS = """from functools import partial

from torch.utils.checkpoint import checkpoint

for block in blocks:
    block.forward = partial(checkpoint, block.forward, use_reentrant=False)
"""
_SELECTIVE = """from collections import Counter
from functools import partial

import torch
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts


def keep_attention_and_every_second_matrix():
    seen = Counter()

    def policy(context, operation, *args, **kwargs):
        matrix = operation in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)
        seen[context.is_recompute] += matrix
        keep = seen[context.is_recompute] % 2 == 1 if matrix else "scaled_dot_product" in str(operation)
        return CheckpointPolicy.MUST_SAVE if keep else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)


options = {"use_reentrant": False, "context_fn": keep_attention_and_every_second_matrix}
for block in blocks:
    block.forward = partial(checkpoint, block.forward, **options)
"""
_CHECKPOINTS = {"none": None, "block": _WHOLE_BLOCKS, "selective": _SELECTIVE}
# Megatron's selective recomputation is that of core attention: another selection than torchtitan's.
_MEGATRON = {
    "none": "",
    "block": " --recompute-granularity full --recompute-method uniform --recompute-num-layers 1",
    "selective": " --recompute-granularity selective",
}


@renamed(batch="rows")
def settings(stage: str, precision: str = "bf16", rows: int = 1, checkpointing: str = "none") -> dict[str, Any]:
    """The same stage in other systems, to paste.

    Returns:
        "fsdp2": lines of Python that shard a `model` whose blocks are in `blocks`, or None where FSDP2 has no such
        stage; "deepspeed": its configuration, to pass to `deepspeed.initialize(config=...)` or to save as JSON;
        "megatron": arguments of its training script, or None where it has no such stage; "checkpointing": lines of
        Python to run before either of the first two, or None. In bf16 the systems differ in bytes per parameter:
        see `schemes`.

    Raises ValueError for an unknown stage or checkpointing.
    """
    check_known("stage", stage, DEEPSPEED)
    check_known("checkpointing", checkpointing, CHECKPOINTING)
    # DeepSpeed refuses a configuration without a batch size, and computes in fp32 only if bf16 is off.
    deepspeed: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": rows,
        "zero_optimization": {"stage": DEEPSPEED[stage]},
        "bf16": {"enabled": precision == "bf16"},
    }
    if precision == "fp16":
        deepspeed["fp16"] = {"enabled": True}
    return {
        "fsdp2": _fsdp2(stage, precision) if stage in RESHARD else None,
        "deepspeed": deepspeed,
        "megatron": _megatron(stage, precision, rows, checkpointing) if stage in DISTRIBUTED_OPTIMIZER else None,
        "checkpointing": _CHECKPOINTS[checkpointing],
    }


def _fsdp2(stage: str, precision: str) -> str:
    # Shards stay fp32, so the optimizer updates masters; what is gathered and computed with has 16 bits.
    dtype = f"param_dtype={TORCH_NAMES[precision]}" if precision in TORCH_NAMES else ""
    policy = f"MixedPrecisionPolicy({dtype})"
    # No reshard_after_forward for the root, which FSDP2 by default keeps gathered from forward to backward.
    return f"""import torch
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

# The shards stay fp32 and are the masters: 16 bytes a parameter, divided by all ranks.
policy = {policy}
for block in blocks:
    fully_shard(block, reshard_after_forward={RESHARD[stage]}, mp_policy=policy)
fully_shard(model, mp_policy=policy)
"""


def _megatron(stage: str, precision: str, rows: int, checkpointing: str) -> str:
    arguments = f"--micro-batch-size {rows}" + (f" --{precision}" if precision in TORCH_NAMES else "")
    arguments += " --use-distributed-optimizer" if DISTRIBUTED_OPTIMIZER[stage] else ""
    return arguments + _MEGATRON[checkpointing]


def as_json(configuration: dict[str, Any]) -> str:
    """DeepSpeed's configuration as the text of its file."""
    return json.dumps(configuration, indent=2)
