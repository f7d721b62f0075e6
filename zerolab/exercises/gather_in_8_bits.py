"""A gather in 8 bits.

Every rank keeps a shard of a unit in fp32, and before the unit computes, all ranks gather it. In 8 bits a quarter of
the bytes travels: each owner rounds its shard, block by block, and sends codes and scales. Your function gets

* `mine`: this rank's shard, one dimension, a multiple of `block` elements;
* `block`: how many elements share a scale.

A block's scale is its largest absolute value, divided by 127. Its codes are the numbers divided by the scale, rounded
to the nearest whole number (`round()`), as `torch.int8`. What a rank computes with is the code times the scale. Return
the whole unit so, all shards end to end, on every rank. `dist.all_gather(parts, part)` fills the list `parts`, one
tensor for each rank, with the `part` of each; a part may be of any dtype.

Targets, on 1, 2, 3 and 4 ranks:

* every rank returns the same numbers, its own shard among them: codes times scales;
* each rank sends one byte for each element and four for each block, to every other rank.
"""

import random
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from zerolab.exercises import RankTargets, Wrong


def gather_in_8_bits(mine: torch.Tensor, block: int) -> torch.Tensor:
    """Codes and scales travel, and every rank multiplies them, the owner too."""
    blocks = mine.view(-1, block)
    scales = blocks.abs().amax(dim=1, keepdim=True) / 127
    codes = (blocks / scales).round().to(torch.int8)
    gathered = []
    for part in (codes, scales):
        parts = [torch.empty_like(part) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, part)
        gathered.append(torch.cat(parts))
    return (gathered[0] * gathered[1]).flatten()


def draw(dice: random.Random, world_size: int) -> list[tuple[Any, ...]]:
    """Shards of blocks of very different sizes."""
    block, count = dice.choice([64, 128, 256]), dice.randrange(3, 6)
    return [(between_codes(dice, count, block).flatten(), block) for _ in range(world_size)]


def between_codes(dice: random.Random, count: int, block: int) -> Any:
    """Blocks, [count, block], of numbers that are no more than 0.3 steps from a code: whoever rounds them finds it."""
    numbers = np.random.default_rng(dice.randrange(2**31))
    codes = numbers.integers(-110, 111, (count, block)) + numbers.uniform(-0.3, 0.3, (count, block))
    codes[np.arange(count), numbers.integers(0, block, count)] = -127  # the largest in size is below zero
    return (codes * 2.0 ** -numbers.integers(6, 14, (count, 1))).astype(np.float32)


def rounded(shard: Any, block: int, rounding: Any = np.round) -> Any:
    """Codes times scales of a shard that is cut into blocks, in its own shape."""
    scales = scales_of(shard, block)
    return (rounding(shard.reshape(-1, block) / scales) * scales).reshape(shard.shape)


def whole(arguments: list[tuple[Any, ...]], rounding: Any = np.round) -> Any:
    """All shards, rounded in their blocks."""
    return torch.from_numpy(np.concatenate([rounded(mine, block, rounding) for mine, block in arguments]))


def with_one_scale(arguments: list[tuple[Any, ...]]) -> Any:
    """All shards, each rounded as one block."""
    return torch.from_numpy(np.concatenate([rounded(mine, mine.size) for mine, _ in arguments]))


def with_own_shard(arguments: list[tuple[Any, ...]], rank: int) -> Any:
    """All shards rounded but the rank's own."""
    mine = arguments[rank][0]
    everything = whole(arguments)
    everything.chunk(len(arguments))[rank][:] = torch.from_numpy(mine)
    return everything


def scales_of(mine: Any, block: int) -> Any:
    """A shard's scales, [blocks, 1]."""
    return abs(mine.reshape(-1, block)).max(axis=1, keepdims=True) / np.float32(127)


def codes_times(arguments: list[tuple[Any, ...]], scales: Any) -> Any:
    """All ranks' codes, times the same scales."""
    codes = [np.round(shard.reshape(-1, block) / scales_of(shard, block)) for shard, block in arguments]
    return torch.from_numpy(np.concatenate([(each * scales).flatten() for each in codes]))


solution = gather_in_8_bits
hole = "round the shard by blocks, gather codes and scales, multiply"
given = "import torch\nimport torch.distributed as dist"
look_for = "When it passes, look at the two all-gathers: that of the scales is small, but it counts."
targets = RankTargets(
    draw=draw,
    wanted=lambda arguments, _rank: whole(arguments),
    sent=lambda arguments, world_size: (world_size - 1) * (arguments[0].size / 4 + arguments[0].size // arguments[1]),
)
hints = (
    "`blocks = mine.view(-1, block)` has a block in each row; `amax(dim=1, keepdim=True)` gives each row's largest.",
    "Two all-gathers: of the codes, which are `torch.int8`, and of the scales, which stay fp32.",
    "`codes * scales` is fp32 again. Do it with what was gathered, for your own shard too.",
)
wrong = (
    Wrong(
        says="takes one scale for the whole shard, whose smaller blocks then lose their digits",
        replace="mine.view(-1, block)",
        by="mine.view(1, -1)",
        gives=lambda arguments, _rank: with_one_scale(arguments),
    ),
    Wrong(
        says="cuts off what is behind the point, where it should round",
        replace=".round()",
        by="",
        gives=lambda arguments, _rank: whole(arguments, np.trunc),
    ),
    Wrong(
        says="keeps this rank's own shard as it was, so that ranks compute with different parameters",
        replace="    return (gathered[0] * gathered[1]).flatten()\n",
        by=(
            "    whole = (gathered[0] * gathered[1]).flatten()\n"
            "    whole.chunk(dist.get_world_size())[dist.get_rank()][:] = mine\n"
            "    return whole\n"
        ),
        gives=with_own_shard,
    ),
    Wrong(
        says="multiplies all ranks' codes with this rank's scales",
        replace="(gathered[0] * gathered[1])",
        by="(gathered[0].unflatten(0, (-1, len(scales))) * scales)",
        gives=lambda arguments, rank: codes_times(arguments, scales_of(*arguments[rank])),
    ),
    Wrong(says="right is", replace="blocks.abs().amax", by="blocks.amax"),
    Wrong(
        says="returns the codes, and leaves out their scales",
        replace="gathered[0] * gathered[1]",
        by="gathered[0].float()",
        gives=lambda arguments, _rank: codes_times(arguments, np.float32(1)),
    ),
    Wrong(
        says="sends 4 bytes for each number, where the codes need one",
        sends=lambda arguments, world_size: (world_size - 1) * arguments[0].size,
        whole="""
def gather_in_8_bits(mine, block):
    parts = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, mine)
    blocks = torch.cat(parts).view(-1, block)
    scales = blocks.abs().amax(dim=1, keepdim=True) / 127
    return ((blocks / scales).round() * scales).flatten()
""",
    ),
    Wrong(
        says="sends the codes with 4 bytes each, where one is enough",
        sends=lambda arguments, world_size: (world_size - 1) * (arguments[0].size + arguments[0].size // arguments[1]),
        replace="for part in (codes, scales):",
        by="for part in (codes.float(), scales):",
    ),
)
