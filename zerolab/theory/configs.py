"""The equivalent settings of FSDP2, Accelerate, DeepSpeed and Megatron, and torch's checkpointing. Text, no torch."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from zerolab.moved import renamed
from zerolab.names import check_count, check_known
from zerolab.theory.job import check_options

DEEPSPEED = {"ddp": 0, "zero1": 1, "zero2": 2, "zero3": 3}
RESHARD = {"zero2": False, "zero3": True}  # FSDP2 has no ZeRO-1, and replicates only through DDP
TORCH_NAMES = {"bf16": "torch.bfloat16", "fp16": "torch.float16"}  # of what is computed in mixed precision
DISTRIBUTED_OPTIMIZER = {"ddp": False, "zero1": True}

_CHECKPOINTS = tomllib.loads(Path(__file__).parents[1].joinpath("data", "checkpointing.toml").read_text("utf-8"))
_MEGATRON = {"none": "", "block": " --recompute-granularity full --recompute-method uniform --recompute-num-layers 1"}


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
    micro_batches: int = 1,
    moments: str = "fp32",
    logits: str = "own",
) -> dict[str, Any]:
    """The same stage in other systems, to paste.

    `offload` puts the optimizer into main memory; `mesh` is how many replicas and how many shards hybrid sharding has
    (ddp has no shards); `tensor` ranks divide each matrix, `context` each sequence; `second_shard` ranks of a node keep
    a second shard (hpZ); so many `micro_batches` add up to a step; `moments` and `logits` are those of `plan`. A system
    that has no such setting has None. Which matrices are divided how depends on the model: for `tensor` and `context`
    only Megatron has settings.

    Returns:
        "fsdp2": lines of Python that shard a `model` whose blocks are in `blocks`, or None where FSDP2 has no such
        stage; "accelerate": the file to give to `accelerate launch --config_file`; "deepspeed": its configuration, to
        pass to `deepspeed.initialize(config=...)` or to save as JSON; "megatron": arguments of its training script, or
        None where it has no such stage; "checkpointing": lines of Python to run before either of the first two, or
        None; "not covered": sentences about what all or some of these leave to your own code, or None. In bf16 the
        systems differ in bytes per parameter: see `schemes`.

    Raises ValueError for an unknown stage, precision, checkpointing, offload, moments or logits, a mesh that is no
    pair, or a count below 1.
    """
    check_known("stage", stage, DEEPSPEED)
    check_options(precision=precision, checkpointing=checkpointing, offload=offload, moments=moments, logits=logits)
    counts = {"rows": rows, "tensor": tensor, "context": context, "micro_batches": micro_batches}
    rows, tensor, context, micro_batches = (check_count(f"value of {name}", count) for name, count in counts.items())
    second_shard = None if second_shard is None else check_count("value of second_shard", second_shard)
    mesh = None if mesh is None else _pair(mesh)
    mesh, second_shard = mesh if stage != "ddp" else None, second_shard if stage == "zero3" else None
    is_whole = tensor == context == 1
    # DDP keeps its optimizer on the GPU, and DeepSpeed moves one only from stage 1 on.
    has_launcher = is_whole and not (offload and stage == "ddp")
    has_fsdp2 = stage in RESHARD and is_whole
    accelerate = _accelerate(stage, precision, mesh, micro_batches, offload=offload)
    deepspeed = _deepspeed(stage, precision, rows, second_shard, micro_batches, offload=offload, moments=moments)
    options: dict[str, Any] = {"checkpointing": checkpointing, "tensor": tensor, "moments": moments, "logits": logits}
    megatron = _megatron(stage, precision, rows, mesh, context=context, offload=offload, **options)
    lacking = _not_covered(stage, precision, rows, micro_batches, offload=offload, **options)
    return {
        "fsdp2": _fsdp2(stage, precision, second_shard, mesh, offload=offload) if has_fsdp2 else None,
        "accelerate": accelerate if has_launcher and not second_shard and (has_fsdp2 or not mesh) else None,
        "deepspeed": deepspeed if has_launcher and not mesh else None,
        "megatron": megatron,
        "checkpointing": _CHECKPOINTS.get(checkpointing),
        "not covered": "\n".join(lacking) or None,
    }


def _pair(mesh: Sequence[int]) -> tuple[int, int]:
    """Replicas and shards as ints."""
    if not isinstance(mesh, Sequence) or len(mesh) != 2:
        raise ValueError(f"mesh is {mesh!r}: it must be a pair, of how many replicas and how many shards: (2, 8)")
    return check_count("number of replicas in mesh", mesh[0]), check_count("number of shards in mesh", mesh[1])


def _not_covered(
    stage: str,
    precision: str,
    rows: int,
    micro_batches: int,
    *,
    checkpointing: str,
    offload: bool,
    tensor: int,
    moments: str,
    logits: str,
) -> Iterator[str]:
    """What was asked for and is not in the settings of every system that has the stage: a sentence for each."""
    if offload and stage == "ddp":
        yield "Optimizer in main memory: no system here has that under ddp. Take the settings of zero1."
    if checkpointing == "selective" and stage in DISTRIBUTED_OPTIMIZER:
        yield (
            "Selective checkpointing: Megatron's is another. Its --recompute-granularity selective repeats core "
            "attention alone, which saves nothing where that is fused."
        )
    if precision == "fp16" and stage in RESHARD:
        yield (
            "A scaled loss, which fp16 needs: FSDP2 has none, so scale it with torch.amp.GradScaler, which leaves out "
            "an update on all ranks if gradients overflow on one. Accelerate and DeepSpeed do it for you."
        )
    if micro_batches > 1:
        yield (
            f"{micro_batches} micro-batches a step: DeepSpeed's configuration says so. In a loop of your own call "
            f"backward for each of them, with the loss divided by {micro_batches}, before the update. Accelerate's "
            f"FSDP takes GradientAccumulationPlugin(num_steps={micro_batches}, sync_each_batch=True), without which it "
            f"keeps whole gradients; Megatron a --global-batch-size of {micro_batches} times {rows} times the "
            "data-parallel ranks."
        )
    if moments == "8-bit":
        yield (
            "Moments in 8 bits: the optimizer that you make has them, for example torchao.optim.AdamW8bit in place of "
            "torch.optim.AdamW. With moments in 32 bits it needs more memory. Megatron's distributed optimizer keeps "
            "them in fp8, and has all of them in fp32 during the update; in main memory it keeps them in fp32."
        )
    if logits == "flash":
        yield "A loss in one kernel: CrossEntropyLoss of flash_attn.losses.cross_entropy in place of torch's."
    if logits == "fused":
        kernel = "LigerFusedLinearCrossEntropyLoss of liger_kernel.transformers"
        if tensor > 1:  # Liger's takes the whole vocabulary
            kernel = "linear_cross_entropy of cut_cross_entropy, with its VocabParallelOptions,"
        yield (
            f"A loss without stored logits: the model has it, as {kernel} in place of the output layer and torch's "
            "cross-entropy. Megatron has none."
        )


def _fsdp2(stage: str, precision: str, second_shard: int | None, mesh: tuple[int, int] | None, *, offload: bool) -> str:
    # Shards stay fp32, so the optimizer updates masters; what is gathered and computed with has 16 bits.
    dtype = f"param_dtype={TORCH_NAMES[precision]}" if precision in TORCH_NAMES else ""
    policy = f"MixedPrecisionPolicy({dtype})"
    reshard = second_shard if second_shard and RESHARD[stage] else RESHARD[stage]
    policies, given = ("CPUOffloadPolicy, ", ", offload_policy=CPUOffloadPolicy()") if offload else ("", "")
    before, where, ranks = "", "", "all ranks"
    if mesh:
        replicas, shards = mesh
        before = f"""from torch.distributed.device_mesh import init_device_mesh

mesh = init_device_mesh("cuda", ({replicas}, {shards}), mesh_dim_names=("replicate", "shard"))
"""
        where, ranks = "mesh=mesh, ", f"the {shards} ranks that shard"
    # No reshard_after_forward for the root, which FSDP2 by default keeps gathered from forward to backward.
    return f"""{before}import torch
from torch.distributed.fsdp import {policies}MixedPrecisionPolicy, fully_shard

# The shards stay fp32 and are the masters: 16 bytes a parameter, divided by {ranks}.
policy = {policy}
for block in blocks:
    fully_shard(block, {where}reshard_after_forward={reshard}, mp_policy=policy{given})
fully_shard(model, {where}mp_policy=policy{given})
"""


def _deepspeed(
    stage: str,
    precision: str,
    rows: int,
    second_shard: int | None,
    micro_batches: int,
    *,
    offload: bool,
    moments: str,
) -> dict[str, Any]:
    # DeepSpeed refuses a configuration without a batch size, and computes in fp32 only if bf16 is off.
    zero: dict[str, Any] = {"stage": DEEPSPEED[stage]}
    found: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": rows,
        "zero_optimization": zero,
        "bf16": {"enabled": precision == "bf16"},
    }
    if precision == "fp16":
        found["fp16"] = {"enabled": True}
    if micro_batches > 1:
        found["gradient_accumulation_steps"] = micro_batches
    if offload:
        zero["offload_optimizer"] = {"device": "cpu"}
        found["zero_force_ds_cpu_optimizer"] = False  # otherwise it refuses any optimizer that you make, torch's too
    if moments != "fp32" and stage != "ddp":
        found["zero_allow_untested_optimizer"] = True  # of those that it knows none has 8 bits
    if second_shard:
        zero["zero_hpz_partition_size"] = second_shard
    return found


def _accelerate(stage: str, precision: str, mesh: tuple[int, int] | None, micro_batches: int, *, offload: bool) -> str:
    lines = [f"mixed_precision: '{precision if precision in TORCH_NAMES else 'no'}'"]  # in YAML a bare no is false
    if stage in RESHARD:
        lines += ["distributed_type: FSDP", "fsdp_config:", "  fsdp_version: 2"]
        lines += ["  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP"]
        lines += [f"  fsdp_reshard_after_forward: {str(RESHARD[stage]).lower()}"]
        lines += ["  fsdp_offload_params: true"] if offload else []
        if mesh:
            lines += ["parallelism_config:", f"  parallelism_config_dp_replicate_size: {mesh[0]}"]
            lines += [f"  parallelism_config_dp_shard_size: {mesh[1]}"]
    elif stage == "zero1":  # FSDP2 has none, and torch's is in no configuration
        lines += ["distributed_type: DEEPSPEED", "deepspeed_config:", "  zero_stage: 1"]
        lines += ["  offload_optimizer_device: cpu"] if offload else []
        lines += [f"  gradient_accumulation_steps: {micro_batches}"] * (micro_batches > 1)
    else:
        lines += ["distributed_type: MULTI_GPU"]
    return "\n".join(lines) + "\n"


def _megatron(
    stage: str,
    precision: str,
    rows: int,
    mesh: tuple[int, int] | None,
    *,
    checkpointing: str,
    tensor: int,
    context: int,
    offload: bool,
    moments: str,
    logits: str,
) -> str | None:
    if stage not in DISTRIBUTED_OPTIMIZER or checkpointing not in _MEGATRON or logits == "fused":
        return None
    arguments = f"--micro-batch-size {rows}" + (f" --{precision}" if precision in TORCH_NAMES else "")
    arguments += " --use-distributed-optimizer" if DISTRIBUTED_OPTIMIZER[stage] else ""
    arguments += f" --num-distributed-optimizer-instances {mesh[0]}" if mesh else ""
    if offload or moments == "8-bit":
        # Only the distributed optimizer has either, and in fp32 moments in 8 bits would come with masters.
        if not DISTRIBUTED_OPTIMIZER[stage] or not (offload or precision in TORCH_NAMES):
            return None
        arguments += " --use-precision-aware-optimizer"
        arguments += " --optimizer-cpu-offload" if offload else " --exp-avg-dtype fp8 --exp-avg-sq-dtype fp8"
    arguments += _MEGATRON[checkpointing]
    arguments += f" --tensor-model-parallel-size {tensor} --sequence-parallel" if tensor > 1 else ""
    return arguments + (f" --context-parallel-size {context}" if context > 1 else "")
