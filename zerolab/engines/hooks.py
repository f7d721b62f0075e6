"""Methods of an engine as hooks of a module."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch


class Hook(partial[Any]):
    """Calls an engine's method, past which torch.compile does not look: gathers are no part of a model's graph."""

    @classmethod
    def of(cls, engine: Any, method: Callable[..., Any], *arguments: Any) -> "Hook":
        """A hook that calls `method` of `engine` with `arguments`, and then with what a module gives its hooks."""
        return cls(torch.compiler.disable(method), engine, *arguments)

    def __reduce__(self) -> Any:
        """Refuses to be copied or sent, as the engine does, and with it the module."""
        return self.args[0].__reduce__()
