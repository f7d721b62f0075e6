"""What torch.distributed was asked for, read off the `c10d` operation that it became."""

from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.utils._pytree import tree_leaves

_WORDS = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "_allgather": "all_gather",
    "_reduce": "reduce_scatter",
    "alltoall": "all_to_all",
    "monitored": "barrier",
}
_GATHERS = ("all_gather", "gather")  # the input is one rank's share of the whole
_SCATTERS = ("reduce_scatter", "scatter")  # the output is


class Request(NamedTuple):
    """One operation: its word, the elements and bytes of the whole buffer, who takes part, and from or to whom."""

    op: str
    tensors: list[torch.Tensor]
    numel: int
    nbytes: int
    ranks: list[int]
    peer: int | None


def operation(name: str) -> str:
    """The word for a c10d operation: `_allgather_base_` is an `all_gather`, and so is `allgather_coalesced_`."""
    if name.startswith("reduce_scatter"):
        return "reduce_scatter"
    # The underscore in front stays: `_reduce_scatter_base_` begins as the plain `reduce_` would without it.
    head = "_" * name.startswith("_") + name.lstrip("_").split("_")[0]
    return _WORDS.get(head, head)


def logical_bytes(op: str, nbytes: int, ranks: int) -> int:
    """What one rank must send for a collective over a buffer of `nbytes`: (N-1)/N of it, twice for all_reduce.

    A send sends everything, a receive and a barrier nothing.
    """
    if op in ("recv", "barrier"):
        return 0
    if op == "send":
        return nbytes
    return (2 if op == "all_reduce" else 1) * nbytes * (ranks - 1) // ranks


def read(func: Any, args: tuple[Any, ...]) -> Request | None:
    """Reads an operation; None for those that communicate nothing, such as c10d's look for NaN."""
    name = func._schema.name.removeprefix("c10d::")
    handles = [argument for argument in args if isinstance(argument, torch.ScriptObject)]
    if name == "check_for_nan" or not handles:
        return None
    op, ranks = operation(name), dist.get_process_group_ranks(dist.ProcessGroup.unbox(handles[0]))
    counted = tensors_in(args[1 if op in _GATHERS else 0])
    # A rank holds one share of what is gathered or scattered; an event tells the whole buffer.
    shares = len(ranks) if op in (*_GATHERS, *_SCATTERS) else 1
    numel = 0 if op == "barrier" else sum(tensor.numel() for tensor in counted) * shares
    nbytes = numel * counted[0].element_size() if counted else 0
    known_peer = name in ("send", "recv_") and 0 <= args[2] < len(ranks)
    return Request(op, counted or tensors_in(args[0]), numel, nbytes, ranks, ranks[args[2]] if known_peer else None)


def tensors_in(argument: Any) -> list[torch.Tensor]:
    """All tensors in an argument, however nested."""
    return [leaf for leaf in tree_leaves(argument) if isinstance(leaf, torch.Tensor)]
