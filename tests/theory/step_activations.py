"""What a plain step in one process shows of its activations, mark by mark: the measured part of a predicted peak."""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from step_bytes import Mark
from torch import nn

from zerolab.engines.graph import is_running, tensors_needing_gradient
from zerolab.engines.partition import partition
from zerolab.engines.precision import cast_floating, compute_dtype
from zerolab.names import ROOT
from zerolab.recording.dispatch import Watch
from zerolab.recording.ledger import GRADIENTS, Ledger
from zerolab.recording.log import Log
from zerolab.recording.sources import Sources


def measure(
    model: nn.Module,
    inputs: Any,
    targets: Any,
    loss_fn: Callable[[Any, Any], torch.Tensor],
    *,
    units: Sequence[str] | None = None,
    precision: str = "fp32",
) -> list[Mark]:
    """Runs one forward and backward without any engine, and gives the activations' bytes between the marks.

    Args:
        model: the module. Its parameters stay as they are, its hooks are gone afterwards, its gradients are dropped.
        inputs: what it takes; a mapping is passed as keywords, as `engine.training_step` does.
        targets: what `loss_fn` compares the outputs with.
        loss_fn: of outputs and targets.
        units: names of the modules that travel as one, as the engine has them; None finds the blocks.
        precision: "fp32", or "bf16", in which a copy of the model is run.

    Raises:
        ValueError: an unknown precision, or a unit that is not a module of the model.
    """
    dtype = compute_dtype(precision)
    if dtype is not None:
        # A copy: casting the learner's model would change what they train next.
        model = copy.deepcopy(model).to(dtype)
    series = _Series()
    handles: list[Any] = []
    with Watch(series.log, _no_communication):
        handles = list(series.install(model, None if units is None else list(units)))
        if dtype is not None:
            handles.append(model.register_forward_pre_hook(partial(_cast, dtype), with_kwargs=True))
        try:
            outputs = model(**inputs) if isinstance(inputs, Mapping) else model(inputs)
            loss = loss_fn(outputs, targets)
            # The hook on the loss is the first thing that a backward pass runs.
            loss.register_hook(lambda _: series.mark("loss", ROOT))
            loss.backward()
            series.mark("end", ROOT)
            del outputs, loss
        finally:
            for handle in handles:
                handle.remove()
    return [draft.mark for draft in series.drafts]


class _Series:
    def __init__(self) -> None:
        self.ledger = Ledger()
        self.log = Log(self.ledger, Sources())
        self.drafts: list[_Draft] = []

    def mark(self, kind: str, name: str, **fields: int) -> None:
        """Notes a moment, and begins to look for the highest one after it."""
        ledger = self.ledger
        ledger.settle()
        marked = Mark(kind, name, ledger.host.peak_total, ledger.host.total, **fields)
        self.drafts.append(_Draft(marked, ledger.host.peak_birth, ledger.births))
        ledger.start_peak()

    def install(self, model: nn.Module, units: list[str] | None) -> Iterator[Any]:
        """Puts the hooks in place and gives their handles."""
        for unit in dict.fromkeys(flat.unit for flat in partition(model, 1, units)):
            module = model.get_submodule("" if unit == ROOT else unit)
            yield module.register_forward_pre_hook(partial(self._before, unit), prepend=True, with_kwargs=True)
            yield module.register_forward_hook(partial(self._after, unit))
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                yield parameter.register_post_accumulate_grad_hook(partial(self._gradient, name))

    def _before(self, unit: str, module: nn.Module, inputs: Any, keywords: dict[str, Any]) -> Any:
        if is_running():
            self.mark("again", unit)
            return None
        # The unit's inputs under names of its own, as zero3 has them: what comes back through them is its gradient.
        own = tuple(value.view_as(value) if _needs_gradient(value) else value for value in inputs)
        named = {key: value.view_as(value) if _needs_gradient(value) else value for key, value in keywords.items()}
        awaiting = tensors_needing_gradient((own, named))
        self.mark("use", unit, awaiting=len(awaiting))
        for tensor in awaiting:
            tensor.register_hook(lambda _: self.mark("gave", unit))
        return own, named

    def _after(self, unit: str, module: nn.Module, inputs: Any, outputs: Any) -> None:
        if is_running():
            return
        for tensor in tensors_needing_gradient(outputs):
            tensor.register_hook(lambda _: self.mark("back", unit))
        self.mark("done", unit)

    def _gradient(self, name: str, parameter: torch.Tensor) -> None:
        ledger, gradient = self.ledger, parameter.grad
        if gradient is None:
            return
        nbytes, entry = gradient.numel() * gradient.element_size(), ledger._known(gradient.untyped_storage())
        born = entry.since if entry is not None else 0
        # In the engine it lies in the flat, so here it must not be counted as an activation.
        ledger.assign(gradient, GRADIENTS, None)
        of_it = ledger.host.peak[GRADIENTS]
        highest, birth = ledger.host.peak_total - of_it, ledger.host.peak_birth
        parameter.grad = gradient = None
        ledger.settle()
        for draft in self.drafts:
            draft.contained(born, nbytes)
        marked = Mark("grad", name, highest, ledger.host.total, of_it, nbytes=nbytes)
        self.drafts.append(_Draft(marked, birth, ledger.births))
        ledger.start_peak()


@dataclass(slots=True)
class _Draft:
    """A mark, and how many storages had come at its highest moment and at its own."""

    mark: Mark
    highest_birth: int
    live_birth: int

    def contained(self, born: int, nbytes: int) -> None:
        """A storage turns out to be a gradient: where it was there already, it is not an activation."""
        mark = self.mark
        if born <= self.highest_birth:
            mark = replace(mark, highest=mark.highest - nbytes, highest_arriving=mark.highest_arriving + nbytes)
        if born <= self.live_birth:
            mark = replace(mark, live=mark.live - nbytes, live_arriving=mark.live_arriving + nbytes)
        self.mark = mark


def _cast(dtype: torch.dtype, _: nn.Module, inputs: Any, keywords: dict[str, Any]) -> Any:
    return cast_floating((inputs, keywords), dtype)


def _needs_gradient(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.requires_grad


def _no_communication(func: Any, args: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    return func(*args, **keywords)
