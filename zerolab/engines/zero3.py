"""ZeRO stage 3: each rank keeps the parameters of its own shard only, too.

Memory a rank (fp32, Adam): 4Ψ/N parameters + 4Ψ/N gradients + 8Ψ/N optimizer state = 16Ψ/N bytes, and for as long as
it is used one unit whole. Traffic a rank and step: 3Ψ elements times (N-1)/N. Nothing is published after the update;
instead each unit is gathered just before its forward (Ψ) and again before its backward (Ψ).
(ZeRO, arXiv 1910.02054, sections 5.3 and 7.2.)

Autograd remembers the storage that the forward used. So a release frees that very storage (`resize_(0)`) and the next
gather refills it; giving a parameter other data would free nothing until backward. Autograd counts the writes to a
tensor, and refuses one that was written since the forward; the refill counts for `whole`, and not for the parameters,
which were set by `.data`.
"""

from typing import Any

import torch

from zerolab.engines.collectives import Exchange, all_gather, reduce_scatter
from zerolab.engines.engine import Engine
from zerolab.engines.flat import Flat, Presence
from zerolab.engines.residency import Residency


class Zero3(Engine):
    """Shards parameters, gradients and optimizer state; a unit is whole only while it is used.

    A parameter may be read and written while a module runs that holds it, or the unit that it is in; otherwise it has
    a shape and no numbers, and says so. All ranks must run the same units in the same order, since each gather needs
    them all.

    Args:
        release_after_forward: False keeps a unit from its forward to its backward.
        prefetch: how many units to gather ahead of the one that is used.
    """

    stage = "zero3"
    reduces_every_backward = True  # that of each micro-batch: there is nowhere to add up whole gradients

    def __init__(self, *arguments: Any, release_after_forward: bool = True, prefetch: int = 1, **others: Any) -> None:
        self._units: Residency = Residency(self, release_after_forward, prefetch)  # first: the step is built around it
        super().__init__(*arguments, **others)

    def own(self, flat: Flat) -> torch.Tensor:
        """A rank updates its own shard, the only part of the parameters that it always holds."""
        shard = flat.part(flat.whole).clone()
        self.release(flat)
        return shard

    def start_gather(self, flat: Flat) -> None:
        """Starts making the flat whole, in the storage that autograd remembers."""
        if flat.presence is Presence.RELEASED:
            flat.whole.untyped_storage().resize_(flat.whole.numel() * flat.whole.element_size())
            flat.part(flat.whole).copy_(flat.shard)
            flat.arrive(all_gather(flat.whole, name=flat.layout.name))

    def gather(self, flat: Flat) -> None:
        """Makes the flat whole on every rank."""
        self.start_gather(flat)
        flat.settle()

    def release(self, flat: Flat) -> None:
        """Gives the memory back. Until the next gather nothing may touch the parameters: their memory is gone."""
        if flat.presence is Presence.ARRIVING:  # gathered ahead, and not used in this pass: others still write into it
            self.gather(flat)
        if flat.presence is Presence.WHOLE:
            flat.hide()
            flat.presence = Presence.RELEASED
            flat.whole.untyped_storage().resize_(0)

    def reduce(self, flat: Flat, gradient: torch.Tensor) -> Exchange:
        """Adds up each part of the gradient on its owner; with its last gradient the unit has done its work."""
        self._units.release_if_done(flat.layout.unit)
        return reduce_scatter(gradient, name=flat.layout.name)

    def keep(self, flat: Flat, gradient: torch.Tensor) -> None:
        """Keeps the owned part of the mean gradient, and frees the whole one."""
        mean = flat.part(gradient).div(self.world_size)  # a copy: a view would keep the whole one alive
        flat.mean = mean if flat.mean is None else flat.mean.add_(mean)  # there is one of an earlier micro-batch
        flat.gradient = None

    def publish(self) -> None:
        """Sends nothing: the next gather brings the updated parameters. What is still whole is out of date."""
        self._units.forget_everything()
