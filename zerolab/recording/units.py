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
from zerolab.recording.wrappers import is_part, local_of, units_of, whole, whole_shapes

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


class Pieces:
    """Says of what a tensor is a piece, and where it lies there."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int], tuple[Any, Spans]] = {}  # by the id of a DTensor's spec, kept alive

    def of_parameter(self, parameter: torch.Tensor, unit: str | None, start: int) -> Iterator[Held]:
        """A parameter, which begins at `start` in its flat, and its gradient."""
        yield from self.of("parameters", parameter, unit, start)
        gradient = parameter.grad if parameter.is_leaf else None
        if gradient is not None:
            yield from self.of("gradients", gradient, unit, start)

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
