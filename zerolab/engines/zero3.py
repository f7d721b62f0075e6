"""ZeRO stage 3: each rank keeps the parameters of its own shard only, too.

Memory a rank (fp32, Adam): 4Ψ/N parameters + 4Ψ/N gradients + 8Ψ/N optimizer state = 16Ψ/N bytes, and for as long as
it is used one unit whole. Traffic a rank and step: 3Ψ elements times (N-1)/N. Nothing is published after the update;
instead each unit is gathered just before its forward (Ψ) and again before its backward (Ψ).
(ZeRO, arXiv 1910.02054, sections 5.3 and 7.2.)

Autograd remembers the storage that the forward used. So a release frees that very storage (`resize_(0)`) and the next
gather refills it; giving a parameter other data would free nothing until backward.
"""

from collections import Counter
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from zerolab.engines.collectives import Exchange, all_gather, reduce_scatter
from zerolab.engines.engine import Engine
from zerolab.engines.flat import Flat
from zerolab.engines.order import Order
from zerolab.engines.partition import ROOT


class Zero3(Engine):
    """Shards parameters, gradients and optimizer state; a unit is whole only while it is used."""

    stage = "zero3"
    reduces_every_backward = True  # there is nowhere to add up whole gradients

    def __init__(self, *arguments: Any, release_after_forward: bool = True, prefetch: int = 1, **keywords: Any) -> None:
        self.release_after_forward = release_after_forward
        self._forward_order, self._backward_order = Order(ahead=prefetch), Order(ahead=prefetch)
        self._arriving: dict[Flat, Exchange] = {}
        super().__init__(*arguments, **keywords)

    def own(self, flat: Flat) -> torch.Tensor:
        """A rank updates its own shard, the only part of the parameters that it always holds."""
        shard = flat.part(flat.whole).clone()
        self.release(flat)
        return shard

    def start_gather(self, flat: Flat) -> None:
        """Starts making the flat whole, in the storage that autograd remembers."""
        storage = flat.whole.untyped_storage()
        if storage.size() == 0:
            storage.resize_(flat.whole.numel() * flat.whole.element_size())
            flat.part(flat.whole).copy_(flat.shard)
            self._arriving[flat] = all_gather(flat.whole)

    def gather(self, flat: Flat) -> None:
        """Makes the flat whole on every rank."""
        self.start_gather(flat)
        if flat in self._arriving:
            self._arriving.pop(flat).wait()
            flat.show()

    def release(self, flat: Flat) -> None:
        """Gives the memory back. Until the next gather the parameters are empty: nothing may touch released memory."""
        if flat in self._arriving:  # gathered ahead of a use that did not come
            self._arriving.pop(flat).wait()
        for parameter in flat.parameters:
            parameter.data = flat.whole.new_empty(0)
        flat.whole.untyped_storage().resize_(0)

    def reduce(self, flat: Flat, gradient: torch.Tensor) -> Exchange:
        """Adds up each part of the gradient on its owner; with its last gradient the flat has done its work."""
        self.release(flat)
        self._release_frozen(flat.layout.unit)
        return reduce_scatter(gradient)

    def keep(self, flat: Flat, gradient: torch.Tensor) -> None:
        """Keeps the owned part of the mean gradient, and frees the whole one."""
        mean = flat.part(gradient).div(self.world_size)
        flat.mean = mean if flat.mean is None else flat.mean.add_(mean)
        flat.gradient = None

    def publish(self) -> None:
        """Sends nothing: the next gather brings the updated parameters."""

    def backward(self, loss: torch.Tensor) -> None:
        """Runs autograd, then releases what is still whole, because no gradient told that its unit was done."""
        self._in_backward = True
        self._backward_order.begin()
        super().backward(loss)
        self._in_backward = False
        self._inputs_awaited.clear()
        for flat in self.flats:
            self.release(flat)

    def _watch(self) -> None:
        """Gathers each unit before its module runs, and releases it after."""
        super()._watch()
        self._in_backward = False
        self.model.register_forward_pre_hook(self._begin_forward)
        self._inputs_awaited: Counter[str] = Counter()
        self._units = {
            flat.layout.unit: [f for f in self.flats if f.layout.unit == flat.layout.unit] for flat in self.flats
        }
        for unit in self._units:
            module = self.model if unit == ROOT else self.model.get_submodule(unit)
            module.register_forward_pre_hook(partial(self._before_forward, unit))
            module.register_forward_hook(partial(self._after_forward, unit))

    def _begin_forward(self, module: nn.Module, inputs: Any) -> None:
        if not self._in_backward:
            self._forward_order.begin()

    def _gather_unit(self, unit: str) -> None:
        for flat in self._units[unit]:
            self.gather(flat)

    def _use(self, unit: str, order: Order) -> None:
        """Gathers the unit, and starts gathering what comes after it."""
        self._gather_unit(unit)
        for next_unit in order.use(unit):
            for flat in self._units[next_unit]:
                self.start_gather(flat)

    def _before_forward(self, unit: str, module: nn.Module, inputs: Any) -> None:
        if self._in_backward:  # activation checkpointing runs a forward again, out of order
            self._gather_unit(unit)
            return
        self._use(unit, self._forward_order)
        if any(flat.layout.frozen for flat in self._units[unit]):
            for tensor in _needing_gradient(inputs):
                self._inputs_awaited[unit] += 1
                tensor.register_hook(partial(self._after_backward, unit))

    def _after_forward(self, unit: str, module: nn.Module, inputs: Any, outputs: Any) -> None:
        if self._in_backward:  # its backward comes next, so the unit stays
            return
        for tensor in _needing_gradient(outputs):
            tensor.register_hook(partial(self._before_backward, unit))
        if self.release_after_forward:
            for flat in self._units[unit]:
                self.release(flat)

    def _before_backward(self, unit: str, output_gradient: torch.Tensor) -> None:
        self._use(unit, self._backward_order)

    def _after_backward(self, unit: str, input_gradient: torch.Tensor) -> None:
        self._inputs_awaited[unit] -= 1
        self._release_frozen(unit)

    def _release_frozen(self, unit: str) -> None:
        """Frozen parameters have no gradient of their own: they are done when the unit owes none to anything else."""
        flats = self._units[unit]
        if not self._inputs_awaited[unit] and not any(flat.awaited for flat in flats if not flat.layout.frozen):
            for flat in flats:
                if flat.layout.frozen:
                    self.release(flat)


def _needing_gradient(values: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
