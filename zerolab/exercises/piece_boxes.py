"""A piece of a flat, in boxes.

A flat is cut wherever its `N`th part ends. So what a rank has of a matrix may begin and end in the middle of a row. A
sharded checkpoint takes boxes only; write the function that cuts a rank's piece into as few as possible. It gets

* `mine`: the rank's elements of the matrix, end to end, a tensor with one dimension;
* `start`: the place of the first of them in the matrix, counted row by row;
* `columns`: the length of a row.

Return a list of `(row, column, block)` in the order of the elements: where the box begins, and its elements, a
tensor of shape `[height, width]`. Rows that the piece has whole are one box together; none is empty.

Targets, on 2, 3, 1 and 4 ranks, each with its own piece:

* the right boxes on every rank, at most three;
* no exchange: a rank knows from `start` alone what it has.
"""

import random
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from zerolab.exercises import Wrong
from zerolab.exercises.harness.onranks import Arguments, RankTargets


def piece_boxes(mine: torch.Tensor, start: int, columns: int) -> list[tuple[int, int, torch.Tensor]]:
    """The rest of a row, then whole rows, then the beginning of a row; each only if it is there."""
    boxes, row, column = [], start // columns, start % columns
    while len(mine):
        if column or len(mine) < columns:
            height, width = 1, min(columns - column, len(mine))
        else:
            height, width = len(mine) // columns, columns
        boxes.append((row, column, mine[: height * width].view(height, width)))
        mine = mine[height * width :]
        row, column = row + height, 0
    return boxes


def draw(dice: random.Random, world_size: int) -> Arguments:
    """One matrix; on 3 ranks the piece in the middle lies within a row, on 4 one begins and ends with a row."""
    columns, rows = dice.randrange(5, 9), 4 * world_size
    cut = dice.randrange(1, columns - 3)  # within a row, with room behind it
    cuts = {
        1: [],
        2: [(rows // 2) * columns + cut],
        3: [3 * columns + cut, 3 * columns + cut + 2],
        4: [3 * columns + cut, 6 * columns, 10 * columns],
    }[world_size]
    matrix = np.random.default_rng(dice.randrange(2**31)).standard_normal(rows * columns).astype(np.float32)
    ends = [0, *cuts, rows * columns]
    return [(matrix[first:last].copy(), first, columns) for first, last in pairwise(ends)]


def cut(mine: Any, start: int, columns: int, *, most_rows: int = 10**9) -> list[Any]:
    """The boxes of a piece, of at most so many rows each."""
    found, row, column = [], *divmod(start, columns)
    while len(mine):
        whole = 0 if column else min(most_rows, len(mine) // columns)
        height, width = (whole, columns) if whole else (1, min(columns - column, len(mine)))
        found.append([row, column, mine[: height * width].reshape(height, width)])
        mine, row, column = mine[height * width :], row + height, 0
    return found


def right(arguments: Arguments, rank: int) -> list[Any]:
    """The boxes of a rank's piece."""
    return cut(*arguments[rank])


def cut_short(arguments: Arguments, rank: int) -> list[Any]:
    """Without the beginning of a row at the end."""
    found, columns = right(arguments, rank), arguments[rank][2]
    ends_within = found[-1][1] == 0 and found[-1][2].shape[1] < columns
    return found[:-1] if ends_within else found


def from_the_edge(arguments: Arguments, rank: int) -> list[Any]:
    """As if the piece began with a row."""
    mine, start, columns = arguments[rank]
    return cut(mine, start // columns * columns, columns)


def turned(arguments: Arguments, rank: int) -> list[Any]:
    """With column and row exchanged."""
    return [[column, row, block] for row, column, block in right(arguments, rank)]


def a_row_further(arguments: Arguments, rank: int) -> list[Any]:
    """As if each box had one row."""
    found = right(arguments, rank)
    return [[found[0][0] + place, column, block] for place, (_, column, block) in enumerate(found)]


def always_three(arguments: Arguments, rank: int) -> list[Any]:
    """The rest of a row, whole rows, and the beginning of a row, be they there or not."""
    mine, start, columns = arguments[rank]
    row, column = divmod(start, columns)
    head, rest = np.split(mine, [min(columns - column, len(mine))])
    whole = len(rest) // columns
    body, tail = np.split(rest, [whole * columns])
    blocks = head.reshape(1, -1), body.reshape(whole, columns), tail.reshape(1, -1)
    places = (row, column), (row + 1, 0), (row + 1 + whole, 0)
    return [[*place, block] for place, block in zip(places, blocks, strict=True)]


solution = piece_boxes
hole = "cut the piece where rows begin and end"
given = "import torch"
look_for = "The timeline stays empty: who owns what is known, and nobody has to ask."
targets = RankTargets(draw=draw, wanted=right, collectives=lambda _world_size: ())
hints = (
    "`divmod(start, columns)` is the row and the column where the piece begins.",
    "Take one box after another from the front: within a row one row high, else as many whole rows as there are.",
    "Three cases that are easily forgotten: the piece begins with a row, it ends with one, it lies within one.",
)
wrong = (
    Wrong(
        says="makes a box of each row; rows that are whole are one together",
        gives=lambda arguments, rank: cut(*arguments[rank], most_rows=1),
        replace="len(mine) // columns, columns",
        by="1, columns",
    ),
    Wrong(
        says="takes the piece to begin at the beginning of a row",
        gives=from_the_edge,
        replace="start % columns",
        by="0",
    ),
    Wrong(
        says="leaves out the beginning of a row at the end",
        gives=cut_short,
        replace="    while len(mine):\n",
        by="    while len(mine) >= columns or (column and len(mine)):\n",
    ),
    Wrong(
        says="gives the column first; a matrix is indexed by row and column",
        gives=turned,
        replace="boxes.append((row, column,",
        by="boxes.append((column, row,",
    ),
    Wrong(
        says="goes one row further after a box, however many rows that has",
        gives=a_row_further,
        replace="row + height, 0",
        by="row + 1, 0",
    ),
    Wrong(
        says="makes three boxes of every piece, also where one of them has nothing in it",
        gives=always_three,
        whole="""
def piece_boxes(mine, start, columns):
    row, column = divmod(start, columns)
    head = mine[: columns - column]
    whole = (len(mine) - len(head)) // columns
    body = mine[len(head) : len(head) + whole * columns]
    tail = mine[len(head) + whole * columns :]
    return [
        (row, column, head.view(1, -1)),
        (row + 1, 0, body.view(whole, columns)),
        (row + 1 + whole, 0, tail.view(1, -1)),
    ]
""",
    ),
    Wrong(says="raised", replace="min(columns - column, len(mine))", by="columns - column"),
)
