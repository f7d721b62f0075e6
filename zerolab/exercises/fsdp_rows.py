"""Which rows are mine.

FSDP2 shards each parameter by rows: it cuts the first dimension into chunks of equal size, and the last chunks may be
smaller, or empty. Write a function that says which rows a rank owns. It gets

* `rows`: the size of the parameter's first dimension;
* `world_size`: the number of ranks, `N`;
* `rank`: which rank asks.

Return `(start, stop)`: the rank owns the rows from `start` up to, and without, `stop`. A rank that owns nothing returns
`(rows, rows)`. `torch.chunk` cuts the same way; here, do it with whole numbers. Nothing runs on ranks: `check` calls
your function with numbers that it draws.

Targets:

* the right rows for each of 32 drawn inputs;
* every row has one owner, and no chunk reaches beyond the last row.
"""

import random
from typing import Any

from zerolab.exercises import FunctionTargets, Wrong


def fsdp_rows(rows: int, world_size: int, rank: int) -> tuple[int, int]:
    """Chunks of the same size, rounded up, cut off at the end."""
    chunk = -(-rows // world_size)
    return min(rank * chunk, rows), min((rank + 1) * chunk, rows)


def draw(dice: random.Random) -> dict[str, Any]:
    """Few rows or many, mostly no multiple of N; sometimes fewer rows than ranks."""
    world_size = dice.choice([1, 2, 3, 4, 8, 8])
    # Fewer rows than ranks leave some with nothing; that is where the arithmetic goes wrong first.
    rows = dice.choice([dice.randrange(1, world_size + 1), dice.randrange(9, 20), dice.randrange(100, 1000)])
    return {"rows": rows, "world_size": world_size, "rank": dice.randrange(world_size)}


edges = (
    lambda world_size, **_: world_size == 1,
    lambda rows, world_size, **_: rows == world_size > 1,
    lambda rows, world_size, **_: rows > world_size > 1 and rows % world_size == 0,
    lambda rows, world_size, rank: 0 < rank == rows < world_size,  # the first rank that owns nothing
    lambda rows, world_size, rank: rows < world_size and rank == world_size - 1 > rows,
    # More rows than ranks, and yet one that owns nothing; and a last chunk that is smaller, and one before it.
    lambda rows, world_size, rank: rows > world_size and fsdp_rows(rows, world_size, rank) == (rows, rows),
    lambda rows, world_size, rank: 0 < rows - rank * -(-rows // world_size) < -(-rows // world_size),
    lambda rows, world_size, rank: 0 < rank < world_size - 1 and rows % world_size == 1 and rows > 20,
)
solution = fsdp_rows
hole = "find the first row and the row after the last"
look_for = "Each row of the table is one call. Look at the last ranks where `N` does not divide the rows."
targets = FunctionTargets(draw=draw, edges=edges, tries=32)
hints = (
    "All chunks but the last ones have the same size: the rows divided by the ranks, rounded up.",
    "Rank `r` begins at `r` chunks and ends one chunk later. Neither may lie beyond the last row.",
    "Nine rows on eight ranks: the chunk is 2, so ranks 0 to 3 own two rows each, rank 4 owns one, the others none.",
)
wrong = (
    Wrong(
        says="rounds the size of a chunk down, so that the last rows belong to nobody",
        replace="-(-rows // world_size)",
        by="rows // world_size",
    ),
    Wrong(
        says="lets the last chunk reach beyond the last row",
        replace="min((rank + 1) * chunk, rows)",
        by="(rank + 1) * chunk",
    ),
    Wrong(says="lets ranks begin beyond the last row", replace="min(rank * chunk, rows), ", by="rank * chunk, "),
    Wrong(
        says="spreads what is left over the first ranks, as `numpy.array_split` does",
        whole="""
def fsdp_rows(rows, world_size, rank):
    size, left = divmod(rows, world_size)
    start = rank * size + min(rank, left)
    return start, start + size + (rank < left)
""",
    ),
    Wrong(
        says="gives all that is left to the last rank",
        whole="""
def fsdp_rows(rows, world_size, rank):
    size = rows // world_size
    return rank * size, rows if rank == world_size - 1 else (rank + 1) * size
""",
    ),
    Wrong(
        says="gives the last row that a rank owns, not the one after it",
        replace="min((rank + 1) * chunk, rows)",
        by="min((rank + 1) * chunk, rows) - 1",
    ),
    Wrong(
        says="gives the first row and how many there are, not the one after the last",
        replace="min((rank + 1) * chunk, rows)",
        by="min((rank + 1) * chunk, rows) - min(rank * chunk, rows)",
    ),
    Wrong(
        says="cuts nothing off: chunks reach, and begin, beyond the last row",
        replace="min(rank * chunk, rows), min((rank + 1) * chunk, rows)",
        by="rank * chunk, (rank + 1) * chunk",
    ),
    Wrong(
        says="gives `(0, 0)` for a rank that owns nothing",
        replace="    return min(rank * chunk, rows), min((rank + 1) * chunk, rows)\n",
        by="    return (rank * chunk, min((rank + 1) * chunk, rows)) if rank * chunk < rows else (0, 0)\n",
    ),
    Wrong(
        says="rounds the size of a chunk to the nearest whole number, now and then down",
        replace="-(-rows // world_size)",
        by="round(rows / world_size)",
    ),
)
