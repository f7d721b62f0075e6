"""The equivalent settings of FSDP2, Accelerate, DeepSpeed and Megatron, and torch's checkpointing. Text, no torch."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

from zerolab.moved import renamed
from zerolab.names import check_known
from zerolab.theory.activations import CHECKPOINTING

DEEPSPEED = {"ddp": 0, "zero1": 1, "zero2": 2, "zero3": 3}
RESHARD = {"zero2": False, "zero3": True}  # FSDP2 has no ZeRO-1, and replicates only through DDP
TORCH_NAMES = {"bf16": "torch.bfloat16", "fp16": "torch.float16"}  # of what is computed in mixed precision
DISTRIBUTED_OPTIMIZER = {"ddp": False, "zero1": True}

_CHECKPOINTS = tomllib.loads(Path(__file__).parents[1].joinpath("data", "checkpointing.toml").read_text("utf-8"))
# Megatron's selective recomputation is that of core attention: a different selection from torchtitan's.
_MEGATRON = {
    "none": "",
    "block": " --recompute-granularity full --recompute-method uniform --recompute-num-layers 1",
    "selective": " --recompute-granularity selective",
}


@renamed(batch="rows")
def settings(
    stage: str,
    precision: str = "bf16",
    rows: int = 1,
    checkpointing: str = "none",
    *,
    offload: bool = False,
    mesh: tuple[int, int] | None = None,
    tensor: int = 1,
    context: int = 1,
    second_shard: int | None = None,
) -> dict[str, Any]:
    """The same stage in other systems, to paste.

    `offload` puts the optimizer into main memory; `mesh` are the replicas and shards of hybrid sharding; `tensor` ranks
    divide each matrix, `context` each sequence; `second_shard` ranks of a node keep a second shard (hpZ). A system that
    has no such setting has None: which matrices are divided how depends on the model.

    Returns:
        "fsdp2": lines of Python that shard a `model` whose blocks are in `blocks`, or None where FSDP2 has no such
        stage; "accelerate": the file to give to `accelerate launch --config_file`; "deepspeed": its configuration, to
        pass to `deepspeed.initialize(config=...)` or to save as JSON; "megatron": arguments of its training script, or
        None where it has no such stage; "checkpointing": lines of Python to run before either of the first two, or
        None. In bf16 the systems differ in bytes per parameter: see `schemes`.

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
    if offload:
        deepspeed["zero_optimization"]["offload_optimizer"] = {"device": "cpu"}
    second_shard = second_shard if stage == "zero3" else None
    if second_shard:
        deepspeed["zero_optimization"]["zero_hpz_partition_size"] = second_shard
    is_whole = tensor == context == 1
    fsdp2 = _fsdp2(stage, precision, second_shard, offload=offload) if stage in RESHARD and is_whole else None
    megatron = _megatron(stage, precision, rows, checkpointing) if stage in DISTRIBUTED_OPTIMIZER else None
    return {
        "fsdp2": on_mesh(fsdp2, *mesh) if fsdp2 and mesh else fsdp2,
        "accelerate": _accelerate(stage, precision, offload) if is_whole and not (mesh or second_shard) else None,
        "deepspeed": deepspeed if is_whole and not mesh else None,
        "megatron": megatron + _divided(tensor, context) if megatron and not (offload or mesh) else None,
        "checkpointing": _CHECKPOINTS.get(checkpointing),
    }


def on_mesh(text: str, replicas: int, shards: int) -> str:
    """FSDP2's lines on a mesh, for hybrid sharding."""
    mesh = f'mesh = init_device_mesh("cuda", ({replicas}, {shards}), mesh_dim_names=("replicate", "shard"))\n'
    for what in ("block", "model"):
        text = text.replace(f"fully_shard({what}, ", f"fully_shard({what}, mesh=mesh, ")
    return f"from torch.distributed.device_mesh import init_device_mesh\n\n{mesh}{text}"


def _fsdp2(stage: str, precision: str, second_shard: int | None, *, offload: bool) -> str:
    # Shards stay fp32, so the optimizer updates masters; what is gathered and computed with has 16 bits.
    dtype = f"param_dtype={TORCH_NAMES[precision]}" if precision in TORCH_NAMES else ""
    policy = f"MixedPrecisionPolicy({dtype})"
    reshard = second_shard if second_shard and RESHARD[stage] else RESHARD[stage]
    policies, given = ("CPUOffloadPolicy, ", ", offload_policy=CPUOffloadPolicy()") if offload else ("", "")
    # No reshard_after_forward for the root, which FSDP2 by default keeps gathered from forward to backward.
    return f"""import torch
from torch.distributed.fsdp import {policies}MixedPrecisionPolicy, fully_shard

# The shards stay fp32 and are the masters: 16 bytes a parameter, divided by all ranks.
policy = {policy}
for block in blocks:
    fully_shard(block, reshard_after_forward={reshard}, mp_policy=policy{given})
fully_shard(model, mp_policy=policy{given})
"""


def _accelerate(stage: str, precision: str, offload: bool) -> str:
    lines = [f"mixed_precision: '{precision if precision in TORCH_NAMES else 'no'}'"]  # in YAML a bare no is false
    if stage in RESHARD:
        lines += ["distributed_type: FSDP", "fsdp_config:", "  fsdp_version: 2"]
        lines += ["  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP"]
        lines += [f"  fsdp_reshard_after_forward: {str(RESHARD[stage]).lower()}"]
        lines += ["  fsdp_offload_params: true"] * offload
    elif stage == "zero1":  # FSDP2 has none, and torch's is in no configuration
        lines += ["distributed_type: DEEPSPEED", "deepspeed_config:", "  zero_stage: 1"]
        lines += ["  offload_optimizer_device: cpu"] * offload
    else:
        lines += ["distributed_type: MULTI_GPU"]
    return "\n".join(lines) + "\n"


def _megatron(stage: str, precision: str, rows: int, checkpointing: str) -> str:
    arguments = f"--micro-batch-size {rows}" + (f" --{precision}" if precision in TORCH_NAMES else "")
    arguments += " --use-distributed-optimizer" if DISTRIBUTED_OPTIMIZER[stage] else ""
    return arguments + _MEGATRON[checkpointing]


def _divided(tensor: int, context: int) -> str:
    text = f" --tensor-model-parallel-size {tensor} --sequence-parallel" if tensor > 1 else ""
    return text + (f" --context-parallel-size {context}" if context > 1 else "")


def as_json(configuration: dict[str, Any]) -> str:
    """DeepSpeed's configuration as the text of its file."""
    return json.dumps(configuration, indent=2)
