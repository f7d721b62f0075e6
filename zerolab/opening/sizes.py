"""How large a collective in a trace or a dump is, and who takes part: read from the file, never guessed."""

import json
from collections.abc import Iterable, Mapping, Sequence
from math import prod
from typing import Any, NamedTuple

from zerolab.recording import operations
from zerolab.recording.operations import GATHERS, SCATTERS

OPERATIONS = (
    "all_gather", "all_reduce", "all_to_all", "barrier", "broadcast", "gather", "recv", "reduce", "reduce_scatter",
    "scatter", "send",
)  # fmt: skip
NO_GROUP = "which ranks take part was not recorded"
# torch's words for its types: C++ ones in shapes, ScalarType's in what NCCL and the flight recorder say.
_TYPES = {
    "float": ("float32", 4), "double": ("float64", 8), "c10::half": ("float16", 2), "half": ("float16", 2),
    "c10::bfloat16": ("bfloat16", 2), "bfloat16": ("bfloat16", 2), "int": ("int32", 4), "long": ("int64", 8),
    "long int": ("int64", 8), "short": ("int16", 2), "signed char": ("int8", 1), "char": ("int8", 1),
    "unsigned char": ("uint8", 1), "byte": ("uint8", 1), "bool": ("bool", 1),
    "c10::complex<float>": ("complex64", 8), "complexfloat": ("complex64", 8),
    "c10::float8_e4m3fn": ("float8_e4m3fn", 1), "float8_e4m3fn": ("float8_e4m3fn", 1),
    "c10::float8_e5m2": ("float8_e5m2", 1), "float8_e5m2": ("float8_e5m2", 1),
}  # fmt: skip
Args = Mapping[str, Any]


def width(dtype: str | None) -> int:
    """Bytes of an element of a type that a Message has; 0 for another."""
    return next((size for name, size in _TYPES.values() if name == dtype), 0)


def word(name: str) -> str:
    """The word for a collective by a backend's name of it, such as `_all_gather_base` or `ALLGATHER_coalesced`."""
    return "barrier" if name == "all_reduce_barrier" else operations.operation(name.lower().lstrip("_"))


class Message(NamedTuple):
    """What an event has of a collective: its whole buffer, and what a rank must send; None is not recorded.

    The group is all ranks' until it is known how many there are.
    """

    dtype: str | None = None
    numel: int = 0
    logical_bytes: int = 0
    group: tuple[int, ...] | None = None
    peer: int | None = None
    text: str | None = None


def message(
    op: str,
    kind: str,
    share: int | None,
    ranks: tuple[int, ...] | None,
    *,
    peer: int | None = None,
    is_root: bool | None = None,
    for_others: int | None = None,
) -> Message:
    """Of the elements that a rank gives to a gather, or gets of a scatter, and of the whole buffer of all others.

    `is_root` is of these two: without it, what the rank sends is not known. `for_others` is of an all-to-all of unequal
    pieces: the elements that this rank sends.
    """
    if not ranks:
        return Message(text=NO_GROUP)
    dtype, width = _TYPES.get(kind.lower(), (None, 0))
    rooted = op in ("gather", "scatter")
    if op == "barrier" or share is None or dtype is None or (rooted and is_root is None):
        return Message(group=ranks, peer=None if op == "barrier" else peer)
    numel = share * len(ranks) if op in (*GATHERS, *SCATTERS) else share
    if rooted:
        sent = share * width * operations.shares_sent(op, len(ranks), is_root=bool(is_root))
    elif for_others is not None:
        sent = for_others * width
    else:
        sent = operations.logical_bytes(op, numel * width, len(ranks))
    return Message(dtype, numel, sent, ranks, peer)


def read(
    op: str,
    asked: Args,
    comms: Sequence[Args],
    carried: Args,
    groups: Mapping[str, tuple[int, ...]],
    *,
    rank: int | None = None,
) -> Message:
    """The size of a collective of a trace.

    Args:
        op: its word.
        asked: the arguments of the operator on the host.
        comms: those of `record_param_comms` within it.
        carried: those of the bar in which its backend carried it out.
        groups: the ranks of each process group.
        rank: whose trace it is.
    """
    ranks = _ranks(comms[0], groups) if comms else next(iter(groups.values())) if len(groups) == 1 else None
    pieces = _pieces(asked, comms) if op == "all_to_all" else None
    for_others = None
    if pieces is not None:
        if not ranks or rank not in ranks or len(pieces) != len(ranks):
            return Message(group=ranks, text=None if ranks else NO_GROUP)
        for_others = sum(pieces) - pieces[ranks.index(rank)]
    # What only a root has, all outputs or all inputs, is an empty list elsewhere, which torch takes for one of numbers.
    kinds, place = asked.get("Input type"), 1 if op == "scatter" else 0
    is_root = kinds[place] != "ScalarList" if isinstance(kinds, list) and place < len(kinds) else None
    if comms:
        side = "Out msg nelems" if op in (*SCATTERS, "all_to_all") else "In msg nelems"
        counts = [count for comm in comms if type(count := comm.get(side)) is int and count >= 0]
        share = sum(counts) if len(counts) == len(comms) else None
        ends = [comm.get(end) for comm in comms for end in ("Dst Rank", "Src Rank")]
        peer = next((rank for rank in ends if type(rank) is int), None)
        kind = str(comms[0].get("dtype"))
        return message(op, kind, share, ranks, peer=peer, is_root=is_root, for_others=for_others)
    (kind, share), (other, given) = _shape(asked, 1 if op in GATHERS else 0), _shape(carried, 0)
    if share is None and ranks:
        # gloo reduces the whole buffer where a scatter was asked for.
        share = given // len(ranks) if given is not None and op in SCATTERS else given
    kind = kind if kind.lower() in _TYPES else other
    return message(op, kind, share, ranks, is_root=is_root, for_others=for_others)


def _pieces(asked: Args, comms: Sequence[Args]) -> list[int] | None:
    """The elements that an all-to-all sends to each rank; none if they are not known, None if they are equal."""
    dims, kinds, written = (_listed(asked, name) for name in ("Input Dims", "Input type", "Concrete Inputs"))
    if len(kinds) > 1 and kinds[1] == "TensorList":
        return [count for shape in _listed(dims, 1) if (count := elements([shape])) is not None]
    # Out, in, group, and into how many rows each of the two is split: torch leaves out lists of more than 30 numbers.
    if len(written) > 4 and (written[4] or not comms):
        if not written[4]:  # an empty list is written
            return []
        said, whole = written[4], elements(dims[1:2])
    else:
        said, whole = (comms[0].get(name) if comms else None for name in ("In split size", "In msg nelems"))
    if said in (None, "", "[]"):
        return None
    rows = numbers(said) or ()  # torch shortens long ones
    return [whole // max(sum(rows), 1) * count for count in rows] if type(whole) is int else []


def _listed(args: Any, key: Any) -> list[Any]:
    """A list among arguments, or in another list; empty if it is none."""
    found = args.get(key) if isinstance(args, Mapping) else args[key] if key < len(args) else None
    return found if isinstance(found, list) else []


def _shape(args: Args, place: int) -> tuple[str, int | None]:
    """The type and the elements of an operator's argument: a tensor, or a list of them."""
    dims, kinds = args.get("Input Dims"), args.get("Input type")
    if not (isinstance(dims, list) and isinstance(kinds, list) and place < min(len(dims), len(kinds))):
        return "", None
    kind, shape = str(kinds[place]), dims[place]
    if not kind or not (shape if kind == "TensorList" else isinstance(shape, list)):
        return kind, None
    return kind, elements(shape if kind == "TensorList" else [shape])


def elements(shapes: Any) -> int | None:
    """How many elements tensors of these shapes have; None for what are no shapes."""
    if not isinstance(shapes, list) or not all(isinstance(shape, list) for shape in shapes):
        return None
    if not all(type(size) is int and 0 <= size < 1 << 48 for shape in shapes for size in shape):
        return None
    total = sum(prod(shape) for shape in shapes)
    return total if total < 1 << 53 else None


def _ranks(comm: Args, groups: Mapping[str, tuple[int, ...]]) -> tuple[int, ...] | None:
    """The ranks of a collective: those that are listed, or counted, or its group's."""
    known = numbers(comm.get("Process Group Ranks")) or groups.get(str(comm.get("Process Group Name")))
    if known:
        return known
    parts = [comm.get(name) for name in ("Global rank start", "Global rank stride", "Group size")]
    if all(type(part) is int and part >= 0 for part in parts) and 0 < parts[2] < 1 << 20 and parts[1]:  # type: ignore[operator]
        start, stride, size = parts
        return tuple(range(start, start + stride * size, stride))  # type: ignore[operator, arg-type]
    return None


def numbers(said: Any) -> tuple[int, ...] | None:
    """A list of ranks, which torch writes as a text; None if it is none, or was shortened."""
    if isinstance(said, str) and len(said) < 1 << 20:
        try:
            said = json.loads(said)
        except (ValueError, RecursionError):
            return None
    fits = isinstance(said, Iterable) and not isinstance(said, (str, bytes, Mapping))
    listed = tuple(said) if fits else ()
    return listed if listed and all(type(rank) is int and rank >= 0 for rank in listed) else None
