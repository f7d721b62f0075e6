"""ZeRO stage 3 whose gathers send 8 bits an element: a quarter of the bytes of fp32, half of those of bf16.

Owners keep and update their shards as they are. Before a gather each owner rounds its shard block by block (`blocks`)
and sends codes and scales; whole numbers, such as the codes of a frozen weight, travel as they are. Every rank computes
with what arrives, the owner too, so that all have the same parameters.

Memory a rank: as stage 3, and while a unit is on its way what is sent, about a quarter of it in fp32.
Traffic a rank and step: two gathers of Ψ (1 + 4/256) bytes and one reduction as in stage 3, times (N-1)/N.
(ZeRO++, arXiv 2306.10209, section 3.1, "qwZ".)

Blocks begin anew with each shard, so another number of ranks has other blocks, other scales, and rounds to slightly
other parameters: unlike the other stages, this one does not compute the same on every N.
"""

from functools import partial
from typing import Any

import torch

from zerolab.engines.blocks import FORMATS, Format, pack, unpack
from zerolab.engines.collectives import Exchange, all_gather
from zerolab.engines.flat import Flat, Presence
from zerolab.engines.zero3 import Zero3


class Zero3In8Bits(Zero3):
    """Shards parameters, gradients and optimizer state, and gathers the parameters in 8 bits.

    `state_dict` gives the owners' exact parameters; whoever looks at a whole unit sees the rounded ones, and whoever
    writes into it between steps has all of its flat taken over as it was seen.

    Args:
        bits: "int8" or "fp8".
    """

    stage = "zero3-8bit"

    def __init__(self, *arguments: Any, bits: str = "int8", **others: Any) -> None:
        if bits not in FORMATS:
            raise ValueError(f"bits is {bits!r}: choose one of {', '.join(FORMATS)}")
        self._bits = FORMATS[bits]
        super().__init__(*arguments, **others)
        for flat in self.flats:
            if flat.layout.dtype.is_floating_point:
                flat.rounding = partial(_rounded, self._bits)

    def start_gather(self, flat: Flat) -> None:
        """Starts making the flat whole of the owners' rounded shards, in the storage that autograd remembers."""
        if not flat.layout.dtype.is_floating_point:  # whole numbers are codes already; complex ones have two parts
            super().start_gather(flat)
            return
        if flat.presence is Presence.RELEASED:
            mine = pack(flat.shard, self._bits)
            packed = mine.new_empty(self.world_size, mine.numel())
            packed[self.rank] = mine
            flat.whole.untyped_storage().resize_(flat.whole.numel() * flat.whole.element_size())

            def unpack_all() -> None:
                for part, shard in zip(packed, flat.whole.chunk(self.world_size), strict=True):
                    unpack(part, shard, self._bits)

            flat.arrive(Exchange([all_gather(packed.view(-1), name=flat.layout.name)], unpack_all))


def _rounded(bits: Format, shard: torch.Tensor) -> torch.Tensor:
    """The shard as every rank sees it."""
    seen = torch.empty_like(shard)
    unpack(pack(shard, bits), seen, bits)
    return seen
