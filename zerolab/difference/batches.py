"""What a step's fingerprints have of a batch: its rows, and the state of the random generator that goes with them."""

import hashlib
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from zerolab.difference.prints import rows_of

MOST_ROWS = 4096  # of a rank and step whose hashes are kept one by one, to name what is wrong; all are in the sum


def of_batch(
    step: dict[str, Any], model: nn.Module, batch: Any, sees: Callable[[torch.Tensor], bool], *, dropout: bool
) -> Callable[[torch.Tensor | None], None] | None:
    """Adds it to the step; of a model in evaluation mode, when a hook of an output first calls what is returned.

    Args:
        step: the fingerprints.
        model: what gets the batch.
        batch: its arguments.
        sees: whether a tensor of the batch can be read.
        dropout: whether what the model computes depends on the random generator.
    """
    name, waiting = type(model).__name__, [True]
    leaves = [leaf for leaf in tree_leaves(batch) if isinstance(leaf, torch.Tensor)]
    # What has a gradient's function comes from another model and is no batch: other shares round it otherwise.
    given = [leaf for leaf in leaves if leaf.grad_fn is None]
    hashes, rows = rows_of([leaf for leaf in given if sees(leaf)]), step["rows"]
    states = [hashlib.blake2b(torch.get_rng_state().numpy().tobytes(), digest_size=6).hexdigest()] if dropout else []
    kinds = []
    if torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled():
        kind = torch.get_autocast_dtype("cpu" if torch.is_autocast_enabled("cpu") else "cuda")
        kinds = [str(kind).removeprefix("torch.")]

    def seen(_: torch.Tensor | None) -> None:
        if not waiting:
            return
        waiting.clear()
        if len(given) < len(leaves) and name not in step["made"]:
            step["made"].append(name)
        rows["count"] += len(hashes)
        rows["sum"] = (rows["sum"] + sum(hashes)) % (1 << 64)
        rows["hashes"] += hashes[: MOST_ROWS - len(rows["hashes"])]
        step["random"] += states
        step["compute"] += kinds

    if model.training:
        seen(None)
        return None
    return seen
