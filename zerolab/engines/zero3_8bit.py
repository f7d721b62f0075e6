"""ZeRO stage 3 whose gathers send 8 bits an element: a quarter of the bytes of fp32, half of those of bf16.

Owners keep and update their shards as they are. Before a gather each owner rounds its shard: a block of 256 elements is
divided by a scale of its own, which brings the largest of them to the largest number of the format, and both are sent.
Every rank computes with what arrives, the owner too, so that all have the same parameters.

Memory a rank: as stage 3, and while a unit is on its way what is sent, about a quarter of it in fp32.
Traffic a rank and step: two gathers of Ψ (1 + 4/256) bytes and one reduction as in stage 3, times (N-1)/N.
(ZeRO++, arXiv 2306.10209, section 3.1, "qwZ"; block-wise scales: arXiv 2110.02861, section 2.1.)

Blocks begin anew with each shard, so another number of ranks has other blocks, other scales, and rounds to slightly
other parameters: unlike the other stages, this one does not compute the same on every N.
"""

from typing import Any, NamedTuple

import torch

from zerolab.engines.collectives import Exchange, all_gather
from zerolab.engines.flat import Flat, Presence
from zerolab.engines.zero3 import Zero3

BLOCK = 256  # elements with one scale
SCALE = torch.float32


class Format(NamedTuple):
    """Numbers of 8 bits: their dtype, and the largest that a block's largest element becomes."""

    dtype: torch.dtype
    largest: float


FORMATS = {
    "int8": Format(torch.int8, 127.0),  # 255 numbers at equal distances
    "fp8": Format(torch.float8_e4m3fn, 448.0),  # closer together around zero: three bits of mantissa
}


def pack(shard: torch.Tensor, bits: Format) -> torch.Tensor:
    """The shard in 8 bits, and behind that its blocks' scales: shape [bytes], uint8.

    Args:
        shard: shape [n], of floating-point numbers.
        bits: the format.

    Raises:
        ValueError: the shard has a number that is inf or NaN, which leaves its block no scale.
    """
    missing = -shard.numel() % BLOCK  # the last block is filled up with zeros, which no scale depends on
    blocks = torch.nn.functional.pad(shard.to(SCALE), (0, missing)).view(-1, BLOCK)
    scales = blocks.abs().amax(1, keepdim=True) / bits.largest
    if not scales.isfinite().all():
        raise ValueError(
            f"{int((~scales.isfinite()).sum())} of {len(scales)} blocks of {BLOCK} parameters hold inf or NaN, and "
            "have no scale: the update before has diverged, so lower the learning rate or clip the gradients"
        )
    codes = blocks / torch.where(scales > 0, scales, 1.0)  # a block of zeros has scale 0, and stays zeros
    codes = codes if bits.dtype.is_floating_point else codes.round_()
    return torch.cat(
        [codes.to(bits.dtype).flatten()[: shard.numel()].view(torch.uint8), scales.flatten().view(torch.uint8)]
    )


def unpack(packed: torch.Tensor, into: torch.Tensor, bits: Format) -> None:
    """Writes into a shard, shape [n], what `pack` made of one as long."""
    codes, scales = packed.tensor_split([into.numel()])
    # Bytes of fp32 numbers may begin anywhere in a message, fp32 numbers may not: so a copy.
    each = scales.clone().view(SCALE).repeat_interleave(BLOCK)[: into.numel()]
    into.copy_(codes.view(bits.dtype).to(SCALE).mul_(each))


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

    def start_gather(self, flat: Flat) -> None:
        """Starts making the flat whole of the owners' rounded shards, in the storage that autograd remembers."""
        if flat.presence is Presence.RELEASED:
            mine = pack(flat.shard, self._bits)
            packed = mine.new_empty(self.world_size, mine.numel())
            packed[self.rank] = mine
            flat.whole.untyped_storage().resize_(flat.whole.numel() * flat.whole.element_size())

            def unpack_all() -> None:
                for part, shard in zip(packed, flat.whole.chunk(self.world_size), strict=True):
                    unpack(part, shard, self._bits)

            flat.arrive(Exchange([all_gather(packed.view(-1), name=flat.layout.name)], unpack_all))
