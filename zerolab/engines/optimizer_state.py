"""The optimizer's state, whole and by parameter name: the same whatever the number of ranks and the system.

Every system shards parameters in its own way, and each rank's optimizer keeps state for what it updates: whole
parameters, rows of them, or a piece of a flat with padding. A system only has to say which pieces those are (`Owned`).
To save, each rank announces what it has, and the pieces are broadcast; to load, each rank cuts its pieces out of the
whole. So a checkpoint of one system loads into any other.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from copy import deepcopy
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from zerolab.engines.agreement import communication_device, gather_texts

# What torch's optimizers keep once for a whole tensor. Listed by name: by its shape, a step counter cannot be told from
# the state of a parameter that is a single number.
COUNTERS = {"step", "mu_product"}


class Piece(NamedTuple):
    """`numel` elements of the parameter `name`, from `start` on; `place` is where they begin in the updated tensor."""

    name: str
    place: int
    start: int
    numel: int


class Owned(NamedTuple):
    """One tensor that this rank's optimizer updates, the key of its state, and the pieces of parameters in it.

    Of what is padding alone `beside` has the parameters whose padding it is: its state has the entries that theirs has.
    """

    key: torch.Tensor
    pieces: list[Piece]
    beside: tuple[str, ...] = ()


def pieces_within(parameters: Iterable[tuple[str, int]], first: int, last: int) -> list[Piece]:
    """The pieces that lie in the elements `[first, last)`, which is what is updated, of parameters laid end to end.

    Of each parameter its name and number of elements are given; padding goes by the name "".
    """
    pieces, end = [], 0
    for name, numel in parameters:
        begin, end = end, end + numel
        start, stop = max(begin, first), min(end, last)
        if name and stop > start:
            pieces.append(Piece(name, start - first, start - begin, stop - start))
    return pieces


class _Line(NamedTuple):
    """What a rank announces of one entry of its state: some elements of a parameter, or (numel -1) a number."""

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

    Each rank brings the state of its optimizer and what that updates, and all of them every trained parameter's shape.
    """
    mine = list(_entries(owned, optimizer_state))
    # Only rank r knows which entries it has: without its list the others would not know how much to receive.
    texts = gather_texts(json.dumps([line for line, _ in mine]))
    state: dict[str, dict[str, Any]] = {name: {} for name in shapes}
    # Replicas hold the same piece: the halves of HSDP, and all ranks under DDP.
    seen: set[tuple[str, str, int]] = set()
    for rank, text in enumerate(texts):
        for number, line in enumerate(map(_Line._make, json.loads(text))):
            place = line.name, line.key, line.start
            if place in seen:  # a replica has it too; every rank skips the same ones
                continue
            seen.add(place)
            piece = mine[number][1] if rank == dist.get_rank() else None
            _take(state[line.name], line, piece, rank, shapes[line.name])
    return state


def scatter(
    owned: Iterable[Owned],
    optimizer_state: MutableMapping[Any, dict[str, Any]],
    state: dict[str, dict[str, Any]],
    shapes: dict[str, torch.Size],
    dtypes: Mapping[str, torch.dtype],
) -> None:
    """Gives this rank's optimizer its pieces of a whole state, as `gather` gives it for parameters of these shapes.

    Of those whose dtype was `dtypes[name]`, entries in it come in the dtype that the parameter has here, as torch casts
    them; entries in another, such as moments in fp32 of weights in bf16, stay as they are.
    """
    for updated, pieces, beside in owned:
        # A rank whose piece of a flat is all padding has entries too; elsewhere all parameters have the same kinds.
        names = [piece.name for piece in pieces] or beside or state
        # A parameter that never had a gradient has no entries; in a tensor that it shares with others it gets zeros.
        known = [name for name in names if state[name]]
        mine = dict(state[known[0]]) if known else {}
        for key, example in mine.items():
            having = [name for name in known if key in state[name]]
            if all(is_elementwise(key, state[name][key], shapes[name]) for name in having):
                is_parameters = example.dtype == dtypes.get(known[0])
                dtype = updated.dtype if is_parameters else example.dtype
                mine[key] = _cut(updated, pieces, key, dtype, state)
            else:
                mine[key] = deepcopy(example)  # torch increments a step in place
        optimizer_state[updated] = mine


def is_one(states: list[tuple[dict[str, Any], torch.Size]]) -> bool:
    """Whether parameters with these states and shapes can share one state: the same keys, the same numbers."""
    numbers = [
        {key: None if is_elementwise(key, value, shape) else value for key, value in entries.items()}
        for entries, shape in states
    ]
    return all(each == numbers[0] for each in numbers)


def is_elementwise(key: str, value: Any, shape: torch.Size) -> bool:
    """Whether an entry of the state has a number for each element of what the optimizer updates, of this shape."""
    return key not in COUNTERS and isinstance(value, torch.Tensor) and value.shape == shape


def single(value: Any, key: str, name: str) -> Any:
    """What the optimizer keeps for a whole parameter; of a tensor of one element the number, with no dimension.

    Raises:
        TypeError: several numbers that are not those of the parameter's elements, which nobody could cut.
    """
    if not isinstance(value, torch.Tensor):
        return value
    if value.numel() != 1:
        raise TypeError(
            f"the optimizer keeps {value.numel()} numbers as {key!r} of {name!r}, which are neither one for each "
            "element nor a single one: engines cannot save it"
        )
    return value.reshape(())


def local(value: Any) -> Any:
    """The part of a DTensor on this rank; anything else as it is."""
    if type(value) is torch.Tensor or not hasattr(value, "to_local"):  # only FSDP2's ranks need to import the class
        return value
    with torch.no_grad():
        return value.to_local()


def whole(value: torch.Tensor) -> torch.Tensor:
    """A DTensor gathered from all ranks; any other tensor as it is."""
    return value.full_tensor() if hasattr(value, "full_tensor") else value


def _entries(
    owned: Iterable[Owned], optimizer_state: Mapping[Any, dict[str, Any]]
) -> Iterator[tuple[_Line, torch.Tensor | None]]:
    """This rank's entries, piece by piece, each with its elements, or None for a number."""
    for updated, pieces, _ in owned:
        for key, value in optimizer_state.get(updated, {}).items():
            dtype = str(value.dtype).removeprefix("torch.") if isinstance(value, torch.Tensor) else ""
            for name, place, start, numel in pieces:
                if not numel:  # where nothing is updated a step is not counted, either
                    continue
                if is_elementwise(key, value, updated.shape):
                    yield _Line(name, key, start, numel, dtype, None), local(value).reshape(-1)[place : place + numel]
                else:  # it travels in the list itself, exactly: JSON keeps every digit of a double
                    number = single(value, key, name)
                    yield _Line(name, key, 0, -1, dtype, number.item() if dtype else number), None


def _take(entries: dict[str, Any], line: _Line, piece: torch.Tensor | None, rank: int, shape: torch.Size) -> None:
    """Puts what `rank` has of one entry where it belongs; that rank broadcasts its elements."""
    if line.numel < 0:
        # A tensor again where it was one: torch's optimizers distinguish a tensor step from a number.
        entries[line.key] = torch.tensor(line.number, dtype=getattr(torch, line.dtype)) if line.dtype else line.number
        return
    dtype, device = getattr(torch, line.dtype), communication_device()
    # A broadcast: simpler than gathering uneven pieces, and checkpoints are rare.
    sent = torch.empty(line.numel, dtype=dtype, device=device) if piece is None else piece.to(device).contiguous()
    dist.broadcast(sent, src=rank)
    # Filled piece by piece, so that no rank needs more memory than the whole and one piece.
    whole = entries.setdefault(line.key, torch.zeros(shape, dtype=dtype, device=device))
    whole.view(-1)[line.start : line.start + line.numel] = sent


def _cut(
    updated: torch.Tensor, pieces: list[Piece], key: str, dtype: torch.dtype, state: dict[str, dict[str, Any]]
) -> torch.Tensor:
    """This rank's shard of one entry, in the shape of what the optimizer updates."""
    # Padding starts at zero, as it does in the system itself.
    share = torch.zeros_like(updated, dtype=dtype, memory_format=torch.contiguous_format)
    elements = local(share).view(-1)
    for name, place, start, numel in pieces:
        if key in state[name]:
            elements[place : place + numel] = state[name][key].reshape(-1)[start : start + numel]
    return share
