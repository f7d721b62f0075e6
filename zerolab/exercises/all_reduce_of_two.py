"""An all-reduce made of two.

Write `all_reduce` with the two halves that it is made of. Your function gets

* `flat`: a tensor of `world_size` equal parts, with different numbers on every rank.

Afterwards `flat` itself must hold, on every rank, the sum over all ranks. There is nothing to return.

`reduce_scatter(flat)` adds up each part on its owner: rank `r` gets the sum of part `r`, in place, and the other parts
keep what they held. `all_gather(flat)` sends each owner's part to everyone, in place. Both start the exchange; call
`.wait()` on what they return before anything else touches `flat`.

Targets, on 1, 2, 3 and 4 ranks:

* every rank's `flat` holds the sum;
* exactly one `reduce_scatter` and one `all_gather`, and a wait for each;
* `2 (N-1)/N` of the flat sent, with at most one part of extra memory (scratch).
"""

import random
from typing import Any

import numpy as np
import torch

from zerolab.engines.collectives import all_gather, reduce_scatter
from zerolab.exercises import RankTargets, Wrong


def my_all_reduce(flat: torch.Tensor) -> None:
    """Brings each sum together at its owner, then hands all of them out."""
    reduce_scatter(flat).wait()
    all_gather(flat).wait()


def draw(dice: random.Random, world_size: int) -> list[tuple[Any, ...]]:
    """One flat for each rank."""
    # Large enough that a copy of it is far above the few bytes that any answer may use.
    part = dice.randrange(4000, 6000)
    numbers = np.random.default_rng(dice.randrange(2**31))
    return [(numbers.standard_normal(part * world_size).astype(np.float32),) for _ in range(world_size)]


def total(arguments: list[tuple[Any, ...]], _rank: int) -> Any:
    """The sum over all ranks, in rank order as `reduce_scatter` adds."""
    return torch.from_numpy(sum(flat for (flat,) in arguments))


def parts(flat: Any, world_size: int) -> list[Any]:
    """The equal parts of a flat; a copy."""
    return np.split(flat.copy(), world_size)


def only_scattered(arguments: list[tuple[Any, ...]], rank: int) -> Any:
    """The sum in the own part, and in the others what was there."""
    mine, world_size = parts(arguments[rank][0], len(arguments)), len(arguments)
    mine[rank] = parts(total(arguments, rank).numpy(), world_size)[rank]
    return torch.from_numpy(np.concatenate(mine))


def only_gathered(arguments: list[tuple[Any, ...]], _rank: int) -> Any:
    """Each owner's part as it was."""
    return torch.from_numpy(np.concatenate([parts(flat, len(arguments))[r] for r, (flat,) in enumerate(arguments)]))


def gathered_first(arguments: list[tuple[Any, ...]], rank: int) -> Any:
    """Each owner's part as it was; the own one N times, because by then all ranks hold the same."""
    pieces = parts(only_gathered(arguments, rank).numpy(), len(arguments))
    pieces[rank] = pieces[rank] * len(arguments)
    return torch.from_numpy(np.concatenate(pieces))


solution = my_all_reduce
hole = "add up, then hand out"
given = (
    "import torch.distributed as dist\n\nfrom zerolab.engines.collectives import all_gather, all_reduce, reduce_scatter"
)
look_for = "The timeline shows two bars on each rank, one after the other, of the same size."
targets = RankTargets(
    draw=draw,
    wanted=total,
    in_place=0,
    collectives=lambda _world_size: ("reduce_scatter", "all_gather"),
    sent=lambda arguments, world_size: 2 * (world_size - 1) * (len(arguments[0]) // world_size),
    # A reduce-scatter receives what it adds up; more than one part at a time is not needed.
    scratch=lambda arguments, world_size: arguments[0].nbytes // world_size,
)
hints = (
    "An all-reduce leaves every sum on every rank. Where is each sum after a `reduce_scatter`?",
    "After `reduce_scatter(flat).wait()` rank `r` has the sum of part `r`, and nobody else has it yet.",
    "`all_gather(flat).wait()` sends each rank's own part, which is the sum by then, to all others.",
)
wrong = (
    Wrong(
        says="never hands the sums out: each rank has the sum of its own part only",
        replace="    all_gather(flat).wait()\n",
        by="",
        gives=only_scattered,
    ),
    Wrong(
        says="never adds anything up: it hands out the owners' parts as they were",
        replace="    reduce_scatter(flat).wait()\n",
        by="",
        gives=only_gathered,
    ),
    Wrong(
        says="hands out first and adds up afterwards, when all ranks hold the same already",
        whole="""
def my_all_reduce(flat):
    all_gather(flat).wait()
    reduce_scatter(flat).wait()
""",
        gives=gathered_first,
    ),
    Wrong(
        says="leaves `flat` as it was: the sum belongs in `flat` itself",
        whole="""
def my_all_reduce(flat):
    copy = flat.clone()
    reduce_scatter(copy).wait()
    all_gather(copy).wait()
    return copy
""",
        gives=lambda arguments, rank: torch.from_numpy(arguments[rank][0]),
    ),
    Wrong(says="never waited for its reduce_scatter", replace="reduce_scatter(flat).wait()", by="reduce_scatter(flat)"),
    Wrong(
        says="gives the mean; the sum was asked for",
        replace="    all_gather(flat).wait()\n",
        by="    all_gather(flat).wait()\n    flat.div_(dist.get_world_size())\n",
        gives=lambda arguments, rank: total(arguments, rank) / len(arguments),
    ),
    Wrong(
        says="started all_reduce; the target is reduce_scatter, all_gather",
        whole="""
def my_all_reduce(flat):
    all_reduce(flat).wait()
""",
    ),
    Wrong(
        says="started reduce_scatter, 2 all_gather",
        replace="    all_gather(flat).wait()\n",
        by="    all_gather(flat).wait()\n    all_gather(flat).wait()\n",
    ),
    Wrong(
        says="bytes beside its arguments",
        whole="""
def my_all_reduce(flat):
    copy = flat.clone()
    reduce_scatter(copy).wait()
    all_gather(copy).wait()
    flat.copy_(copy)
""",
    ),
)
