"""Numbers in 8 bits, with a scale for each block of 256 of them: what travels, or is kept, in place of fp32.

A block is divided by its scale, which brings the largest of its numbers to the largest that the format takes, and then
rounded. So a number is rounded according to its own block alone: a large one elsewhere costs it nothing.
(arXiv 2110.02861, section 2.1.)
"""

from typing import NamedTuple

import torch

BLOCK = 256  # elements with one scale
SCALE = torch.float32


class Format(NamedTuple):
    """Numbers of 8 bits: their dtype, what a block's largest element becomes, and the smallest that any becomes."""

    dtype: torch.dtype
    largest: float
    smallest: float | None = None


FORMATS = {
    "int8": Format(torch.int8, 127.0),  # 255 numbers at equal distances
    "fp8": Format(torch.float8_e4m3fn, 448.0),  # closer together around zero: three bits of mantissa
}


def pack(shard: torch.Tensor, bits: Format, what: str = "parameters") -> torch.Tensor:
    """A shard of floating-point numbers, shape [n], in 8 bits, and behind that its scales: shape [bytes], uint8.

    Raises:
        ValueError: the shard has a number that is inf or NaN, which leaves its block no scale.
    """
    missing = -shard.numel() % BLOCK  # the last block is filled up with zeros, which no scale depends on
    blocks = torch.nn.functional.pad(shard.to(SCALE), (0, missing)).view(-1, BLOCK)
    scales = blocks.abs().amax(1, keepdim=True) / bits.largest
    if not scales.is_meta and not scales.isfinite().all():  # a simulated shard has no numbers
        raise ValueError(
            f"{int((~scales.isfinite()).sum())} of {len(scales)} blocks of {BLOCK} {what} hold inf or NaN, and have no "
            "scale: the training has diverged, so lower the learning rate or clip the gradients"
        )
    codes = blocks / torch.where(scales > 0, scales, 1.0)  # a block of zeros has scale 0, and stays zeros
    codes = codes if bits.dtype.is_floating_point else codes.round_()
    codes = codes if bits.smallest is None else codes.clamp_(min=bits.smallest)
    return torch.cat(
        [codes.to(bits.dtype).flatten()[: shard.numel()].view(torch.uint8), scales.flatten().view(torch.uint8)]
    )


def unpack(packed: torch.Tensor, into: torch.Tensor, bits: Format) -> None:
    """Writes into a shard, shape [n], what `pack` made of one as long."""
    codes, scales = packed.tensor_split([into.numel()])
    # Bytes of fp32 numbers may begin anywhere in a message, fp32 numbers may not: so a copy.
    each = scales.clone().view(SCALE).repeat_interleave(BLOCK)[: into.numel()]
    into.copy_(codes.view(bits.dtype).to(SCALE).mul_(each))
