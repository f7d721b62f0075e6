"""Activation checkpointing of a model's blocks, as torch does it: what a forward forgets, backward computes again."""

from collections import Counter
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from zerolab.engines.partition import ROOT, partition
from zerolab.theory.activations import CHECKPOINTING

MATRICES = (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)
ATTENTION = (
    torch.ops.aten._scaled_dot_product_flash_attention.default,  # noqa: SLF001  (torch names them so)
    torch.ops.aten._scaled_dot_product_efficient_attention.default,  # noqa: SLF001
    torch.ops.aten._scaled_dot_product_cudnn_attention.default,  # noqa: SLF001
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default,  # noqa: SLF001
)


def checkpoint_blocks(model: nn.Module, checkpointing: str) -> None:
    """Makes each unit of the model but the root forget its activations: "none", "selective" or "block".

    Inside the module's hooks, so that zero3 gathers a unit before its forward runs again. Raises ValueError for another
    word.
    """
    if checkpointing not in CHECKPOINTING:
        raise ValueError(f"unknown checkpointing {checkpointing!r}: choose one of {', '.join(CHECKPOINTING)}")
    if checkpointing == "none":
        return
    options: dict[str, Any] = {"use_reentrant": False}
    if checkpointing == "selective":
        options["context_fn"] = _selective
    for unit in dict.fromkeys(flat.unit for flat in partition(model, 1)):
        if unit != ROOT:
            block = model.get_submodule(unit)
            block.forward = partial(checkpoint, block.forward, **options)


def _selective() -> Any:
    """Of a block attention and every second matrix multiplication are kept: torchtitan's "selective op"."""
    multiplied: Counter[bool] = Counter()

    def policy(context: Any, func: Any, *_: Any, **__: Any) -> CheckpointPolicy:
        multiplied[context.is_recompute] += func in MATRICES
        kept = func in ATTENTION or (func in MATRICES and multiplied[context.is_recompute] % 2 == 1)
        return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)
