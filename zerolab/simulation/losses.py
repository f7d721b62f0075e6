"""The loss of a model of one's own, where none is given: all that matters here is what backward needs."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.nn import functional

from zerolab import models
from zerolab.engines.graph import nodes_behind


def loss(outputs: Any, targets: Any, *, of_tokens: bool = True) -> torch.Tensor:
    """The model's own loss; that of the lessons; or one of the output's size.

    A Hugging Face model that is given labels returns its own, and others return it beside their outputs. Without
    targets, logits of tokens are compared with one token each, and anything else with zeros.
    """
    own_loss = outputs.get("loss") if isinstance(outputs, Mapping) else getattr(outputs, "loss", None)
    if own_loss is not None:
        found: torch.Tensor = own_loss
        return found
    logits: Any = outputs.get("logits") if isinstance(outputs, Mapping) else getattr(outputs, "logits", outputs)
    if isinstance(logits, (tuple, list)):
        if targets is None and (among := _among(logits)) is not None:
            return among
        logits = logits[0]
    if targets is not None:
        return models.loss(logits, targets)
    if not isinstance(logits, torch.Tensor):
        raise TypeError(f"the model returned a {type(outputs).__name__}: pass loss_fn=, as your loop computes the loss")
    if logits.dim() == 0:
        return logits
    if of_tokens and logits.dim() == 3:  # rows, tokens, vocabulary
        tokens = torch.zeros_like(logits[..., 0], dtype=torch.int64)
        return functional.cross_entropy(logits.flatten(0, -2), tokens.flatten())
    return functional.mse_loss(logits, torch.zeros_like(logits))


def _among(outputs: Sequence[Any]) -> torch.Tensor | None:
    """The loss among a model's outputs: a number that trains all that the others do. One of a part of it is no loss."""
    trained = {
        each: {node for node in nodes_behind(each) if type(node).__name__ == "AccumulateGrad"}
        for each in outputs
        if isinstance(each, torch.Tensor) and each.requires_grad
    }
    everything = set().union(*trained.values())
    return next((each for each, nodes in trained.items() if each.dim() == 0 and nodes == everything), None)
