"""Muon with whole matrices: each has one owner, which alone updates it and sends it to the others.

The rest of the model is sharded as in ZeRO-2. Memory a rank (fp32), with M elements in matrices of which it owns m, and
R in the rest: 4(M + R) parameters + 4m + 4R/N gradients, 4m momentum + 8R/N Adam. Traffic a rank and step: M - m
elements of gradients to their owners, (N-1)m of updated matrices, and 2R(N-1)/N; over all ranks as much as in ZeRO-2.
(Whole parameters have owners in torch's ZeroRedundancyOptimizer, too, and in Jordan's distributed Muon.)

A matrix cannot be cut to make shards equal, so owners are chosen to make them nearly so: the largest matrix first, each
to the rank that has the least (`placement.balanced`). Over the whole model, not unit by unit: a block of four matrices
would leave all but four ranks without work. `engine.imbalance` has how much more the fullest rank owns than the mean.
"""

from typing import Any

import torch

from zerolab.engines.collectives import Exchange, all_gather, reduce_scatter
from zerolab.engines.flat import Flat
from zerolab.engines.matrices import MATRICES, Matrices
from zerolab.engines.partition import FlatLayout
from zerolab.engines.placement import balanced, imbalance
from zerolab.engines.zero2 import Zero2


class MuonOwners(Matrices, Zero2):
    """ZeRO-2 in which each matrix is whole on one rank, whose Muon updates it.

    Args:
        room: how many elements of matrices a rank may own; None for as many as it gets.

    Raises:
        ValueError: a matrix, or a rank's share of them, that is larger than `room`.
    """

    stage = "muon-owners"

    def __init__(self, *arguments: Any, room: int | None = None, **others: Any) -> None:
        self._room = room
        super().__init__(*arguments, **others)

    def place(self, layouts: list[FlatLayout]) -> list[FlatLayout]:
        """Gives each matrix to a rank, the matrices of all units together."""
        named = super().place(layouts)
        whole = [layout for layout in named if layout.group == MATRICES and not layout.replicated]
        sizes = {slot.name: slot.shape.numel() for layout in whole for slot in layout.slots}
        owners = dict(zip(sizes, balanced([*sizes.values()], self.world_size), strict=True))
        self.imbalance = imbalance([*sizes.values()], [*owners.values()], self.world_size)
        self._check_room(sizes, owners)
        return [
            layout.owned_by([owners[slot.name] for slot in layout.slots]) if layout in whole else layout
            for layout in named
        ]

    def reduce(self, flat: Flat, gradient: torch.Tensor) -> Exchange:
        """Adds up each matrix's gradient on its owner."""
        return reduce_scatter(gradient, name=flat.layout.name, sizes=flat.layout.sizes)

    def publish(self) -> None:
        """Sends the updated matrices, and the updated shards of the rest, to every rank."""
        sent = [(flat, all_gather(flat.whole, name=flat.layout.name, sizes=flat.layout.sizes)) for flat in self.sharded]
        for flat, exchange in sent:
            self.receive(flat, exchange)

    def _check_room(self, sizes: dict[str, int], owners: dict[str, int]) -> None:
        if self._room is None or not sizes:
            return
        name, largest = max(sizes.items(), key=lambda item: item[1])
        remedy = "give it more, or take muon-rows, which leaves every rank some rows of each matrix"
        if largest > self._room:
            raise ValueError(f"{name!r} has {largest:,} elements, and a rank has room for {self._room:,}: {remedy}")
        most = max(sum(sizes[name] for name in sizes if owners[name] == rank) for rank in range(self.world_size))
        if most > self._room:
            raise ValueError(
                f"a rank would own {most:,} elements of matrices, and has room for {self._room:,}: {remedy}"
            )
