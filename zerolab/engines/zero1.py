"""ZeRO stage 1: each rank keeps the optimizer state of its own shard only, and updates only that.

Memory a rank (fp32, Adam): 4Ψ parameters + 4Ψ gradients + 8Ψ/N optimizer state.
Traffic a rank and step: 2Ψ elements times (N-1)/N, as in DDP: a gradient goes to its owner (Ψ), and the owner's
updated parameters go to everyone (Ψ). An all_reduce in place of the first would cost 2Ψ, 3Ψ in all.
(ZeRO, arXiv 1910.02054, sections 5.1 and 7.2.)
"""

import torch

from zerolab.engines.collectives import Exchange, all_gather, reduce_scatter
from zerolab.engines.engine import Engine
from zerolab.engines.flat import Flat


class Zero1(Engine):
    """Shards the optimizer state; parameters and gradients stay whole."""

    stage = "zero1"

    def own(self, flat: Flat) -> torch.Tensor:
        """A rank updates its own shard, in place in the whole parameters."""
        return flat.part(flat.whole)

    def reduce(self, flat: Flat, gradient: torch.Tensor) -> Exchange:
        """Adds up each part of the gradient on its owner."""
        return reduce_scatter(gradient, name=flat.layout.name)

    def keep(self, flat: Flat, gradient: torch.Tensor) -> None:
        """Makes the owned part the mean, in place. It is a view, so the whole gradient stays until the update."""
        flat.mean = flat.part(gradient).div_(self.world_size)

    def publish(self) -> None:
        """Sends the updated shard to every rank."""
        # A list: all exchanges are under way before the first is waited for.
        for flat, exchange in [(flat, all_gather(flat.whole, name=flat.layout.name)) for flat in self.sharded]:
            self.receive(flat, exchange)
