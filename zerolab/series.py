"""What a plain step in one process shows of its activations, mark by mark: the measured part of a predicted peak."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import nn

from zerolab.engines.graph import tensors_needing_gradient
from zerolab.engines.partition import ROOT, find_units
from zerolab.peak import Mark
from zerolab.recording.dispatch import Watch
from zerolab.recording.ledger import Ledger
from zerolab.recording.log import Log
from zerolab.recording.sources import Sources


def measure(model: nn.Module, inputs: Any, targets: Any, loss_fn: Callable[[Any, Any], torch.Tensor]) -> list[Mark]:
    """Runs one forward and backward without any engine, and gives the activations' bytes between the marks.

    The gradients of parameters are dropped as they come. The model's parameters stay as they are; its hooks are gone
    afterwards. Hooks stand on the units that an engine would find.
    """
    series = _Series()
    handles: list[Any] = []
    with Watch(series.log, _no_communication):
        handles = list(series.install(model))
        try:
            outputs = model(inputs)
            loss = loss_fn(outputs, targets)
            loss.backward()
            series.mark("end", ROOT)
            del outputs, loss
        finally:
            for handle in handles:
                handle.remove()
    return series.finish()


class _Series:
    def __init__(self) -> None:
        self.ledger = Ledger()
        self.log = Log(self.ledger, Sources())
        self.marks: list[Mark] = []

    def mark(self, kind: str, name: str, lingers: int = 0) -> None:
        """Notes a moment, and begins to look for the highest one after it."""
        self.ledger.settle()
        highest = max(self.ledger.peak_total, self.ledger.total)
        self.marks.append(Mark(kind, name, highest, self.ledger.total, lingers))
        self.ledger.start_peak()

    def install(self, model: nn.Module) -> Any:
        """Puts the hooks in place and gives their handles."""
        names = {name: model.get_submodule(name) for name in find_units(model)} or {ROOT: model}
        for name, module in names.items():
            yield module.register_forward_pre_hook(partial(self._before, name))
            yield module.register_forward_hook(partial(self._after, name))
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                yield parameter.register_post_accumulate_grad_hook(partial(self._gradient, name))

    def _before(self, unit: str, module: nn.Module, inputs: Any) -> Any:
        own = tuple(value.view_as(value) if _needs_gradient(value) else value for value in inputs)
        awaiting = list(tensors_needing_gradient(own))
        self.mark("use", unit, lingers=len(awaiting))
        for tensor in awaiting:
            tensor.register_hook(lambda _: self.mark("gave", unit))
        return own

    def _after(self, unit: str, module: nn.Module, inputs: Any, outputs: Any) -> None:
        for tensor in tensors_needing_gradient(outputs):
            tensor.register_hook(lambda _: self.mark("back", unit))
        self.mark("done", unit)

    def _gradient(self, name: str, parameter: torch.Tensor) -> None:
        self.ledger.settle()
        highest, before = max(self.ledger.peak_total, self.ledger.total), self.ledger.total
        nbytes = parameter.numel() * parameter.element_size()
        parameter.grad = None
        self.ledger.settle()
        lingers = nbytes if self.ledger.total == before else 0  # autograd holds it until the hooks are done
        self.marks.append(Mark("grad", name, highest, self.ledger.total, lingers))
        self.ledger.start_peak()

    def finish(self) -> list[Mark]:
        """The marks, each use and each backward with the unit of the one after it."""
        out = list(self.marks)
        for kind in ("use", "back"):
            places = [place for place, mark in enumerate(out) if mark.kind == kind]
            for place, following in pairwise(places):
                out[place] = replace(out[place], next=out[following].name)
        return out


def _needs_gradient(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.requires_grad


def _no_communication(func: Any, args: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    return func(*args, **keywords)
