"""The last whole checkpoint.

A run on `N` ranks was killed. Each rank wrote its files to a disk of its own, and the saves ended at different moments;
some files are half written. Write the function that finds the save to go on from. It gets

* `written`: one number for each save, the oldest first: 1 where this rank's file is whole, 0 where it is not.

Return the number of the last save that is whole on **all** ranks, counted from 0, on every rank; -1 if there is none.

Targets, on 2, 3, 1 and 4 ranks:

* the same, right number on every rank;
* one `all_reduce` on every rank, and no other exchange: `dist.all_reduce(tensor, op)`, in place, where `op` is
  `dist.ReduceOp.SUM`, `MIN`, `MAX` or `PRODUCT`.
"""

import random

import numpy as np
import torch
import torch.distributed as dist

from zerolab.exercises import Wrong
from zerolab.exercises.harness.onranks import Arguments, RankTargets


def last_whole(written: torch.Tensor) -> int:
    """The least that any rank has of each save; what is left are the saves that all have."""
    everywhere = written.clone()
    dist.all_reduce(everywhere, dist.ReduceOp.MIN)
    whole = everywhere.nonzero()
    return int(whole[-1]) if len(whole) else -1


def draw(dice: random.Random, world_size: int) -> Arguments:
    """After the last whole save every rank has later ones that another lacks, and the very last one is nobody's.

    Two from before it are not whole either: who counts those that all have is else as far off as who takes the last but
    one. On 3 ranks none is whole.
    """
    answer = -1 if world_size == 3 else dice.randrange(4, 7)
    saves = answer + 2 + world_size + dice.randrange(3)
    written = np.array([[dice.random() < 0.7 for _ in range(saves)] for _ in range(world_size)], dtype=np.int64)
    if answer > 0:
        written[:, [0, answer - 1, answer]] = 1
        for save in (answer - 3, answer - 2):
            written[dice.randrange(world_size), save] = 0
    for place, save in enumerate(range(answer + 1, saves - 1)):
        written[:, save] = 1
        written[place % world_size, save] = 0  # so each rank lacks one of them, and with others has some
    written[:, -1] = 0
    return [(each,) for each in written]


def _last(row: "np.ndarray[tuple[int], np.dtype[np.int64]]") -> int:
    return int(row.nonzero()[0][-1]) if row.any() else -1


def _of_all(arguments: Arguments) -> "np.ndarray[tuple[int, int], np.dtype[np.int64]]":
    return np.stack([written for (written,) in arguments])


solution = last_whole
hole = "find out which saves all ranks have, and take the last"
given = """import torch
import torch.distributed as dist"""
look_for = "When it passes, the timeline has one small bar on each rank: that is all the ranks have to tell each other."
targets = RankTargets(
    draw=draw,
    wanted=lambda arguments, _rank: _last(_of_all(arguments).min(axis=0)),
    collectives=lambda _world_size: ("all_reduce",),
)
hints = (
    "A save is whole if every rank has it. No single number of a rank says enough: all have to tell which they have.",
    "All ranks have it where the smallest of their numbers is 1.",
    "`all_reduce` of a copy with `dist.ReduceOp.MIN`; then the last place that is not 0, by `nonzero()`.",
)
REDUCED = """    dist.all_reduce(everywhere, dist.ReduceOp.MIN)
"""
FOUND = "int(whole[-1]) if len(whole) else -1"
wrong = (
    Wrong(
        says="takes this rank's own last save, which another rank may have half written",
        gives=lambda arguments, rank: _last(arguments[rank][0]),
        replace=REDUCED,
        by="",
    ),
    Wrong(
        says="takes the earliest of the ranks' last saves: that a rank has a later one does not say that it has this",
        gives=lambda arguments, _rank: min(_last(written) for (written,) in arguments),
        whole="""
def last_whole(written):
    mine = written.nonzero()
    last = mine[-1] if len(mine) else torch.tensor([-1])
    dist.all_reduce(last, dist.ReduceOp.MIN)
    return int(last)
""",
    ),
    Wrong(
        says="takes the last save that any rank has",
        gives=lambda arguments, _rank: _last(_of_all(arguments).max(axis=0)),
        replace="ReduceOp.MIN",
        by="ReduceOp.MAX",
    ),
    Wrong(
        says="takes the first whole save, and loses all the training after it",
        gives=lambda arguments, _rank: _first(_of_all(arguments).min(axis=0)),
        replace="whole[-1]",
        by="whole[0]",
    ),
    Wrong(
        says="counts the saves that all ranks have; one that some rank lacks has a number, too",
        gives=lambda arguments, _rank: int(_of_all(arguments).min(axis=0).sum()) - 1,
        replace=FOUND,
        by="len(whole) - 1",
    ),
    Wrong(
        says="answers 0 where there is none, which is the number of the first save",
        gives=lambda arguments, _rank: max(0, _last(_of_all(arguments).min(axis=0))),
        replace="else -1",
        by="else 0",
    ),
    Wrong(
        says="the target is all_reduce",
        replace=REDUCED,
        by="    for save in range(len(written)):\n        dist.all_reduce(everywhere[save], dist.ReduceOp.MIN)\n",
    ),
    Wrong(
        says="`last_whole` returned nothing on rank 1",
        replace=f"return {FOUND}",
        by=f"return ({FOUND}) if dist.get_rank() == 0 else None",
    ),
)


def _first(row: "np.ndarray[tuple[int], np.dtype[np.int64]]") -> int:
    return int(row.argmax()) if row.any() else -1
