"""Your rows from a file.

A model is in a safetensors file, and each rank needs its rows of a weight. As in FSDP2, every rank but the last ones
has `ceil(rows / N)` of them, and the last ones have what is left, which may be none. Write the function that reads
them. It gets

* `path`: the file;
* `name`: the weight's name in it.

Return this rank's rows: a tensor of shape [its rows, columns] that has memory of its own. Opened by
`safe_open(path, framework="pt")`, a file has `get_slice(name)`: of that, `get_shape()` is the shape of the whole
weight, and `[start:stop]` its rows. What you get is a view of the file, which is mapped into memory; it keeps the
mapping, and `clone()` copies it.

Targets, on 1, 2, 3 and 4 ranks:

* every rank returns its rows, also where the last rank has none;
* nothing is sent, and beside the mapped weight no rank has more than its rows.
"""

import random
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import safetensors.torch  # noqa: F401  (what is forbidden must be there)
import torch
import torch.distributed as dist
from safetensors import safe_open

from zerolab.exercises import RankTargets, Wrong
from zerolab.exercises.harness.plain import Words
from zerolab.exercises.harness.recorded import SLACK, outside_in_words
from zerolab.exercises.harness.stored import StoredTensors
from zerolab.exercises.harness.targets import Judgement

if TYPE_CHECKING:
    from zerolab.recording.recording import Recording


def read_rows(path: Any, name: str) -> torch.Tensor:
    """Of the file only these rows are read."""
    world_size, rank = dist.get_world_size(), dist.get_rank()
    with safe_open(path, framework="pt") as file:
        piece = file.get_slice(name)
        rows = piece.get_shape()[0]
        most = -(-rows // world_size)
        start, stop = min(rank * most, rows), min((rank + 1) * most, rows)
        mine: torch.Tensor = piece[start:stop].clone()
    return mine


def draw(dice: random.Random, world_size: int) -> list[tuple[Any, ...]]:
    """A weight whose rows N does not divide, beside another one; on four ranks the last one has none."""
    rows = 9 if world_size == 4 else dice.randrange(3, 6) * world_size + min(1, world_size - 1)
    numbers = np.random.default_rng(dice.randrange(2**31))
    shapes = {"bias": (rows,), "weight": (rows, dice.randrange(4000, 5000))}
    stored = StoredTensors({name: numbers.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()})
    return [(stored, "weight")] * world_size


def rows_of(arguments: list[tuple[Any, ...]], rank: int) -> Any:
    """What this rank owns."""
    stored, name = arguments[rank]
    weight = stored.arrays()[name]
    most = -(-len(weight) // len(arguments))
    return weight[rank * most : (rank + 1) * most].copy()


def floored(arguments: list[tuple[Any, ...]], rank: int) -> Any:
    """The rows if the size is rounded down."""
    stored, name = arguments[rank]
    weight = stored.arrays()[name]
    most = len(weight) // len(arguments)
    return weight[rank * most : (rank + 1) * most].copy()


def left_to_the_last(arguments: list[tuple[Any, ...]], rank: int) -> Any:
    """The rows if the last rank takes what is left."""
    stored, name = arguments[rank]
    weight = stored.arrays()[name]
    return weight[rank * (len(weight) // len(arguments)) :] if rank == len(arguments) - 1 else floored(arguments, rank)


def read_into_memory(recording: "Recording", arguments: list[tuple[Any, ...]]) -> Iterator[Judgement]:
    """Who holds more than its rows outside of torch, where nothing is mapped."""
    for rank, (_, outside) in enumerate(recording.results or []):
        rows = rows_of(arguments, rank).nbytes
        if outside > rows + SLACK:
            yield "scratch", outside_in_words(rank, outside, rows)


def with_its_memory(returned: Any) -> Any:
    """An array of numpy's, or a tensor that is a view of something larger, as a sentence."""
    if isinstance(returned, np.ndarray):
        return Words("an array of numpy's, where a tensor is asked for")
    if isinstance(returned, torch.Tensor) and returned.untyped_storage().nbytes() > returned.nbytes:
        size = returned.untyped_storage().nbytes()
        return Words(f"a view of a tensor of {size:,} bytes, and keeps all of them: clone() your rows")
    return returned


solution = read_rows
hole = "read this rank's rows, and no others"
given = "import torch\nimport torch.distributed as dist\nfrom safetensors import safe_open"
look_for = "When it passes, the ranks have sent nothing: each of them has its rows straight from the file."
targets = RankTargets(
    draw=draw,
    wanted=lambda arguments, rank: torch.from_numpy(rows_of(arguments, rank)),
    reads=with_its_memory,
    forbids=("safetensors.torch:load",),
    seen=read_into_memory,
    collectives=lambda _world_size: (),
    # What is mapped counts as held, the whole weight, however little of it is read.
    scratch=lambda arguments, _world_size: arguments[0].arrays()[arguments[1]].nbytes,
)
hints = (
    "How many rows are there? `get_slice(name).get_shape()` says so, and reads none of them.",
    "`most = -(-rows // N)`; rank `r` begins at `r * most`. Neither end may lie beyond the last row.",
    "`piece[start:stop].clone()`, while the file is open.",
)
wrong = (
    Wrong(
        says="rounds the size down, so that the last rows belong to nobody",
        replace="-(-rows // world_size)",
        by="rows // world_size",
        gives=lambda arguments, rank: torch.from_numpy(floored(arguments, rank)),
    ),
    Wrong(
        says="gives all that is left to the last rank",
        gives=lambda arguments, rank: torch.from_numpy(left_to_the_last(arguments, rank)),
        whole="""
def read_rows(path, name):
    world_size, rank = dist.get_world_size(), dist.get_rank()
    with safe_open(path, framework="pt") as file:
        piece = file.get_slice(name)
        rows = piece.get_shape()[0]
        size = rows // world_size
        return piece[rank * size : rows if rank == world_size - 1 else (rank + 1) * size].clone()
""",
    ),
    Wrong(says="bytes, and keeps all of them: clone() your rows", replace=".clone()", by=""),
    Wrong(
        says="bytes beside its arguments",
        whole="""
def read_rows(path, name):
    world_size, rank = dist.get_world_size(), dist.get_rank()
    with safe_open(path, framework="pt") as file:
        weight = file.get_tensor(name).clone()
    most = -(-len(weight) // world_size)
    return weight[rank * most : (rank + 1) * most].clone()
""",
    ),
    Wrong(
        says="the target is nothing",
        whole="""
def read_rows(path, name):
    world_size, rank = dist.get_world_size(), dist.get_rank()
    with safe_open(path, framework="pt") as file:
        piece = file.get_slice(name)
        rows = piece.get_shape()[0]
        most = -(-rows // world_size)
        mine = piece[min(rank * most, rows) : min((rank + 1) * most, rows)].clone()
    dist.all_reduce(mine.new_zeros(1))
    return mine
""",
    ),
    Wrong(says="`read_rows` returned nothing", replace="    return mine\n", by=""),
)
