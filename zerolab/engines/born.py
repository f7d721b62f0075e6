"""Models that are born sharded: their values lie in a file, and a rank reads what it owns of them.

A model that is built whole on every rank takes N times its size of a machine's main memory before the first step, and
a stage that divides it comes too late. `from_file` takes a model on the meta device, which has shapes and no memory,
and puts parameters into it that know where their values lie. The engine's flats then read, instead of laying out what
is there and sending rank 0's to all: under `zero3` a rank's shard, elsewhere the whole flat. Nothing is sent, and
beside what it keeps a rank has no more than a piece of one tensor at a time.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from zerolab.engines.flat import Flat, Presence
from zerolab.engines.partition import FlatLayout
from zerolab.engines.precision import Formats
from zerolab.engines.views import ModuleViews, Released, share_memory
from zerolab.engines.weights import Weights

Read = Callable[[int, int], Iterator[torch.Tensor]]
"""Gives elements `[start, stop)` of a parameter laid end to end, in pieces of one dimension."""

Named = tuple[list[str], torch.Tensor]
"""A model's tensor with all of its names."""


class Stored(Released):
    """A parameter whose values are still in its file: it has a shape and no numbers, and says so.

    Attributes:
        read: gives the numbers. An engine calls it on every rank, with nothing to read where a rank owns nothing.
    """

    state = "still in its file"
    remedy = "make an engine of the model, which reads what each rank owns"
    read: Read

    @classmethod
    def like(cls, parameter: torch.Tensor, name: str, read: Read, device: torch.device | str) -> "Stored":
        """One of the same shape, dtype and kind."""
        nothing = torch.empty(0, dtype=parameter.dtype, device=device)
        stored = nn.Parameter(nothing, parameter.requires_grad)
        stored.__dict__.update(vars(parameter))  # what a test of param_groups may ask for
        # One number seen as many times as the shape has elements, for it is only the shape that is looked at.
        stored.place = name, nothing.new_empty(()).expand(parameter.shape), nothing  # type: ignore[attr-defined]
        stored.read = read  # type: ignore[attr-defined]
        stored.__class__ = cls
        return stored  # type: ignore[return-value]


def from_file(model: nn.Module, path: str | Path, device: torch.device | str = "cpu") -> nn.Module:
    """The model, with parameters whose values an engine will read: `Zero3(from_file(model, path), AdamW, lr=1e-3)`.

    Args:
        model: usually made under `torch.device("meta")`. As by `to_empty`, its parameters are replaced; buffers are
            read at once, and buffers that are in no state stay as they are.
        path: a safetensors file, an index of several, or the folder that has them (`Weights`).
        device: where the rank computes.

    Raises:
        ValueError: a file is missing or damaged; a parameter or buffer is in only one of model and file, or has another
            shape or dtype there; or a buffer on the meta device is in no state.
    """
    weights = Weights(path)
    named = [*_with_all_names(model.named_parameters), *_with_all_names(model.named_buffers)]
    _check_keys(model, weights, named)
    new: dict[int, torch.Tensor] = {}
    for names, tensor in named:
        if not (found := [name for name in names if name in weights.shapes]):
            continue
        key = found[-1]  # of a tied parameter's several names the last one counts, as in load_state_dict
        _check_kind(key, tensor, weights)
        if isinstance(tensor, nn.Parameter):
            new[id(tensor)] = Stored.like(tensor, names[0], partial(weights.read, key), device)
        else:
            pieces = list(weights.read(key, 0, tensor.numel())) or [torch.empty(0, dtype=tensor.dtype)]
            new[id(tensor)] = torch.cat(pieces).view(tensor.shape).to(device)
    for module in model.modules():
        for members in (module._parameters, module._buffers):  # noqa: SLF001  (setattr would ask what each of them is)
            members |= {name: new[id(tensor)] for name, tensor in members.items() if id(tensor) in new}
    return model


def _with_all_names(named: Any) -> Iterable[Named]:
    found: dict[int, Named] = {}
    for name, tensor in named(remove_duplicate=False):
        found.setdefault(id(tensor), ([], tensor))[0].append(name)
    return found.values()


def _check_keys(model: nn.Module, weights: Weights, named: list[Named]) -> None:
    file, kept = weights.path.name, model.state_dict(keep_vars=True)
    for names, tensor in named:
        if not weights.shapes.keys().isdisjoint(names):
            continue
        if isinstance(tensor, nn.Parameter) or names[0] in kept:
            example = f", which has {next(iter(weights.shapes), 'nothing')!r}"
            raise ValueError(f"{names[0]!r} is in the model and not in {file}{example}: load the same model's file")
        if tensor.is_meta:
            raise ValueError(
                f"the buffer {names[0]!r} is on the meta device and in no state, so no file has it: "
                "make it on the CPU before from_file"
            )
    known = {name for names, _ in named for name in names}
    if unknown := sorted(weights.shapes.keys() - known):
        raise ValueError(f"{unknown[0]!r} is in {file} and not in the model: load the same model's file")


def _check_kind(key: str, tensor: torch.Tensor, weights: Weights) -> None:
    file, shape, dtype = weights.path.name, weights.shapes[key], weights.dtypes[key]
    if shape != tuple(tensor.shape):
        raise ValueError(f"{key!r} is {shape} in {file} and {tuple(tensor.shape)} in the model: load its own file")
    if dtype != tensor.dtype:
        raise ValueError(
            f"{key!r} is {dtype} in {file} and {tensor.dtype} in the model: make the model in the file's dtype, "
            f"model.to({dtype}), and choose by precision= what it trains in"
        )


class StoredFlat(Flat):
    """A flat whose parameters are read from files. Making one sends nothing."""

    def begin(self, own: Callable[[Flat], torch.Tensor], formats: Formats) -> None:
        """Has the stage take its part, and reads that; in mixed precision twice, rounded and for the master."""
        self._dtype = formats.of_parameters(self.layout.dtype)
        self._sources: list[Read] = [parameter.read for parameter in self.parameters]  # type: ignore[attr-defined]
        self.presence = Presence.RELEASED
        # Before anything is read the stage takes its part, of one number seen as often as the flat has elements.
        self.whole = torch.empty((), dtype=self._dtype, device=self.parameters[0].device).expand(self.layout.padded)
        self.shard = own(self)
        is_view = share_memory(self.shard, self.whole)
        del self.whole
        if is_view:  # this stage keeps the flat whole
            self.presence = Presence.WHOLE
            self._fill(self.whole, 0)
            self.shard = own(self)
        else:  # a copy of a part, into which that part alone is read
            self._fill(self.shard, self.span[0])
        self.owned = self._make_owned(formats, lambda master: self._fill(master, self.span[0]))
        if self.presence is Presence.WHOLE and not share_memory(self.owned, self.whole):
            self._module.watch()
        del self._sources

    @cached_property
    @torch.inference_mode(mode=False)  # what an evaluation makes could not be trained afterwards
    def whole(self) -> Any:  # type: ignore[override]  # made when it is first asked for
        """Memory for all of it, which a flat that is released gives back at once: the first gather takes it anew."""
        whole = torch.empty(self.layout.padded, dtype=self._dtype, device=self.parameters[0].device)
        for parameter in self.parameters:
            parameter.__class__ = nn.Parameter
        self._module = ModuleViews(list(self.members()), self.views(whole))
        if self.presence is Presence.RELEASED:
            self._module.watch()
            self._module.hide()
            whole.untyped_storage().resize_(0)
        return whole

    def _fill(self, part: torch.Tensor, start: int) -> None:
        """Reads the flat's elements from `start` on into `part`; behind the last parameter there are zeros."""
        stop = start + part.numel()
        part[max(0, self.layout.numel - start) :].zero_()
        for slot, read in zip(self.layout.slots, self._sources, strict=True):
            first = max(start, slot.start)
            place = first - start
            for piece in read(first - slot.start, max(first, min(stop, slot.stop)) - slot.start):
                part[place : place + piece.numel()].copy_(piece)
                place += piece.numel()
                del piece  # or it would stay mapped while the next tensor is


def make_flat(
    layout: FlatLayout, parameters: list[nn.Parameter], rank: int, own: Callable[[Flat], torch.Tensor], formats: Formats
) -> Flat:
    """The flat of these parameters, whose values are here or in a file."""
    kind = StoredFlat if isinstance(parameters[0], Stored) else Flat
    return kind(layout, parameters, rank, own, formats)
