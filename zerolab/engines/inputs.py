"""What a forward is given: made fit for the model's precision, and the first time compared over ranks."""

from typing import Any

import torch
from torch import nn

from zerolab.engines.agreement import check_same_on_all_ranks
from zerolab.engines.precision import cast_floating


class Inputs:
    """Looks at each batch on its way into the model.

    Args:
        dtype: what floating-point inputs are cast to; None leaves them.
    """

    def __init__(self, dtype: torch.dtype | None) -> None:
        self._dtype = dtype
        self._are_compared = False

    def prepare(self, module: nn.Module, inputs: Any, keywords: dict[str, Any]) -> tuple[Any, Any] | None:
        """The inputs in the model's dtype; of the first batch all ranks must bring as many rows.

        Else the mean over ranks would not be the mean over the batch.
        """
        if not self._are_compared and torch.is_grad_enabled():  # an evaluation may differ, or be rank 0's alone
            check_same_on_all_ranks([_rows(inputs, keywords)], "the numbers of rows in the first batch")
            self._are_compared = True
        return None if self._dtype is None else cast_floating((inputs, keywords), self._dtype)


def _rows(inputs: tuple[Any, ...], keywords: dict[str, Any]) -> int:
    """The number of rows of a batch: the first dimension of its first tensor; -1 if there is none."""
    tensors = (value for value in [*inputs, *keywords.values()] if isinstance(value, torch.Tensor) and value.dim())
    return next((len(tensor) for tensor in tensors), -1)
