"""The optimizer's state of other systems in the form of our own: whole, by parameter name, independent of N.

Every system cuts parameters in its own way, and its optimizer keeps state for what its rank updates: whole parameters,
rows of them, or a piece of a flat with padding. A system only says which pieces those are (`Owned`). On saving each
rank tells the others what it has, and the pieces go to everyone; on loading each rank cuts its pieces out of the whole.
So a checkpoint of one system loads into any other, and into our own engines.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from zerolab.engines.agreement import communication_device, gather_texts

# By name: a step counter has the shape of a parameter that is a single number.
COUNTERS = {"step", "mu_product"}  # what torch's optimizers keep once for a whole tensor


class Piece(NamedTuple):
    """`numel` elements of the parameter `name`, from `start` on, lie from `place` on in what the optimizer updates."""

    name: str
    place: int
    start: int
    numel: int


class Owned(NamedTuple):
    """One tensor that this rank's optimizer updates, which is the key of its state, and the pieces that lie in it."""

    key: torch.Tensor
    pieces: list[Piece]


class _Line(NamedTuple):
    """What a rank tells of one entry of its state: some elements of a parameter, or (numel -1) a number."""

    name: str
    key: str
    start: int
    numel: int
    dtype: str
    number: Any


def gather(
    owned: Iterable[Owned], optimizer_state: Mapping[Any, dict[str, Any]], shapes: dict[str, torch.Size]
) -> dict[str, dict[str, Any]]:
    """The optimizer's state, whole on every rank, `{parameter name: {key: tensor or number}}`. Collective.

    Args:
        owned: what this rank's optimizer updates.
        optimizer_state: of that optimizer.
        shapes: of all parameters that are trained, by name.
    """
    mine = list(_entries(owned, optimizer_state))
    # Only rank r knows which entries it has: without its list the others could not tell how much to receive.
    texts = gather_texts("\n".join(json.dumps(line) for line, _ in mine))
    state: dict[str, dict[str, Any]] = {name: {} for name in shapes}
    # Replicas hold the same piece: HSDP's halves, and everyone's under DDP.
    seen: set[tuple[str, str, int]] = set()
    for rank, text in enumerate(texts):
        # In the order of this rank's own list, which is the order in which everyone reads it.
        pieces = iter(tensor for _, tensor in mine)
        for line in (_Line(*json.loads(line)) for line in text.splitlines()):
            piece = next(pieces) if rank == dist.get_rank() else None
            place = line.name, line.key, line.start
            if place in seen or not line.numel:  # a replica has it, too; every rank skips the same ones
                continue
            seen.add(place)
            _take(state[line.name], line, piece, rank, shapes[line.name])
    return state


def scatter(
    owned: Iterable[Owned], optimizer_state: MutableMapping[Any, dict[str, Any]], state: dict[str, dict[str, Any]]
) -> None:
    """Gives this rank's optimizer its pieces of a whole state, as `gather` gives it."""
    for key, pieces in owned:
        # A rank whose piece of a flat is all padding keeps entries, too; all parameters have the same kinds of them.
        mine = [state[piece.name] for piece in pieces] or state.values()
        # What never had a gradient has no entries; in a tensor together with others it gets zeros.
        example = next(filter(None, mine), {})
        optimizer_state[key] = {entry: _cut(key, pieces, entry, value, state) for entry, value in example.items()}


def is_one(states: list[tuple[dict[str, Any], torch.Size]]) -> bool:
    """Whether parameters of these states and shapes can have one state together: the same kinds, the same numbers."""
    numbers = [{key: _number(key, value, shape) for key, value in entries.items()} for entries, shape in states]
    return all(each == numbers[0] for each in numbers)


@torch.no_grad()
def local(value: Any) -> Any:
    """What of a DTensor lies on this rank; anything else as it is."""
    return value.to_local() if hasattr(value, "to_local") else value  # only FSDP2's ranks need to import its class


def _entries(
    owned: Iterable[Owned], optimizer_state: Mapping[Any, dict[str, Any]]
) -> Iterator[tuple[_Line, torch.Tensor | None]]:
    """This rank's entries, piece by piece, each with its elements, None for a number."""
    for updated, pieces in owned:
        for key, value in optimizer_state.get(updated, {}).items():
            for name, place, start, numel in pieces:
                if key not in COUNTERS and isinstance(value, torch.Tensor) and value.shape == updated.shape:
                    elements = local(value).reshape(-1)[place : place + numel]
                    yield _Line(name, key, start, numel, _word(value.dtype), None), elements
                elif isinstance(value, torch.Tensor):
                    # A single number travels in the list itself, exactly: JSON keeps every digit of a double.
                    yield _Line(name, key, 0, -1, _word(value.dtype), value.item()), None
                else:
                    yield _Line(name, key, 0, -1, "", value), None


def _take(entries: dict[str, Any], line: _Line, piece: torch.Tensor | None, rank: int, shape: torch.Size) -> None:
    """Puts what `rank` has of one entry where it belongs; it sends its elements to all."""
    if line.numel < 0:
        # As a tensor again where it was one: torch's optimizers tell a step counter from a number.
        entries[line.key] = torch.tensor(line.number, dtype=getattr(torch, line.dtype)) if line.dtype else line.number
        return
    dtype, device = getattr(torch, line.dtype), communication_device()
    # From rank r to all: simpler than gathering uneven pieces, and a checkpoint is rare.
    sent = torch.empty(line.numel, dtype=dtype, device=device) if piece is None else piece.to(device).contiguous()
    dist.broadcast(sent, src=rank)
    # Filled piece by piece, so that no rank needs more than the whole and one piece.
    whole = entries.setdefault(line.key, torch.zeros(shape, dtype=dtype, device=device))
    whole.view(-1)[line.start : line.start + line.numel] = sent


def _number(key: str, value: Any, shape: torch.Size) -> Any:
    """What an entry counts for a whole parameter of this shape; None for one that has a number for each element."""
    if not isinstance(value, torch.Tensor):
        return value
    return value.item() if key in COUNTERS or (value.dim() == 0 and len(shape)) else None


def _cut(updated: torch.Tensor, pieces: list[Piece], key: str, example: Any, state: dict[str, dict[str, Any]]) -> Any:
    """This rank's share of one entry: as large as what the optimizer updates, or the number that it is."""
    if not isinstance(example, torch.Tensor):
        return example
    # A copy for each: torch counts a step in place.
    is_piece_of_more = any(start or numel > 1 for _, _, start, numel in pieces)
    if key in COUNTERS or (example.dim() == 0 and updated.dim() > 0 and is_piece_of_more):
        return example.clone()
    # Padding must be zero, as the system itself starts it.
    share = torch.zeros_like(updated, dtype=example.dtype, memory_format=torch.contiguous_format)
    elements = local(share).view(-1)
    for name, place, start, numel in pieces:
        if key in state[name]:
            elements[place : place + numel] = state[name][key].reshape(-1)[start : start + numel]
    return share


def _word(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
