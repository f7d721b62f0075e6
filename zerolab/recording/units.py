"""The flats of models that no engine trains: which parameters lie where in them, which are trained, what is held."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import chain, count
from typing import Any

import torch
from torch import nn

from zerolab.engines.partition import FlatLayout, partition
from zerolab.recording.events import UnitInfo
from zerolab.recording.updates import tensors_of
from zerolab.recording.wrappers import is_part, local_of, rows_of, units_of, whole

Held = tuple[str, str | None, tuple[int, int], torch.Tensor]
"""A piece of model state, as `Holding`: the category, the flat (None: unknown), a span of it, and the tensor."""

Places = dict[int | str, tuple[str, int]]
"""Each parameter's flat and its start there, by id and by name: FSDP2 gathers a parameter as another object."""


def lay_out(
    model: nn.Module, prefix: str, others: Collection[int], taken: Collection[str] = ()
) -> tuple[list[FlatLayout], Places]:
    """The flats of the parameters whose ids are not among the `others`, none under a name that is `taken`."""
    parameters = dict(model.named_parameters())
    planned = (whole(each, parameters, prefix, others) for each in partition(model, 1, units_of(model)))
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
        self._spans: dict[int, tuple[Any, tuple[int, int]]] = {}  # by the id of a DTensor's spec, which it keeps alive

    def of_parameter(self, parameter: torch.Tensor, unit: str | None, start: int) -> list[Held]:
        """A parameter, which begins at `start` in its flat, and its gradient."""
        held: list[Held] = []
        if (mine := local_of(parameter)) is not None:
            held.append(("parameters", unit, self._span(parameter, start), mine))
        gradient = parameter.grad if parameter.is_leaf else None
        if gradient is not None and (mine := local_of(gradient)) is not None:
            held.append(("gradients", unit, self._span(gradient, start), mine))
        return held

    def of_state(self, optimizer: torch.optim.Optimizer, models: Iterable[Places]) -> Iterator[Held]:
        """What an optimizer outside engines keeps."""
        for parameter, value in tensors_of(optimizer):
            # An optimizer knows its parameters as objects, not by name.
            found = (places[id(parameter)] for places in models if id(parameter) in places)
            unit, start = next(found, (None, 0))
            if (mine := local_of(value)) is not None:
                # A step counter is state, but it covers none of the flat's elements.
                whole = value.numel() == parameter.numel()
                yield "optimizer_state", unit, self._span(value, start) if whole else (0, 0), mine

    def _span(self, tensor: torch.Tensor, start: int) -> tuple[int, int]:
        """Where this rank's elements of a parameter lie in its flat, in which the parameter begins at `start`."""
        spec = getattr(tensor, "_spec", None)
        if spec is None:
            return start, start + tensor.numel()
        # A parameter and its gradients share one DTensor spec. Keyed by id, since hashing it takes ten calls.
        _, (first, last) = self._spans.get(id(spec)) or self._spans.setdefault(id(spec), (spec, rows_of(spec)))
        return (start + first, start + last) if last else (0, 0)
