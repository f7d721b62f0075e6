"""Distributed data parallel: every rank holds everything, and all of them make the same update.

Memory a rank (fp32, Adam): 4Ψ parameters + 4Ψ gradients + 8Ψ optimizer state = 16Ψ bytes.
Traffic a rank and step: 2Ψ elements times (N-1)/N, one all_reduce of the gradients.
(ZeRO, arXiv 1910.02054, sections 3.1 and 7.1.)
"""

import torch

from zerolab.engines.collectives import Exchange, all_reduce
from zerolab.engines.engine import Engine
from zerolab.engines.flat import Flat


class DDP(Engine):
    """Replicates parameters, gradients and optimizer state; averages the gradients on every rank."""

    stage = "ddp"

    def own(self, flat: Flat) -> torch.Tensor:
        """Every rank updates every parameter."""
        return flat.whole

    def reduce(self, flat: Flat, gradient: torch.Tensor) -> Exchange:
        """Adds up the whole gradient on every rank."""
        return all_reduce(gradient, name=flat.layout.name)

    def keep(self, flat: Flat, gradient: torch.Tensor) -> None:
        """Keeps the whole mean gradient."""
        flat.mean = gradient.div_(self.world_size)

    def publish(self) -> None:
        """Sends nothing: every rank has made the same update."""
