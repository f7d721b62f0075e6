"""The state of a training run, whole and by parameter name, in memory and on disk.

A run saved on 4 ranks resumes on 2 or on 1: shards are gathered on saving, and made anew on loading. Files are
safetensors, which load without executing anything; a save that is killed leaves the previous file in place.
"""

import json
from collections.abc import Iterable, Iterator
from functools import cache
from inspect import signature
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import nn

from zerolab import files
from zerolab.engines import optimizer_state
from zerolab.engines.agreement import agree
from zerolab.engines.collectives import all_gather
from zerolab.engines.declared import State, state_of
from zerolab.engines.flat import Flat
from zerolab.engines.partition import FlatLayout
from zerolab.engines.sums import check_sums, sum_of

FORMAT = "zerolab-checkpoint-1"
_HOW = {"params", "foreach", "fused", "capturable", "differentiable"}  # change no number


@cache
def _settings() -> set[str]:
    """What torch's optimizers can be told about the update, by any of them."""
    kinds = [kind for kind in vars(torch.optim).values() if isinstance(kind, type)]
    return {name for kind in kinds for name in signature(kind).parameters} - _HOW


class Checkpoints:
    """Saves and loads an engine's model, optimizer and loss scale; `_owned` says what the optimizer updates."""

    optimizer: Any
    matrix_numel: int = 0  # elements of the matrices that Muon updates
    scaler: torch.amp.GradScaler
    _layouts: list[FlatLayout]  # of the parameters that are trained
    _shapes: dict[str, torch.Size]  # of everything in the model's state, by the module's own keys

    def state_dict(self) -> dict[str, torch.Tensor]:
        """The whole model on every rank: the module's own keys -> tensors (copies). Collective: all ranks call it.

        Raises:
            TypeError: the module's state has something other than tensors in it.
        """
        return {key: value.detach().clone() for key, value in self._whole_model()}

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        """Takes the whole model from `state`, as `state_dict` gives it; every rank passes the same.

        Raises:
            TypeError: something in it is not a tensor.
            ValueError: a key is missing or unknown, or a tensor has another shape.
        """
        check_state(state, self._shapes)
        self._load(state)

    def _whole_model(self) -> Iterable[tuple[str, torch.Tensor]]:
        """What `state_dict` copies, one after the other."""
        raise NotImplementedError

    def _load(self, state: dict[str, torch.Tensor]) -> None:
        """Takes what `load_state_dict` has checked."""
        raise NotImplementedError

    def _owned(self) -> Iterator[optimizer_state.Owned]:
        """What this rank's optimizer updates, and which elements of which parameters lie in it."""
        raise NotImplementedError

    def _prepare_for(self, state: dict[str, dict[str, Any]]) -> None:
        """The optimizer is about to take over its entries from `state`, by parameter name."""

    def _state(self) -> State:
        """The optimizer's entries by what it updates; those that it keeps in 8 bits as numbers."""
        return state_of(self.optimizer)

    def optimizer_state_dict(self) -> dict[str, Any]:
        """The optimizer's state, whole on every rank, by parameter name. Collective: all ranks call it.

        Returns:
            "state", for each parameter's name its tensors by key, and "param_groups", keywords with the names under
            "params". A tensor has the parameter's shape, or is a single number such as Adam's step. A parameter
            without state has no keys.
        """
        state = optimizer_state.gather(self._owned(), self._state(), self._trained_shapes())
        # torch's optimizer numbers its parameters; names stay the same with another number of ranks.
        groups = zip(self.optimizer.param_groups, self._group_names(), strict=True)
        return {"state": state, "param_groups": [{**group, "params": names} for group, names in groups]}

    def load_optimizer_state_dict(self, state: dict[str, Any]) -> None:
        """Takes over what `optimizer_state_dict` gave, in its dtypes, here or elsewhere, on any number of ranks.

        Raises:
            ValueError: it belongs to other parameters, groups or another kind of optimizer.
        """
        # All of it is checked before any of it is loaded: a state that is half loaded cannot be repaired.
        self._check_optimizer_state(state)
        self._load_optimizer(state, {})

    def _load_optimizer(self, state: dict[str, Any], model: dict[str, torch.Tensor]) -> None:
        """Takes over a state that was checked, which was saved beside `model`, if that is known."""
        self._prepare_for(state["state"])
        for group, saved in zip(self.optimizer.param_groups, state["param_groups"], strict=True):
            # Keywords, such as a scheduled learning rate; the optimizer's own "params" stay.
            for key in saved.keys() - {"params"}:
                is_tensor = isinstance(group.get(key), torch.Tensor)  # a file has numbers alone
                group[key] = torch.as_tensor(saved[key]).to(group[key], copy=True) if is_tensor else saved[key]
        dtypes = {key: value.dtype for key, value in model.items()}
        optimizer_state.scatter(self._owned(), self._state(), state["state"], self._trained_shapes(), dtypes)

    def save(self, path: str | Path) -> None:
        """Writes model and optimizer to one file, atomically, from rank 0; returns when it is there. Collective.

        Raises:
            ValueError: on all ranks, if rank 0 cannot write it.
        """
        model, optimizer = self.state_dict(), self.optimizer_state_dict()
        error = ""
        # Every rank has the whole state; one writes, because all of them would write the same file.
        if dist.get_rank() == 0:
            try:
                self._write(path, model, optimizer)
            except Exception as problem:  # noqa: BLE001  (whatever it is, the others must not wait for ever)
                error = str(problem) or type(problem).__name__
        agree(error, ValueError)  # and so no rank looks for the file before it is there

    def _write(self, path: str | Path, model: dict[str, torch.Tensor], optimizer: dict[str, Any]) -> None:
        values = {f"model/{key}": value for key, value in model.items()}
        for name, entries in optimizer["state"].items():
            values |= {f"optimizer/{name}/{key}": value for key, value in entries.items()}
        tensors = {key: value.contiguous() for key, value in values.items() if isinstance(value, torch.Tensor)}
        about = {
            "numbers": {key: value for key, value in values.items() if key not in tensors},
            "groups": optimizer["param_groups"],
            "scaler": self.scaler.state_dict(),  # empty but in fp16
            "trained": list(optimizer["state"]),
        }
        texts = {key: json.dumps(value, default=_number) for key, value in about.items()}
        sums = {key: sum_of(value) for key, value in (tensors | texts).items()}
        with files.replacing(path) as part:
            try:
                save_file(tensors, part, {"format": FORMAT} | texts | {"sums": json.dumps(sums)})
            except KeyError as dtype:
                raise ValueError(f"a safetensors file takes no {dtype}: use save_sharded") from None

    def load(self, path: str | Path) -> None:
        """Takes model and optimizer from a file that any engine saved, on this or any other number of ranks.

        Raises:
            ValueError: the file is missing, damaged, or of another model.
        """
        # Every rank reads the file itself, so nothing has to be sent.
        model, optimizer, scaler = read(path)
        self._check_optimizer_state(optimizer)  # before anything is changed
        self.load_state_dict(model)
        self._load_optimizer(optimizer, model)
        if scaler and self.scaler.is_enabled():  # one of another precision has none
            self.scaler.load_state_dict(scaler)

    def _check_optimizer_state(self, state: dict[str, Any]) -> None:
        """Raises ValueError unless `state` is one of this engine's parameters, groups and kind of optimizer."""
        shapes, groups = self._trained_shapes(), self._group_names()
        _check_named(state)
        if different := sorted(shapes.keys() ^ state["state"].keys()):
            raise ValueError(
                f"{different[0]!r} is trained in only one of engine and state: load the same model's state"
            )
        # A parameter that never had a gradient has no entries, and all others of a group have the same kinds.
        for group in state["param_groups"]:
            kinds = {tuple(sorted(state["state"][name])) for name in group["params"] if state["state"].get(name)}
            if len(kinds) > 1:
                raise ValueError(f"some parameters have {min(kinds)} and others {max(kinds)}: the state is not whole")
        for name, entries in state["state"].items():
            for key, value in entries.items():
                if isinstance(value, torch.Tensor) and value.dim() and value.shape != shapes[name]:
                    found, shape = tuple(value.shape), tuple(shapes[name])
                    raise ValueError(f"{key} of {name!r} is {found} in the state, and the parameter is {shape}")
        saved = state["param_groups"]
        if saved:  # first, for another optimizer, such as Muon beside AdamW, may need other groups
            self._check_settings(saved)
        if [sorted(group["params"]) for group in saved] != [sorted(names) for names in groups]:
            raise ValueError(
                f"the parameters of the state's {len(saved)} groups are not those of the engine's {len(groups)}: "
                "make the engine with the same optimizers and param_groups, in the same order"
            )

    def _check_settings(self, saved: list[dict[str, Any]]) -> None:
        """Raises ValueError where a state's settings are another optimizer's: it would load, and train otherwise."""
        name, same = type(self.optimizer).__name__, "load a state of the same optimizer"
        if missing := sorted(self.optimizer.defaults.keys() - saved[0].keys()):
            raise ValueError(f"the state does not set {name}'s {missing[0]!r}: {same}")
        for theirs, ours in zip(saved, self.optimizer.param_groups, strict=False):
            # What no optimizer knows is a schedule's, or the user's own.
            if unknown := sorted((theirs.keys() & _settings()) - ours.keys()):
                raise ValueError(f"the state sets {unknown[0]!r}, which {name} does not know: {same}")
            way = "decoupled_weight_decay"  # in all else Adam and AdamW have the same settings
            if theirs.get(way) != ours.get(way):
                raise ValueError(f"{way} is {theirs[way]} in the state and {ours[way]} in the engine: {same}")

    def _trained_shapes(self) -> dict[str, torch.Size]:
        return {slot.name: slot.shape for layout in self._layouts for slot in layout.slots}

    def _group_names(self) -> list[list[str]]:
        """The names of the parameters in each of the optimizer's groups, of which none is empty."""
        groups: dict[int | None, list[str]] = {}
        for layout in self._layouts:
            groups.setdefault(layout.group, []).extend(slot.name for slot in layout.slots)
        # As the optimizer has them: what no group claims comes last.
        return [groups[number] for number in sorted(groups, key=lambda number: (number is None, number))]


class FlatCheckpoints(Checkpoints):
    """Saves and loads an engine whose parameters lie in flats."""

    model: nn.Module
    flats: list[Flat]
    trainable: list[Flat]
    optimizer: torch.optim.Optimizer

    def __reduce__(self) -> Any:
        """Refuses to copy or pickle the engine, and with it the model, whose hooks refer to it."""
        raise TypeError("an engine's model cannot be copied or pickled: load engine.state_dict() into another module")

    def _whole_model(self) -> Iterable[tuple[str, torch.Tensor]]:
        entries = self._entries()
        values: dict[int, torch.Tensor] = {}
        for flat in self.flats:
            flat.settle()
            flat.take_over()
            # From the masters: bf16 weights would lose what the optimizer knows.
            views = flat.views(_gather_from_owners(flat, flat.owned.detach()))
            values |= {id(parameter): view for parameter, view in zip(flat.parameters, views, strict=True)}
        return ((key, values.get(id(entry), entry)) for key, entry in entries.items())

    def _load(self, state: dict[str, torch.Tensor]) -> None:
        # A tied parameter has several keys and one tensor; the value of the last key wins.
        values = {id(entry): state[key] for key, entry in self._entries().items()}
        with torch.no_grad():
            for flat in self.flats:
                flat.load(flat.lay_out([values[id(parameter)] for parameter in flat.parameters], flat.owned.dtype))
            # Buffers are in no flat: they stay local, and each rank reads its own.
            for buffer in self.model.buffers():
                if id(buffer) in values:
                    buffer.copy_(values[id(buffer)])

    @property
    def _shapes(self) -> dict[str, torch.Size]:  # type: ignore[override]  # other systems remember them
        shapes = self._shapes_by_id()
        return {key: shapes.get(id(entry), entry.shape) for key, entry in self._entries().items()}

    def _shapes_by_id(self) -> dict[int, torch.Size]:
        """The shape of each parameter, which a released one may not have."""
        return {id(parameter): slot.shape for flat in self.flats for slot, parameter in flat.members()}

    def _entries(self) -> dict[str, torch.Tensor]:
        entries: dict[str, Any] = self.model.state_dict(keep_vars=True)
        for key, entry in entries.items():
            if not isinstance(entry, torch.Tensor):
                kind = type(entry).__name__
                raise TypeError(f"{key!r} is a {kind}: engines save tensors only, not get_extra_state()")
        return entries

    def _prepare_for(self, state: dict[str, dict[str, Any]]) -> None:
        for flat in self.trainable:
            flat.usage.ever = {slot for slot in flat.usage.owned if state[slot.name]}
            # One tensor has one step count: parameters that had no gradient in some steps need their own.
            if not optimizer_state.is_one([(state[slot.name], slot.shape) for slot in flat.usage.owned]):
                flat.split(self.optimizer)

    def _owned(self) -> Iterator[optimizer_state.Owned]:
        for flat in self.trainable:
            sizes = {slot.name: slot.shape.numel() for slot in flat.layout.slots}
            for updated, span in flat.updated():
                yield optimizer_state.Owned(updated, optimizer_state.pieces_within(sizes.items(), *span), tuple(sizes))


def check_state(state: dict[str, torch.Tensor], shapes: dict[str, torch.Size]) -> None:
    """Raises TypeError or ValueError unless `state` has exactly the keys and shapes of the model."""
    if not isinstance(state, dict) or not all(isinstance(value, torch.Tensor) for value in state.values()):
        raise TypeError("the state is not a dict of tensors: pass what engine.state_dict() gave")
    if different := sorted(shapes.keys() ^ state.keys()):
        where = "the model" if different[0] in shapes else "the state"
        raise ValueError(f"{different[0]!r} is only in {where}: load a state that was saved from the same model")
    for key, shape in shapes.items():
        if (found := state[key].shape) != shape:
            differ = f"{key!r} is {tuple(found)} in the state and {tuple(shape)} in the model"
            raise ValueError(f"{differ}: load the same model's state")


def _check_named(state: Any) -> None:
    """Raises ValueError unless `state` is an optimizer's, by parameter name."""
    if not isinstance(state, dict) or not isinstance(state.get("state"), dict) or "param_groups" not in state:
        remedy = "pass what engine.optimizer_state_dict() gave"
        raise ValueError(f"the state has no 'state' and 'param_groups': {remedy}")
    if any(not isinstance(name, str) for group in state["param_groups"] for name in group["params"]):
        by_names = "engine.optimizer_state_dict() gives, or for FSDP2 torch's get_optimizer_state_dict"
        raise ValueError(f"the state numbers its parameters, as a torch optimizer's does: take what {by_names}")


def read(path: str | Path) -> tuple[dict[str, torch.Tensor], dict[str, Any], dict[str, Any]]:
    """The states of model, optimizer and scaler that were saved; ValueError if there is no checkpoint of this kind."""
    try:
        with safe_open(path, framework="pt") as file:
            about = file.metadata() or {}
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118  (it is no mapping)
    except (OSError, SafetensorError) as error:
        why = f"cannot be read as a checkpoint ({error})"
        raise ValueError(f"{Path(path).name} {why}: give a file of engine.save") from None
    if (found := about.get("format")) != FORMAT or not {"trained", "numbers", "groups"} <= about.keys():
        raise ValueError(f"{Path(path).name} has format {found!r}, not {FORMAT!r}: save it with engine.save")
    check_sums(Path(path).name, tensors | about, about.get("sums"))
    model: dict[str, torch.Tensor] = {}
    state: dict[str, dict[str, Any]] = {name: {} for name in json.loads(about["trained"])}
    for place, value in {**tensors, **json.loads(about["numbers"])}.items():
        kind, _, rest = place.partition("/")
        if kind == "model":
            model[rest] = value
        elif kind == "optimizer":
            # From the right: a parameter's name may hold a slash, an optimizer's key never does.
            name, _, key = rest.rpartition("/")
            state[name][key] = value
    optimizer = {"state": state, "param_groups": json.loads(about["groups"])}
    return model, optimizer, json.loads(about.get("scaler", "{}"))


def _number(value: Any) -> Any:
    """A setting as JSON has it: a learning rate may be a tensor, or a number of numpy's."""
    if hasattr(value, "item"):
        return value.item()
    raise TypeError(f"an optimizer's setting is {value!r}, and a checkpoint has numbers and words alone: leave it out")


def _gather_from_owners(flat: Flat, piece: torch.Tensor) -> torch.Tensor:
    """The pieces of a flat that the ranks own, end to end: shape [padded]. Collective."""
    if not flat.is_sharded:
        return piece
    # On the model's device even if the piece is offloaded: the backend may be able to read only from there.
    everything = torch.empty(flat.layout.padded, dtype=piece.dtype, device=flat.shard.device)
    flat.part(everything).copy_(piece)
    all_gather(everything, sizes=flat.layout.sizes).wait()
    return everything
