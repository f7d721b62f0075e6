"""Sees what torch.distributed is asked for, and no other operation: for a recording of times only.

A dispatch mode runs Python for each of a step's thousand operations, so a GPU may have to wait for the host. But every
request to a process group is a `c10d` operation, whoever makes it: Python, the reducer of C++ DDP, or a functional
collective. Our own kernel, at a level of the dispatcher where c10d has none, sees exactly those and passes them on.
It misses whatever skips that level: tensors made in inference mode, and what a dispatch mode or a tensor's own
dispatch asks for in turn, as DTensor does when an operation makes it redistribute its arguments.
"""

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch

_LEVEL = "ADInplaceOrView"
_BELOW = torch._C._dispatch_keyset_full_after(torch._C.DispatchKey.ADInplaceOrView)

Execute = Callable[..., Any]
Communicate = Callable[[Any, tuple[Any, ...], dict[str, Any], Execute], Any]
"""Called with an operation, its arguments and what executes it."""


def watch_collectives(communicate: Communicate, stack: ExitStack) -> None:
    """Hands each operation of `c10d` to `communicate`, until `stack` is closed."""
    library = torch.library.Library("c10d", "IMPL")
    stack.callback(library._destroy)
    for name in torch._C._dispatch_get_all_op_names():
        namespace, operation = name.split("::")
        if namespace == "c10d":
            overload = getattr(torch.ops.c10d, operation.split(".")[0]).default
            library.impl(overload, _watched(overload, communicate), _LEVEL, with_keyset=True)


def _watched(overload: Any, communicate: Communicate) -> Callable[..., Any]:
    def kernel(keyset: Any, *args: Any, **keywords: Any) -> Any:
        def execute(*args: Any, **keywords: Any) -> Any:
            return overload.redispatch(keyset & _BELOW, *args, **keywords)

        return communicate(overload, args, keywords, execute)

    return kernel
