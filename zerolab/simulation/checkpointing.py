"""Activation checkpointing of a model's blocks, as torch does it: backward recomputes what the forward dropped."""

import fnmatch
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from zerolab.engines.partition import partition
from zerolab.names import ROOT
from zerolab.theory.activations import CHECKPOINTING

MATRICES = (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)
ATTENTION = (
    torch.ops.aten._scaled_dot_product_flash_attention.default,  # noqa: SLF001  (torch names them so)
    torch.ops.aten._scaled_dot_product_efficient_attention.default,  # noqa: SLF001
    torch.ops.aten._scaled_dot_product_cudnn_attention.default,  # noqa: SLF001
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default,  # noqa: SLF001
)


Policy = Callable[..., CheckpointPolicy]
"""As torch's `create_selective_checkpoint_contexts` takes it: of a context, an operation and its arguments."""
Checkpointing = str | Policy | Mapping[str, str | Policy]


def checkpoint_blocks(model: nn.Module, checkpointing: Checkpointing, units: list[str] | None = None) -> None:
    """Makes units of the model drop their activations: "none", "selective", "block", or your own policy.

    This applies to all units but the root or, given a mapping from patterns of names ("blocks.1*"), to those it names;
    the first match counts. It is done inside the module's hooks, so that zero3 gathers a unit before its forward runs
    again. Raises ValueError for any other word, and for a pattern that matches no unit.
    """
    names = [unit for unit in dict.fromkeys(flat.unit for flat in partition(model, 1, units)) if unit != ROOT]
    chosen = checkpointing if isinstance(checkpointing, Mapping) else {"*": checkpointing}
    if not chosen:
        raise ValueError('checkpointing names no block: write {"*": "block"}, or "none" for none of them')
    for pattern, how in chosen.items():
        if not callable(how) and how not in CHECKPOINTING:
            raise ValueError(f"unknown checkpointing {how!r}: choose one of {', '.join(CHECKPOINTING)}")
        if isinstance(checkpointing, Mapping) and not fnmatch.filter(names, pattern):
            raise ValueError(f"checkpointing names {pattern!r}, which no block is called: {', '.join(names[:8])}")
    for unit in names:
        how = next((how for pattern, how in chosen.items() if fnmatch.fnmatchcase(unit, pattern)), "none")
        if how == "none":
            continue
        options: dict[str, Any] = {"use_reentrant": False}
        if callable(how):
            options["context_fn"] = partial(create_selective_checkpoint_contexts, how)
        elif how == "selective":
            options["context_fn"] = _selective
        block = model.get_submodule(unit)
        block.forward = partial(checkpoint, block.forward, **options)


def _selective() -> Any:
    """Keeps a block's attention and every second matrix multiplication: torchtitan's "selective op"."""
    multiplied: Counter[bool] = Counter()

    def policy(context: Any, func: Any, *_: Any, **__: Any) -> CheckpointPolicy:
        multiplied[context.is_recompute] += func in MATRICES
        kept = func in ATTENTION or (func in MATRICES and multiplied[context.is_recompute] % 2 == 1)
        return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)
