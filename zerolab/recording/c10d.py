"""What torch.distributed was asked for, read from the operation that results.

There are two families. `c10d` operations write into the caller's tensors and return a `Work` to wait for. Functional
collectives (which DTensor uses, and FSDP2's clipping) return new tensors, and `wait_tensor` waits for those.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import _disable_current_modes

from zerolab.recording.operations import GATHERS, SCATTERS, operation, shares_sent
from zerolab.recording.storages import parts_of

_FUNCTIONAL = ("_c10d_functional", "_c10d_functional_autograd", "_dtensor")
_MOST = 64  # nobody reads more numbers than this off a picture


class Request(NamedTuple):
    """One operation: its name, the elements and bytes of the whole buffer, who takes part, and the peer, if any."""

    op: str
    tensors: list[torch.Tensor]
    numel: int
    nbytes: int
    ranks: list[int]
    peer: int | None
    group: dist.ProcessGroup
    note: str | None = None  # anything else worth knowing
    sent: int | None = None  # bytes for other ranks if ranks send different amounts; None: a fixed part of the buffer


def communicates(func: Any) -> bool:
    """Whether an operation sends, receives, or waits for either."""
    namespace, name = func._schema.name.split("::")
    takes_a_group = any(argument.name == "group_name" for argument in func._schema.arguments)
    return namespace == "c10d" or (namespace in _FUNCTIONAL and (takes_a_group or name == "wait_tensor"))


def read(func: Any, args: tuple[Any, ...]) -> Request | None:
    """Reads an operation; None for one that communicates nothing, such as c10d's check for NaN."""
    name = func._schema.name.removeprefix("c10d::")
    handles = [argument for argument in args if isinstance(argument, torch.ScriptObject)]
    if name == "check_for_nan" or not handles:
        return None
    op, group = operation(name), dist.ProcessGroup.unbox(handles[0])
    ranks = dist.get_process_group_ranks(group)
    counted = tensors_in(args[1 if op in GATHERS else 0])
    # A rank holds one share of what is gathered or scattered; an event states the size of the whole buffer.
    shares = len(ranks) if op in (*GATHERS, *SCATTERS) else 1
    numel, nbytes = (0, 0) if op == "barrier" else _size(counted, shares)
    tensors = counted or tensors_in(args[0])
    other = ranks[args[2]] if name in ("send", "recv_", "broadcast_") and 0 <= args[2] < len(ranks) else None
    peer = None if op == "broadcast" else other
    note = None if other is None else f"from rank {other}"
    if peer is not None:
        note = _place(tensors[0])
    sent = None
    if name == "alltoall_base_":
        sent = _sent_to_others(args[1], args[4], group)
    elif name == "alltoall_":
        sent = sum(tensor.nbytes for rank, tensor in enumerate(args[1]) if rank != group.rank())
    elif op in ("gather", "scatter"):
        sent = nbytes // shares * shares_sent(op, shares, is_root=group.rank() == args[3])
    elif any(tensor.is_sparse for tensor in counted):
        sent = sum(map(_sparse_bytes, counted)) * (len(ranks) - 1)
    return Request(op, tensors, numel, nbytes, ranks, peer, group, note, sent)


def _size(tensors: Sequence[torch.Tensor], shares: int) -> tuple[int, int]:
    """Elements and bytes of a whole buffer with as many shares, of which these are one; their dtypes may differ."""
    # A sparse tensor has no `nbytes`.
    sizes = [(tensor.numel(), tensor.element_size()) for tensor in tensors]
    return shares * sum(numel for numel, _ in sizes), shares * sum(numel * width for numel, width in sizes)


def _sent_to_others(tensor: torch.Tensor, splits: Sequence[int], group: dist.ProcessGroup) -> int | None:
    """The bytes an all-to-all sends to other ranks, by how its rows are split; None without a split: equal parts."""
    if not splits:
        return None
    row = tensor.nbytes // max(len(tensor), 1)
    return (sum(splits) - splits[group.rank()]) * row


def _sparse_bytes(tensor: torch.Tensor) -> int:
    """What every other rank gets of a sparse tensor: gloo merges equal indices and gathers what remains, then adds."""
    with _disable_current_modes():  # the merging is not part of the run; gloo's own is below what is seen
        return sum(part.nbytes for part in parts_of(tensor.coalesce()))


def _place(tensor: torch.Tensor) -> str:
    """Which elements of its storage a message carries: a slice of a larger tensor is only a part of that storage."""
    start, whole = tensor.storage_offset(), tensor.untyped_storage().nbytes() // tensor.element_size()
    return f"elements {start} to {start + tensor.numel()} of {whole}"


def read_functional(func: Any, args: tuple[Any, ...], keywords: dict[str, Any]) -> list[Request]:
    """Reads a functional collective; a batch of sends and receives is one operation, but several requests."""
    given = {**dict(zip((argument.name for argument in func._schema.arguments), args, strict=False)), **keywords}
    group = _group(given["group_name"])
    if "op_list" in given:
        messages = zip(given["op_list"], given["tensors"], given["peer_list"], strict=True)
        return [_message(operation(op), tensor, group, peer) for op, tensor, peer in messages]
    op, tensors = operation(func._schema.name.split("::")[1]), tensors_in(args[0])
    if op in ("send", "recv"):
        return [_message(op, tensors[0], group, args[1])]
    # The input is the whole buffer, or this rank's share of it; the output does not exist yet.
    ranks = dist.get_process_group_ranks(group)
    numel, nbytes = _size(tensors, len(ranks) if op == "all_gather" else 1)
    sent = _sent_to_others(tensors[0], given.get("input_split_sizes") or (), group)
    return [Request(op, tensors, numel, nbytes, ranks, None, group, None, sent)]


def _group(handle: Any) -> dist.ProcessGroup:
    # A group's name, or since torch 2.13 perhaps the group itself.
    if isinstance(handle, str):
        name: Any = handle
        return dist.distributed_c10d._resolve_process_group(name)
    return dist.ProcessGroup.unbox(handle) if isinstance(handle, torch.ScriptObject) else handle


def _message(op: str, tensor: torch.Tensor, group: dist.ProcessGroup, peer: int) -> Request:
    return Request(op, [tensor], tensor.numel(), tensor.nbytes, dist.get_process_group_ranks(group), peer, group)


def tensors_in(argument: Any) -> list[torch.Tensor]:
    """All tensors in an argument: one, or lists of them, however nested."""
    if isinstance(argument, torch.Tensor):
        return [argument]
    if not isinstance(argument, (list, tuple)):
        return []
    found = [each for each in argument if isinstance(each, torch.Tensor)]
    return found if len(found) == len(argument) else [each for part in argument for each in tensors_in(part)]


def unfinished(*started: "WeakKeyDictionary[Any, tuple[Any, ...]]") -> list[Any]:
    """The collectives, by the work of each, that were started and not waited for, unless they are known to be over.

    No messages: gloo does not know of one that it is over until somebody waits for it.
    """
    works = [(each, work) for each in started for ref in each.keyrefs() if (work := ref()) is not None]
    known = [(work, entry[0]) for each, work in works if (entry := each.get(work)) is not None]
    return [draft for work, draft in known if draft.get("peer") is None and not _is_over(work)]


def _is_over(work: Any) -> bool:
    try:
        return isinstance(work, dist.Work) and work.is_completed()
    except RuntimeError:  # the device has failed
        return False


def numbers_of(tensors: Iterable[torch.Tensor]) -> tuple[float, ...] | None:
    """All numbers of the tensors, one after the other; None where they are many, not finite, or not in main memory.

    A GPU is not asked: the host would have to wait for the answer. A sparse tensor has no list of all its numbers.
    """
    given = list(tensors)
    if not given or sum(tensor.numel() for tensor in given) > _MOST:
        return None
    plain = (type(tensor) is torch.Tensor and tensor.layout is torch.strided for tensor in given)
    if not all(plain) or any(not tensor.is_cpu or tensor.is_complex() for tensor in given):
        return None
    with _disable_current_modes():  # looking is not part of the run
        found = tuple(float(number) for tensor in given for number in tensor.detach().flatten().tolist())
    return found if all(map(math.isfinite, found)) else None
