"""Methods of an engine and its parts as hooks of a module."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch


class Hook(partial[Any]):
    """Calls a method, past which torch.compile does not look: gathers are no part of a model's graph."""

    @classmethod
    def of(cls, owner: Any, method: Callable[..., Any], *arguments: Any) -> "Hook":
        """A hook that calls `method` of `owner` with `arguments`, and then with what a module gives its hooks."""
        return cls(torch.compiler.disable(method), owner, *arguments)

    def __reduce__(self) -> Any:
        """Refuses to be copied or sent, and with it the module: a copy would train the engine's model, not itself."""
        raise TypeError("an engine's model cannot be copied or pickled: load engine.state_dict() into another module")
