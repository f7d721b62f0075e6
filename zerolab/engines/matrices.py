"""Muon for the matrices of a model, an element-wise optimizer for the rest: what the ways of sharding it share.

Muon makes each update of a matrix orthogonal, nearly, by five Newton-Schulz iterations that multiply the whole matrix
with itself (Jordan et al. 2024, "Muon: An optimizer for hidden layers in neural networks",
https://kellerjordan.github.io/posts/muon/). So no rank can update a piece of a matrix by itself, as it can under Adam;
who has it whole, and when, is what `muon_replicated`, `muon_owners` and `muon_rows` answer differently. The optimizer
is torch's own. Embeddings, norms, biases and heads stay with the optimizer that the engine is given, as Muon's authors
advise.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from inspect import signature
from types import MappingProxyType
from typing import Any

import torch
from torch import nn

from zerolab.engines.declared import DeclaredOptimizer, State, name_of, state_of
from zerolab.engines.partition import FlatLayout, ParamGroups, Selector, find_units, groups_of
from zerolab.names import ROOT

MATRICES = 0  # the parameter group that Muon updates


class Together(DeclaredOptimizer):
    """Several optimizers as one: their groups in order, one state, and one step for all."""

    def __init__(self, parts: Sequence[torch.optim.Optimizer]) -> None:
        self.parts = parts
        # The very groups of the parts: a schedule's learning rate is theirs at once.
        super().__init__([group for part in parts for group in part.param_groups], parts[-1].defaults)

    @property
    def name(self) -> str:
        """Those of its parts."""
        return " and ".join(name_of(part) for part in self.parts)

    @property
    def wide(self) -> State:
        """The one state, with numbers in place of what the last part keeps in 8 bits."""
        self.parts[-1].state = self.state
        return state_of(self.parts[-1])

    def step(self, closure: Any = None) -> Any:
        """Each updates its own parameters."""
        loss = None if closure is None else closure()
        groups = iter(self.param_groups)  # which `load_state_dict` replaces, as it does the state
        for part in self.parts:
            part.state, part.param_groups = self.state, [next(groups) for _ in part.param_groups]
            part.step()
        return loss


class Matrices:
    """Mixed into an engine: its first parameter group are matrices, which Muon updates.

    Args:
        muon: keywords of `torch.optim.Muon`, such as `{"lr": 0.02}`.
        matrices: a test of a parameter's name and the parameter, for what Muon updates; None takes every matrix within
            a unit, so that embeddings and heads, which lie in none, are left to `optimizer_cls`.

    Raises:
        TypeError: a keyword that Muon does not take.
        ValueError: nothing to update by Muon, or something that is no matrix; a scale that is not above zero.
    """

    muon_cls: type[torch.optim.Optimizer] = torch.optim.Muon

    def __init__(
        self,
        *arguments: Any,
        muon: Mapping[str, Any] = MappingProxyType({}),
        matrices: Selector | None = None,
        **others: Any,
    ) -> None:
        _check_muon(muon)
        given = signature(type(self)).bind_partial(*arguments, **others).arguments
        names = _matrices_of(given.get("model"), matrices, given.get("units"))
        self._muon, self.matrix_numel = dict(muon), sum(names.values())
        groups = [(lambda name, _: name in names, {}), *others.pop("param_groups", ())]
        super().__init__(*arguments, param_groups=groups, **others)  # type: ignore[call-arg]  # the engine's

    def place(self, layouts: list[FlatLayout]) -> list[FlatLayout]:
        """Calls the flats of matrices by their name; they are cut as the stage cuts all others."""
        return [replace(layout, name=layout.name.replace(f"group {MATRICES}", "matrices")) for layout in layouts]

    def make_optimizer(
        self, optimizer_cls: type, param_groups: ParamGroups, keywords: dict[str, Any]
    ) -> torch.optim.Optimizer:
        """Muon over the matrices that this rank has whole, and `optimizer_cls` over its part of everything else."""
        trainable = self.trainable  # type: ignore[attr-defined]
        for flat in trainable:
            if flat.layout.group == MATRICES:
                # Each in its own shape: they are whole here, or not here at all.
                flat.pieces = {slot: nn.Parameter(mine) for slot, mine in flat.by_parameter(flat.owned.detach())}
        updated = ((flat.layout.group, each) for flat in trainable for each, _ in flat.updated())
        return self.together(groups_of(updated, param_groups), optimizer_cls, keywords)

    def together(self, groups: list[dict[str, Any]], optimizer_cls: type, keywords: dict[str, Any]) -> Together:
        """Muon for the first group, without what has no elements on this rank, and `optimizer_cls` for the others."""
        matrices, *rest = groups
        matrices["params"] = [matrix for matrix in matrices["params"] if matrix.numel()]
        parts = [self.muon_cls([matrices], **self._muon)]
        return Together([*parts, optimizer_cls(rest, **keywords)] if rest else parts)


def _check_muon(keywords: Mapping[str, Any]) -> None:
    """Raises TypeError for a keyword that Muon does not take, ValueError for a number that it would turn into NaN."""
    known = [name for name in signature(torch.optim.Muon).parameters if name != "params"]
    if unknown := sorted(keywords.keys() - set(known)):
        raise TypeError(f"Muon does not take {unknown[0]!r}: choose among {', '.join(known)}")
    for name in ("lr", "eps"):  # each update is divided by its norm, but at least by eps, and multiplied with lr
        value = float(keywords.get(name, 1.0))
        if not (0 < value < math.inf):
            raise ValueError(f"Muon's {name} is {keywords[name]!r}, by which it scales: give a finite number above 0")


def _matrices_of(model: Any, matrices: Selector | None, units: Sequence[str] | None) -> dict[str, int]:
    """The parameters that Muon is to update, by name, with their elements."""
    if not isinstance(model, nn.Module):
        return {}  # which the engine refuses
    inside = tuple(f"{unit}." for unit in (find_units(model) if units is None else units) if unit != ROOT)
    chosen = {
        name: parameter
        for name, parameter in model.named_parameters()
        if parameter.requires_grad
        and (matrices(name, parameter) if matrices else parameter.ndim == 2 and name.startswith(inside))
    }
    for name, parameter in chosen.items():
        if parameter.ndim != 2:
            shape = tuple(parameter.shape)
            raise ValueError(f"{name!r} has the shape {shape}, and Muon updates matrices: leave it out of matrices=")
    if not chosen:
        raise ValueError(
            f"{type(model).__name__} has no matrix within a unit: name some by matrices=, or use AdamW alone"
        )
    return {name: parameter.numel() for name, parameter in chosen.items()}
