"""The flats of models that no engine trains: which parameters lie where in them, which are trained, what is held."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import chain, count, product
from math import prod
from operator import mul
from typing import Any

import torch
from torch import nn

from zerolab.engines.partition import FlatLayout, partition
from zerolab.recording.events import Spans, UnitInfo
from zerolab.recording.updates import tensors_of
from zerolab.recording.wrappers import buckets_of, is_part, local_of, plain, shard_of, units_of, whole, whole_shapes

Held = tuple[str, str | None, Spans, torch.Tensor]
"""A piece of model state: the category, the flat (None: unknown), which elements of it, and the tensor."""

ROWS = 64  # of a matrix of which a rank has columns

Places = dict[int | str, tuple[str, int]]
"""Each parameter's flat and its start there, by id and by name: FSDP2 gathers a parameter as another object."""


def lay_out(
    model: nn.Module, outermost: nn.Module, prefix: str, others: Collection[int], taken: Collection[str] = ()
) -> tuple[list[FlatLayout], Places]:
    """The flats of the model within its `outermost` wrapper, but for parameters whose ids are among the `others`.

    None has a name that is `taken`.
    """
    parameters, shapes = dict(model.named_parameters()), whole_shapes(outermost)
    planned = (whole(each, parameters, shapes, prefix, others) for each in partition(model, 1, units_of(model)))
    layouts = [replace(layout, name=_free(layout.name, taken)) for layout in planned if layout.slots]
    known = {slot.name: (flat.name, slot.start) for flat in layouts for slot in flat.slots}
    by_name = {name: known[name] for name, mine in parameters.items() if name in known and not is_part(mine)}
    slots = (tuple(replace(slot, name=plain(slot.name)) for slot in layout.slots) for layout in layouts)
    layouts = [replace(layout, slots=named) for layout, named in zip(layouts, slots, strict=True)]
    return layouts, by_name | {id(parameters[name]): place for name, place in by_name.items()}


def _free(name: str, taken: Collection[str]) -> str:
    # What follows the unit's name says which of its flats it is, as in "blocks.0 frozen".
    names: Iterator[str] = chain([name], (f"{name} added{number}" for number in chain([""], count(2))))
    return next(each for each in names if each not in taken)


def as_trained(
    units: Mapping[str, UnitInfo],
    whose: Mapping[str, str],
    trained: Collection[str | None],
    closed: Collection[str],
) -> list[UnitInfo]:
    """The units: frozen, unless they were `trained`, if nothing of their model was, or they are `closed` to gradients.

    Whether parameters would take gradients says less: those of an average of a model's weights would. Of a model that
    is trained, what this rank does not update may be another's. And where optimizers update other tensors than the
    models', as DeepSpeed's do, who trains a model is not known.
    """
    models = {whose[name] for name in whose if name in trained}

    def is_frozen(unit: UnitInfo) -> bool:
        if unit.name not in whose or (None in trained and unit.name not in trained):
            return unit.frozen
        alone = whose[unit.name] not in models
        return unit.name not in trained and (unit.frozen or unit.name in closed or alone)

    return [replace(unit, frozen=is_frozen(unit)) for unit in units.values()]


def who_trains(
    models: Mapping[nn.Module, Places], optimizers: Collection[torch.optim.Optimizer]
) -> tuple[set[str], set[str | None]]:
    """The flats of which no parameter takes a gradient, and those that optimizers have; None for other tensors."""
    places = {key: flat for model in models.values() for key, (flat, _) in model.items()}
    every = [each for model in models for each in model.parameters() if id(each) in places]
    closed, taking = ({places[id(x)] for x in every if x.requires_grad is takes} for takes in (False, True))
    theirs = [each for other in optimizers for group in other.param_groups for each in group["params"]]
    updated = {places.get(id(each)) for each in theirs if each.requires_grad or id(each) not in places}
    return closed - taking, updated


def masters_of(optimizers: Iterable[torch.optim.Optimizer], own: Collection[int]) -> dict[int, torch.Tensor]:
    """What optimizers update that is no model's parameter, by id; the ids of those are `own`.

    DeepSpeed's stage 3 shows its optimizer one group at a time, and the rest as keys of its state.
    """
    updated = (chain(each.state, *(group["params"] for group in each.param_groups)) for each in optimizers)
    return {id(x): x for x in chain(*updated) if isinstance(x, torch.Tensor) and id(x) not in own}


def flat_of_gradient(tensor: torch.Tensor, models: Mapping[nn.Module, Places]) -> str | None:
    """The flat of the parameter whose gradient this is, or a view of all of it; None if it is nobody's."""
    # A hook may send each gradient as it comes: to look at all that is held would take ten times as long.
    sent = _place(tensor)
    for model, places in models.items():
        for parameter in model.parameters():
            mine = local_of(parameter.grad) if parameter.is_leaf and parameter.grad is not None else None
            if mine is not None and id(parameter) in places and _place(mine) == sent:
                return places[id(parameter)][0]
    return None


def _place(tensor: torch.Tensor) -> Any:
    if tensor.layout is not torch.strided:
        return id(tensor)
    return tensor.untyped_storage()._cdata, tensor.storage_offset(), tensor.numel()


class Flats:
    """Which flats each unit has; found once, since a backward asks for each of a thousand units."""

    def __init__(self) -> None:
        self._known = 0, 0  # which units they are: they are added to, or made anew with fewer
        self._of: dict[str, set[str]] = {}

    def of_unit(self, flat: str | None, units: Mapping[str, object]) -> set[str]:
        """All flats of a flat's unit, which may have a second one, such as that of its frozen parameters."""
        if self._known != (known := (id(units), len(units))):
            self._known, self._of = known, {}
            for name in units:
                self._of.setdefault(name.split(" ")[0], set()).add(name)
        return self._of.get(flat.split(" ")[0] if flat else "", set())


class Pieces:
    """Says of what a tensor is a piece, and where it lies there."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int], tuple[Any, Spans]] = {}  # by the id of a DTensor's spec, kept alive
        self.has_shards = False  # has met parameters of DeepSpeed's stage 3, which gathers several units at once

    def of_parameter(
        self, parameter: torch.Tensor, unit: str | None, start: int, category: str = "parameters"
    ) -> Iterator[Held]:
        """A parameter, which begins at `start` in its flat, its gradient, and a shard, of which no place is told."""
        yield from self.of(category, parameter, unit, start)
        if (shard := shard_of(parameter)) is not None:
            self.has_shards = True
            yield from self.of(category, shard, None, None)
        gradient = parameter.grad if parameter.is_leaf else None
        if gradient is not None:
            yield from self.of("gradients", gradient, unit, start)

    def of_optimizers(
        self, optimizers: Iterable[torch.optim.Optimizer], models: Collection[Places], masters: dict[int, torch.Tensor]
    ) -> Iterator[Held]:
        """What optimizers outside engines update and keep; masters are state, as in ZeRO's forms."""
        for optimizer in optimizers:
            updated = chain(*(group["params"] for group in optimizer.param_groups))
            for parameter in (each for each in updated if id(each) not in masters):
                yield from self.of_parameter(parameter, None, 0)
            yield from self.of_state(optimizer, models)
        for master in masters.values():
            yield from self.of_parameter(master, None, 0, "optimizer_state")

    def of_buckets(self, engines: Iterable[nn.Module]) -> Iterator[Held]:
        """The buckets of DeepSpeed's engines, to be told last: a gradient in one counts as communication."""
        for bucket in chain(*map(buckets_of, engines)):
            yield from self.of("communication", bucket, None, None)

    def of_state(self, optimizer: torch.optim.Optimizer, models: Iterable[Places]) -> Iterator[Held]:
        """What an optimizer outside engines keeps."""
        for parameter, value in tensors_of(optimizer):
            # An optimizer knows its parameters as objects, not by name.
            found = (places[id(parameter)] for places in models if id(parameter) in places)
            unit, start = next(found, (None, 0))
            # A step counter is state, but it covers none of the flat's elements.
            yield from self.of("optimizer_state", value, unit, start if value.numel() == parameter.numel() else None)

    def of(self, category: str, tensor: torch.Tensor, unit: str | None, start: int | None) -> Iterator[Held]:
        """This rank's elements of a tensor that begins at `start` in its flat; None: it lies nowhere there."""
        if (mine := local_of(tensor)) is not None:
            yield category, unit, () if start is None else self._spans(tensor, start), mine

    def _spans(self, tensor: torch.Tensor, start: int) -> Spans:
        """Which elements of a parameter, or of what is like it, this rank has, as counted in its flat."""
        spec = getattr(tensor, "_spec", None)
        if spec is None:
            return ((start, start + tensor.numel()),)
        # A parameter and its gradients share one DTensor spec. Keyed by id, since hashing it takes ten calls.
        key = id(spec), start
        if key not in self._known:
            self._known[key] = spec, tuple((start + first, start + last) for first, last in spans_of(spec))
        return self._known[key][1]


def spans_of(spec: Any) -> Spans:
    """Which elements of a DTensor this rank has: one span, or for a matrix that is sharded by columns one for each row.

    Nothing is told where that would be more than `ROWS`: each look at the parameter would take as many times as long.
    """
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    shape = spec.shape
    mine, offset = compute_local_shape_and_global_offset(shape, spec.mesh, spec.placements)
    if 0 in mine:  # so it is, too, on a rank that the mesh does not have
        return ()
    divided = max((dim for dim, size in enumerate(mine) if size != shape[dim]), default=0)
    rows = [range(first, first + size) for first, size in zip(offset[:divided], mine[:divided], strict=True)]
    if prod(map(len, rows)) > ROWS:
        return ()
    sizes = [prod(shape[dim + 1 :]) for dim in range(divided + 1)]  # how far apart neighbours in a dimension lie
    first, size = (offset[divided] * sizes[-1], mine[divided] * sizes[-1]) if shape else (0, 1)
    starts = (sum(map(mul, sizes, row)) + first for row in product(*rows))
    return tuple((start, start + size) for start in starts)
