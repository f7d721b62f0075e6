"""ZeRO stage 2: each rank keeps the gradients of its own shard only, too.

Memory a rank (fp32, Adam): 4Ψ parameters + 4Ψ/N gradients + 8Ψ/N optimizer state. While autograd works there is more:
the gradient that is being collected is whole, and so is the one in flight, until its owner has it.
Traffic a rank and step: 2Ψ elements times (N-1)/N, the same two collectives as stage 1.
(ZeRO, arXiv 1910.02054, sections 5.2 and 7.2.)
"""

import torch

from zerolab.engines.collectives import Exchange, all_gather, reduce_scatter
from zerolab.engines.engine import Engine
from zerolab.engines.flat import Flat


class Zero2(Engine):
    """Shards the optimizer state and the gradients; the parameters stay whole."""

    stage = "zero2"
    reduces_every_backward = True  # that of each micro-batch: there is nowhere to add up whole gradients

    def own(self, flat: Flat) -> torch.Tensor:
        """A rank updates its own shard, in place in the whole parameters."""
        return flat.part(flat.whole)

    def reduce(self, flat: Flat, gradient: torch.Tensor) -> Exchange:
        """Adds up each part of the gradient on its owner."""
        return reduce_scatter(gradient, name=flat.layout.name)

    def keep(self, flat: Flat, gradient: torch.Tensor) -> None:
        """Keeps the owned part of the mean gradient, and frees the whole one."""
        mean = flat.part(gradient).div(self.world_size)  # a copy: a view would keep the whole one alive
        flat.mean = mean if flat.mean is None else flat.mean.add_(mean)  # there is one of an earlier micro-batch
        flat.gradient = None

    def publish(self) -> None:
        """Sends the updated shard to every rank."""
        # A list: all exchanges are under way before the first is waited for.
        for flat, exchange in [(flat, all_gather(flat.whole, name=flat.layout.name)) for flat in self.sharded]:
            self.receive(flat, exchange)
