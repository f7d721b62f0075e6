"""Methods of an engine and its parts as hooks of a module; and the hook that looks at what a forward is given."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

from zerolab.engines.agreement import check_same_on_all_ranks
from zerolab.engines.precision import cast_floating


class Hook(partial[Any]):
    """Calls a method, past which torch.compile does not look: gathers are no part of a model's graph."""

    @classmethod
    def of(cls, owner: Any, method: Callable[..., Any], *arguments: Any) -> "Hook":
        """A hook that calls `method` of `owner` with `arguments`, and then with what a module gives its hooks."""
        return cls(torch.compiler.disable(method), owner, *arguments)

    def __reduce__(self) -> Any:
        """Refuses to be copied or sent, and with it the module: a copy would train the engine's model, not itself."""
        raise TypeError("an engine's model cannot be copied or pickled: load engine.state_dict() into another module")


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
