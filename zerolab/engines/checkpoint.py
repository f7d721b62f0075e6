"""The state of a training run, whole and independent of N: by parameter name, in memory and on disk.

A run saved on 4 ranks goes on on 2 or 1: what the ranks own is gathered on saving, and cut anew on loading. Files are
safetensors, which load without executing anything; a save that is killed leaves the file that was there before.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import nn

from zerolab import files
from zerolab.engines import native_state
from zerolab.engines.checks import check_state, check_tensors
from zerolab.engines.collectives import all_gather
from zerolab.engines.flat import Flat

FORMAT = "zerolab-checkpoint-1"


class Saved:
    """The methods of an engine that save and load."""

    model: nn.Module
    flats: list[Flat]
    trainable: list[Flat]
    optimizer: torch.optim.Optimizer

    def state_dict(self) -> dict[str, torch.Tensor]:
        """The whole model on every rank: the module's own keys -> tensors (copies). Collective: all ranks call it."""
        return state_dict(self)

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        """Takes the whole model from `state`, as `state_dict` gives it; every rank passes the same.

        Raises:
            TypeError: something in it is no tensor.
            ValueError: a key is missing or unknown, or a tensor has another shape.
        """
        load_state_dict(self, state)

    def optimizer_state_dict(self) -> dict[str, Any]:
        """The optimizer's state, whole on every rank, by parameter name. Collective: all ranks call it."""
        return optimizer_state_dict(self)

    def load_optimizer_state_dict(self, state: dict[str, Any]) -> None:
        """Takes over what `optimizer_state_dict` gave, on this or any other number of ranks."""
        load_optimizer_state_dict(self, state)

    def save(self, path: str | Path) -> None:
        """Writes model and optimizer to one file, atomically. Collective: all ranks call it."""
        save(self, path)

    def load(self, path: str | Path) -> None:
        """Takes model and optimizer from a file that `save` wrote, on this or any other number of ranks."""
        load(self, path)


def gather_from_owners(flat: Flat, piece: torch.Tensor) -> torch.Tensor:
    """What the ranks hold of one thing, such as Adam's first moment, end to end: shape [padded]. Collective."""
    if not flat.is_sharded:
        return piece
    # Where the model lies, although an offloaded piece does not: the backend that gathers may read only there.
    everything = torch.empty(flat.layout.padded, dtype=piece.dtype, device=flat.shard.device)
    flat.part(everything).copy_(piece)
    all_gather(everything).wait()
    return everything


def state_dict(engine: "Saved") -> dict[str, torch.Tensor]:
    """The whole model on every rank: the module's own keys -> tensors (copies). Collective."""
    entries = engine.model.state_dict(keep_vars=True)
    check_tensors(entries)
    copies: dict[int, torch.Tensor] = {}
    for flat in engine.flats:
        flat.take_over()
        # From the masters: bf16 weights would lose what the optimizer knows.
        views = flat.views(gather_from_owners(flat, flat.owned.detach()))
        copies |= {id(parameter): view.clone() for parameter, view in zip(flat.parameters, views, strict=True)}
    return {key: copies.get(id(entry), entry).detach().clone() for key, entry in entries.items()}


def load_state_dict(engine: "Saved", state: dict[str, torch.Tensor]) -> None:
    """Takes the whole model from `state`; every rank passes the same.

    Raises:
        TypeError: something in it is no tensor.
        ValueError: a key is missing or unknown, or a tensor has another shape.
    """
    entries = engine.model.state_dict(keep_vars=True)
    shapes = {id(parameter): slot.shape for flat in engine.flats for slot, parameter in flat.members()}
    check_state(state, {key: shapes.get(id(entry), entry.shape) for key, entry in entries.items()})
    # A tied parameter has several keys and one tensor; the last key's value is taken for all.
    values = {id(entry): state[key] for key, entry in entries.items()}
    with torch.no_grad():
        for flat in engine.flats:
            flat.load(flat.lay_out([values[id(parameter)] for parameter in flat.parameters], flat.owned.dtype))
        # Not in any flat: buffers stay local, and each rank reads them for itself.
        for buffer in engine.model.buffers():
            if id(buffer) in values:
                buffer.copy_(values[id(buffer)])


def optimizer_state_dict(engine: "Saved") -> dict[str, Any]:
    """The optimizer's state, whole on every rank. Collective.

    Returns:
        `{"state": {parameter name: {key: tensor}}, "param_groups": [{keywords, "params": [names]}]}`; a tensor has the
        parameter's shape, or is a single number such as Adam's step. A parameter without state has no keys.
    """
    shapes = {slot.name: slot.shape for flat in engine.trainable for slot in flat.layout.slots}
    state = native_state.gather(_owned(engine), engine.optimizer.state, shapes)
    groups = [
        {**group, "params": names}
        for group, names in zip(engine.optimizer.param_groups, group_names(engine), strict=True)
    ]
    return {"state": state, "param_groups": groups}


def load_optimizer_state_dict(engine: "Saved", state: dict[str, Any]) -> None:
    """Takes over an optimizer's state that `optimizer_state_dict` gave, from any number of ranks.

    Raises:
        ValueError: it belongs to other parameters, or groups that the engine does not have.
    """
    # All of it is judged before any is taken over: half a load would leave ranks that no error mends.
    check_own_optimizer_state(engine, state)
    load_groups(engine.optimizer, state)
    for flat in engine.trainable:
        # One tensor for all has one count of steps: parameters that were left alone now and then have others.
        if not native_state.is_one([(state["state"][slot.name], slot.shape) for slot in flat.usage.owned]):
            flat.split(engine.optimizer)
    native_state.scatter(_owned(engine), engine.optimizer.state, state["state"])


def _owned(engine: "Saved") -> Iterator[native_state.Owned]:
    """What this rank's optimizer updates, and which elements of which parameters lie in it."""
    for flat in engine.trainable:
        for updated, (first, last) in flat.updated():
            pieces = [
                native_state.Piece(slot.name, max(slot.start, first) - first, max(first - slot.start, 0), numel)
                for slot in flat.layout.slots
                if (numel := min(slot.stop, last) - max(slot.start, first)) > 0
            ]
            yield native_state.Owned(updated, pieces)


def check_own_optimizer_state(engine: "Saved", state: dict[str, Any]) -> None:
    """Raises ValueError unless `state` is one of this engine's parameters, groups and kind of optimizer."""
    shapes = {slot.name: slot.shape for flat in engine.trainable for slot in flat.layout.slots}
    check_optimizer_state(state, shapes, group_names(engine), engine.optimizer)


def check_optimizer_state(
    state: dict[str, Any], shapes: dict[str, torch.Size], groups: list[list[str]], optimizer: torch.optim.Optimizer
) -> None:
    """Raises ValueError unless `state` is of parameters with these shapes, in these groups, and for this optimizer."""
    if not isinstance(state, dict) or not {"state", "param_groups"} <= state.keys():
        raise ValueError("the state has no 'state' and 'param_groups': pass what engine.optimizer_state_dict() gave")
    if different := sorted(shapes.keys() ^ state["state"].keys()):
        raise ValueError(f"{different[0]!r} is trained in only one of engine and state: load the same model's state")
    # A parameter that never had a gradient has no entries, and all others have the same kinds.
    kinds = {tuple(sorted(entries)) for entries in state["state"].values() if entries}
    if len(kinds) > 1:
        raise ValueError(f"some parameters have {min(kinds)} and others {max(kinds)}: the state is not whole")
    for name, entries in state["state"].items():
        for key, value in entries.items():
            if isinstance(value, torch.Tensor) and value.dim() and value.shape != shapes[name]:
                found, shape = tuple(value.shape), tuple(shapes[name])
                raise ValueError(f"{key} of {name!r} is {found} in the state, and the parameter is {shape}")
    saved = state["param_groups"]
    if [sorted(group["params"]) for group in saved] != [sorted(names) for names in groups]:
        raise ValueError(
            f"the parameters of the state's {len(saved)} groups are not those of the engine's {len(groups)}: "
            "make the engine with the same param_groups, in the same order"
        )
    # SGD's momentum under AdamW's name would load silently, and train otherwise.
    if missing := sorted(optimizer.defaults.keys() - saved[0].keys()):
        name = type(optimizer).__name__
        raise ValueError(f"the state does not set {name}'s {missing[0]!r}: load a state of the same optimizer")


def load_groups(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Gives the optimizer's groups the keywords of the saved ones, such as a schedule's learning rate."""
    for group, saved in zip(optimizer.param_groups, state["param_groups"], strict=True):
        # The names stay the engine's own: the saved ones are the parameters', not the flats'.
        group |= {key: value for key, value in saved.items() if key != "params"}


def group_names(engine: "Saved") -> list[list[str]]:
    """The names of the parameters in each of the optimizer's groups."""
    groups: dict[int | None, list[str]] = {}
    for flat in engine.trainable:
        groups.setdefault(flat.layout.group, []).extend(slot.name for slot in flat.layout.slots)
    # As the optimizer has them: what no group claims comes last.
    return [groups[number] for number in sorted(groups, key=lambda number: (number is None, number))]


def save(engine: "Saved", path: str | Path) -> None:
    """Writes model and optimizer to `path`, atomically, from rank 0; returns when the file is there. Collective."""
    write(path, engine.state_dict(), engine.optimizer_state_dict())


def load(engine: "Saved", path: str | Path) -> None:
    """Takes model and optimizer from `path`, which every rank reads.

    Raises:
        ValueError: the file is missing, not a checkpoint of this kind, or of another model.
    """
    model, optimizer = read(path)
    check_own_optimizer_state(engine, optimizer)  # before anything is changed
    engine.load_state_dict(model)
    engine.load_optimizer_state_dict(optimizer)


def write(path: str | Path, model: dict[str, torch.Tensor], optimizer: dict[str, Any]) -> None:
    """Writes what every rank has whole, from rank 0; returns when the file is there. Collective."""
    if dist.get_rank() == 0:
        # Every rank has the whole state; one writes, because all of them would write the same file.
        tensors = {f"model/{key}": value.contiguous() for key, value in model.items()}
        numbers: dict[str, Any] = {}
        for name, entries in optimizer["state"].items():
            for key, value in entries.items():
                place = f"optimizer/{name}/{key}"
                if isinstance(value, torch.Tensor):
                    tensors[place] = value.contiguous()
                else:
                    numbers[place] = value
        about = {"format": FORMAT, "numbers": json.dumps(numbers), "groups": json.dumps(optimizer["param_groups"])}
        with files.replacing(path) as part:
            save_file(tensors, part, metadata=about | {"trained": json.dumps(list(optimizer["state"]))})
    # Without it another rank could look for the file before it is there.
    dist.barrier()


def read(path: str | Path) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """The states of model and optimizer that `write` left at `path`.

    Raises:
        ValueError: the file is missing, or not a checkpoint of this kind.
    """
    try:
        with safe_open(path, framework="pt") as file:
            about = file.metadata() or {}
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118  (it is no mapping)
    except (OSError, SafetensorError) as error:
        raise ValueError(
            f"{Path(path).name} cannot be read as a checkpoint ({error}): give a file of engine.save"
        ) from None
    if about.get("format") != FORMAT or not {"trained", "numbers", "groups"} <= about.keys():
        raise ValueError(
            f"{Path(path).name} has format {about.get('format')!r}, not {FORMAT!r}: save it with engine.save"
        )
    state: dict[str, dict[str, Any]] = {name: {} for name in json.loads(about["trained"])}
    for place, value in {**tensors, **json.loads(about["numbers"])}.items():
        if place.startswith("optimizer/"):
            # From the right: a parameter's name may hold a slash, an optimizer's key never does.
            name, key = place.removeprefix("optimizer/").rsplit("/", 1)
            state[name][key] = value
    model = {key.removeprefix("model/"): value for key, value in tensors.items() if key.startswith("model/")}
    return model, {"state": state, "param_groups": json.loads(about["groups"])}
