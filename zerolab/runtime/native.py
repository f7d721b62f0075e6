"""Collectives that native code starts by itself, C++ DDP's reducer above all: no function of Python's is called there.

They pass through torch's dispatcher as `c10d` operations. A kernel of ours at its autograd level, where c10d has none,
sees them and hands them on. That costs some 30 microseconds an operation and nothing where there is none; a dispatch
mode, which a recorder uses, would cost that for every operation of the step.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from zerolab.runtime.requests import Request, members_of

OPERATIONS = {
    "allreduce_": "all_reduce",
    "allreduce_coalesced_": "all_reduce",
    "allgather_": "all_gather",
    "broadcast_": "broadcast",
}
_KEYS = ("AutogradCPU", "AutogradCUDA")

Start = Callable[[str, Request], Callable[[], None] | None]
_libraries: list[Any] = []  # a library that is let go takes its kernels along


def install(start: Start) -> None:
    """Have `start(name, request)` called for each such operation; what it returns is called when that is complete."""
    # Once in a process: a kernel that is registered twice for one key is an error.
    library = torch.library.Library("c10d", "IMPL")
    _libraries.append(library)
    for operation, name in OPERATIONS.items():
        overload = getattr(torch.ops.c10d, operation).default
        for key in _KEYS:
            library.impl(operation, _noted(overload, name, start), key, with_keyset=True)


def _noted(overload: Any, name: str, start: Start) -> Callable[..., Any]:
    def kernel(keyset: Any, *args: Any, **kwargs: Any) -> Any:
        complete = start(name, _request(args))
        result = overload.redispatch(keyset & torch._C._after_autograd_keyset, *args, **kwargs)
        if complete is not None:
            _when_complete(result, complete)
        return result

    return kernel


def _request(args: tuple[Any, ...]) -> Request:
    # all_gather has outputs first, each a list; inputs of the others come as one list.
    tensors = args[0] if isinstance(args[0][0], torch.Tensor) else args[0][0]
    handle = next(argument for argument in args if isinstance(argument, torch.ScriptObject))
    numel = sum(tensor.numel() for tensor in tensors)
    return Request(members_of(dist.ProcessGroup.unbox(handle)), numel, tensors[0].element_size())


def _when_complete(result: Any, complete: Callable[[], None]) -> None:
    handle = result[-1] if isinstance(result, tuple) else result
    try:
        dist.Work.unbox(handle).get_future().add_done_callback(lambda _: complete())
    except (AttributeError, RuntimeError):  # a backend that does not tell, or a torch without these
        complete()
