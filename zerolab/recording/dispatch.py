"""Sees every operation that torch executes on this rank, those of autograd included."""

from collections.abc import Callable
from enum import Enum
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from zerolab.recording.log import Log


class _Handling(Enum):
    """What an operation means for the ledger; found out once for each."""

    NOTHING = "a view, or it writes into what is there"
    FRESH = "its outputs are new tensors"
    SHOWS = "it may give an existing tensor another storage, or show one that was never seen"
    COLLECTIVE = "it communicates"


class Watch(TorchDispatchMode):
    """While active, tells the ledger about new storages and `on_collective` about what c10d is asked for."""

    def __init__(self, log: Log, on_collective: Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]) -> None:
        super().__init__()
        self._log, self._ledger, self._on_collective = log, log.ledger, on_collective
        self._handling: dict[Any, _Handling] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Executes the operation; a thousand times a step, so it does no more than it must."""
        if types and any(_wraps_others(kind) for kind in types):
            return NotImplemented  # such a tensor holds others: let it take itself apart, and see those
        log, ledger = self._log, self._ledger
        log.operations += 1
        if ledger.freed:
            ledger.settle()
        handling = self._handling.get(func)
        if handling is None:
            handling = self._handling[func] = _handling_of(func)
        if handling is _Handling.COLLECTIVE:
            return self._on_collective(func, args, kwargs or {})
        result = func(*args, **kwargs) if kwargs else func(*args)
        if handling is not _Handling.NOTHING:
            if not log.in_backward:
                log.enter_backward()
            if result.__class__ is torch.Tensor:
                ledger.see(result)
                if handling is _Handling.SHOWS:
                    ledger.resized(result.untyped_storage())
            else:
                self._see_all(result)
        return result

    def _see_all(self, result: Any) -> None:
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor) and tensor.layout is torch.strided:
                self._ledger.see(tensor)


def _handling_of(func: Any) -> _Handling:
    schema = getattr(func, "_schema", None)
    if schema is None:
        return _Handling.FRESH
    namespace, name = schema.name.split("::")
    if namespace == "c10d":
        return _Handling.COLLECTIVE
    if any(value.alias_info is None for value in schema.returns):
        return _Handling.FRESH
    if name in ("lift_fresh", "resize_", "resize_as_", "set_") or any(argument.is_out for argument in schema.arguments):
        return _Handling.SHOWS
    return _Handling.NOTHING


def _wraps_others(kind: type) -> bool:
    return kind.__name__ in ("DTensor", "AsyncCollectiveTensor", "TwoTensor")
