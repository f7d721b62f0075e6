"""Resume on fewer ranks.

A run on `N` ranks was saved in shards, and goes on with only `after` of them. Flats are cut the same way before and
after: of `numel` elements, rank `r` of `n` has those from `r * size` on, `size = ceil(numel / n)` of them, the last
ranks fewer or none. Write the function that moves what has to move, without any rank ever holding the whole. It gets

* `mine`: this rank's shard as it was saved;
* `numel`: elements of the whole flat;
* `after`: with how many ranks it goes on: ranks 0 to `after - 1`;
* `rank`, `world_size`: this rank, and how many there were.

Return the rank's new shard; of a rank that is left out, a tensor without elements. `dist.isend(tensor, rank)` and
`dist.irecv(tensor, rank)` start a message; call `.wait()` on what they return.

Targets, on 1, 2, 3 and 4 ranks:

* every rank returns its new shard;
* every rank sends what it had and does not keep, once, and nothing else; scratch of one shard is free to use.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.distributed as dist

from zerolab.exercises import RankTargets, Wrong
from zerolab.exercises.harness.targets import Judgement, Run

if TYPE_CHECKING:
    from zerolab.exercises.harness.exercise import Exercise
    from zerolab.recording.recording import Recording


def move_shards(mine: torch.Tensor, numel: int, after: int, rank: int, world_size: int) -> torch.Tensor:
    """Where an old span and a new one overlap, there is something to keep or to send."""

    def span(owner: int, ranks: int) -> tuple[int, int]:
        size = -(-numel // ranks)
        return min(owner * size, numel), min((owner + 1) * size, numel)

    had, gets = span(rank, world_size), span(rank, after) if rank < after else (0, 0)
    new = mine.new_empty(gets[1] - gets[0])
    messages: list[Any] = []
    for other in range(world_size):
        first, last = span(other, world_size)
        low, high = max(first, gets[0]), min(last, gets[1])
        if low < high and other == rank:
            new[low - gets[0] : high - gets[0]] = mine[low - had[0] : high - had[0]]
        elif low < high:
            messages.append(dist.irecv(new[low - gets[0] : high - gets[0]], other))
        first, last = span(other, after) if other < after else (0, 0)
        low, high = max(first, had[0]), min(last, had[1])
        if low < high and other != rank:
            messages.append(dist.isend(mine[low - had[0] : high - had[0]], other))
    for message in messages:
        message.wait()
    return new


def draw(dice: random.Random, world_size: int) -> list[tuple[Any, ...]]:
    """A flat that neither number of ranks divides; one rank fewer, so that new shards begin within old ones.

    Of four ranks two go on: rank 3's shard goes to one that is no neighbour.
    """
    return cut(dice, 12 * dice.randrange(300, 500) + 1, 2 if world_size == 4 else max(1, world_size - 1), world_size)


def cut(dice: random.Random, numel: int, after: int, world_size: int) -> list[tuple[Any, ...]]:
    """A flat of so many elements, for each rank its shard."""
    flat = np.random.default_rng(dice.randrange(2**31)).standard_normal(numel).astype(np.float32)
    return [(shard(flat, rank, world_size), numel, after, rank, world_size) for rank in range(world_size)]


@dataclass(frozen=True, kw_only=True)
class Moves(RankTargets):
    """On four ranks there is one run more, with a flat of one element: of three that go on, two get nothing."""

    def runs(self, exercise: "Exercise", world_size: int, seed: int, seconds: float) -> Iterator[Run]:
        """That one comes first, so that the picture is of the other."""
        if world_size == 4:
            of_one = RankTargets(**vars(self) | {"draw": lambda dice, _world_size: cut(dice, 1, 3, 4)})
            (run,) = of_one.runs(exercise, world_size, seed, seconds)

            def judge(recording: "Recording") -> Iterator[Judgement]:
                yield "one element", next((why for _, why in run.judge(recording) if why), "")

            yield replace(run, judge=judge)
        yield from super().runs(exercise, world_size, seed, seconds)


def span(numel: int, owner: int, ranks: int) -> tuple[int, int]:
    """The elements that a rank owns."""
    size = -(-numel // ranks)
    return min(owner * size, numel), min((owner + 1) * size, numel)


def shard(flat: Any, owner: int, ranks: int) -> Any:
    """A rank's part of the flat, a copy; nothing for a rank that does not exist."""
    return flat[slice(*span(len(flat), owner, ranks))].copy() if owner < ranks else flat[:0].copy()


def whole(arguments: list[tuple[Any, ...]]) -> Any:
    """The flat."""
    return np.concatenate([each[0] for each in arguments])


def kept(arguments: tuple[Any, ...]) -> int:
    """How many of its elements a rank keeps."""
    _, numel, after, rank, world_size = arguments
    if rank >= after:
        return 0
    had, gets = span(numel, rank, world_size), span(numel, rank, after)
    return max(0, min(had[1], gets[1]) - max(had[0], gets[0]))


def what_stayed(arguments: list[tuple[Any, ...]], rank: int) -> Any:
    """What a rank has that keeps only what it had: the rest is zero."""
    _, numel, after, _, world_size = arguments[rank]
    flat, had = np.zeros(numel, np.float32), span(numel, rank, world_size)
    flat[slice(*had)] = arguments[rank][0]
    return torch.from_numpy(shard(flat, rank, after))


solution = move_shards
hole = "keep what stays, send what goes, receive what comes"
given = "import torch\nimport torch.distributed as dist"
look_for = "On four ranks, follow rank 3's shard: it goes to one rank, and every other rank hands a piece down."
targets = Moves(
    draw=draw,
    wanted=lambda arguments, rank: torch.from_numpy(shard(whole(arguments), rank, arguments[rank][2])),
    sent=lambda arguments, _world_size: len(arguments[0]) - kept(arguments),
    scratch=lambda arguments, _world_size: arguments[0].nbytes,
)
hints = (
    "Write `span(owner, ranks)` first: the elements that a rank has. You need it for both numbers of ranks.",
    "Rank `a` sends to rank `b` where a's old span and b's new one overlap: from the later start to the earlier end.",
    "Start all messages first and wait for them afterwards; what stays is copied, not sent.",
)
RECEIVES = """    new = mine.new_empty(gets[1] - gets[0])
    messages: list[Any] = []
    for other in range(world_size):
        first, last = span(other, world_size)
        low, high = max(first, gets[0]), min(last, gets[1])
        if low < high and other == rank:
            new[low - gets[0] : high - gets[0]] = mine[low - had[0] : high - had[0]]
        elif low < high:
            messages.append(dist.irecv(new[low - gets[0] : high - gets[0]]"""
wrong = (
    Wrong(
        says="`move_shards` hangs",
        replace="            messages.append(dist.irecv(new[low - gets[0] : high - gets[0]], other))\n",
        by="            new[low - gets[0] : high - gets[0]] = 0\n",
    ),
    Wrong(
        says="receives what comes, and forgets what stays",
        replace="            new[low - gets[0] : high - gets[0]] = mine[low - had[0] : high - had[0]]\n",
        by="            new[low - gets[0] : high - gets[0]] = 0\n",
        gives=lambda arguments, rank: (
            torch.from_numpy(shard(whole(arguments), rank, arguments[rank][2])) - what_stayed(arguments, rank)
        ),
    ),
    Wrong(
        says="gathers the whole flat and cuts the shard out, where only what changes its owner has to move",
        sends=lambda arguments, world_size: (world_size - 1) * -(-arguments[1] // world_size),
        whole="""
def move_shards(mine, numel, after, rank, world_size):
    size = -(-numel // world_size)
    part = mine.new_zeros(size)
    part[: len(mine)] = mine
    whole = mine.new_empty(size * world_size)
    dist.all_gather_into_tensor(whole, part)
    size = -(-numel // after)
    return whole[:numel][rank * size : (rank + 1) * size].clone() if rank < after else mine[:0]
""",
    ),
    Wrong(
        says="sends every rank's shard to all others, where only what changes its owner has to move",
        sends=lambda arguments, world_size: (world_size - 1) * len(arguments[0]),
        whole="""
def move_shards(mine, numel, after, rank, world_size):
    size, larger = -(-numel // world_size), -(-numel // after)
    shards = [mine.new_empty(max(0, min(size, numel - size * other))) for other in range(world_size)]
    shards[rank] = mine
    others = [other for other in range(world_size) if other != rank]
    messages = [dist.isend(mine, other) for other in others]
    messages += [dist.irecv(shards[other], other) for other in others]
    for message in messages:
        message.wait()
    return torch.cat(shards)[rank * larger : (rank + 1) * larger].clone() if rank < after else mine[:0]
""",
    ),
    Wrong(
        says="keeps what stays, and what comes is received into a copy of its place, or not at all",
        gives=what_stayed,
        replace=RECEIVES,
        by=f"{RECEIVES}.clone()".replace("new_empty", "new_zeros"),
    ),
    Wrong(
        says="stand the numbers that belong 1 place further on",
        replace="        size = -(-numel // ranks)\n",
        by="        size = numel // ranks\n",
    ),
    Wrong(
        says="It is `mine` as your function got it",
        whole="""
def move_shards(mine, numel, after, rank, world_size):
    if rank >= after:
        dist.send(mine, rank - 1)
        return mine[:0]
    if rank == after - 1 and after < world_size:
        more = mine.new_empty(numel - len(mine) * after)
        dist.recv(more, rank + 1)
        return torch.cat([mine, more])
    return mine
""",
    ),
    Wrong(says="never waited for", replace="    for message in messages:\n        message.wait()\n", by=""),
    Wrong(
        says="are enough",
        whole="""
def move_shards(mine, numel, after, rank, world_size):
    size, larger = -(-numel // world_size), -(-numel // after)
    messages = [dist.isend(mine, other) for other in range(after) if other != rank]
    if rank >= after:
        for message in messages:
            message.wait()
        return mine[:0]
    shards = [mine.new_empty(max(0, min(size, numel - size * other))) for other in range(world_size)]
    shards[rank] = mine
    messages += [dist.irecv(shards[other], other) for other in range(world_size) if other != rank]
    for message in messages:
        message.wait()
    return torch.cat(shards)[rank * larger : (rank + 1) * larger].clone()
""",
    ),
)
