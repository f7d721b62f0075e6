"""An all-gather around a ring.

A rank may talk to its neighbours only, as on a machine whose links form a ring. Write `all_gather` for it. Your
function gets

* `flat`: a tensor of `world_size` equal parts, `flat.chunk(world_size)`. Part `rank` holds this rank's numbers, the
  other parts hold nothing in particular;
* `rank` and `world_size`.

Afterwards `flat` itself must hold every rank's part, on every rank. There is nothing to return.

In each of `N - 1` turns a rank sends one part to the rank on its right, `(rank + 1) % world_size`, and receives another
from the rank on its left, straight into its place in `flat`. In the first turn it sends its own part, and then always
the part that has just arrived. `dist.isend(tensor, dst=peer)` and `dist.irecv(tensor, src=peer)` start a message; call
`.wait()` on what they return, and not before both of a turn are started. (Over NCCL give both to
`dist.batch_isend_irecv`: a message started by itself waits there for its peer, and a ring of such sends never starts.)

Targets, on 1, 2, 3 and 4 ranks:

* every rank's `flat` holds all parts, each in its place;
* `N - 1` sends, all of them to the right, and `N - 1` receives, and a wait for each;
* `(N-1)/N` of the flat sent, as with messages to everybody; no extra memory (scratch).
"""

# mypy: disable-error-code="union-attr"
# (To torch a message may be None, for who is not of the group.)

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from zerolab.exercises import RankTargets, Wrong


def ring_all_gather(flat: torch.Tensor, rank: int, world_size: int) -> None:
    """Hands on, turn by turn, what came from the left."""
    parts = flat.chunk(world_size)
    right, left = (rank + 1) % world_size, (rank - 1) % world_size
    for turn in range(world_size - 1):
        coming = (rank - turn - 1) % world_size
        # Both are started before either is waited for: else all ranks would wait for a message that none has sent.
        receive = dist.irecv(parts[coming], src=left)
        send = dist.isend(parts[(rank - turn) % world_size], dst=right)
        receive.wait()
        send.wait()


def draw(dice: random.Random, world_size: int) -> list[tuple[Any, ...]]:
    """For each rank a flat of which only its own part is not zero."""
    part = dice.randrange(4000, 6000)
    numbers = np.random.default_rng(dice.randrange(2**31))
    arguments = []
    for rank in range(world_size):
        # Zeros elsewhere, so that a part that never came is seen in the value, on every rank.
        flat = np.zeros(part * world_size, dtype=np.float32)
        flat[rank * part : (rank + 1) * part] = numbers.standard_normal(part)
        arguments.append((flat, rank, world_size))
    return arguments


def everything(arguments: list[tuple[Any, ...]], _rank: int) -> Any:
    """Every rank's part in its place."""
    return torch.from_numpy(sum(flat for flat, _, _ in arguments))


def around(
    arguments: list[tuple[Any, ...]], turns: int, step: int, sends: Callable[[int, int], int]
) -> list[list[Any]]:
    """The parts of each rank when, in each turn, rank `r` gets part `sends(r - step, turn)` of rank `r - step`."""
    world_size = len(arguments)
    parts = [np.split(flat.copy(), world_size) for flat, _, _ in arguments]
    for turn in range(turns):
        sent = [parts[rank][sends(rank, turn) % world_size].copy() for rank in range(world_size)]
        for rank in range(world_size):
            parts[rank][(rank - turn - 1) % world_size] = sent[(rank - step) % world_size]
    return parts


def always_own(arguments: list[tuple[Any, ...]], rank: int) -> Any:
    """What comes of sending one's own part in each turn."""
    return torch.from_numpy(np.concatenate(around(arguments, len(arguments) - 1, 1, lambda r, _turn: r)[rank]))


def one_short(arguments: list[tuple[Any, ...]], rank: int) -> Any:
    """What comes of one turn too few."""
    return torch.from_numpy(np.concatenate(around(arguments, len(arguments) - 2, 1, lambda r, turn: r - turn)[rank]))


def backwards(arguments: list[tuple[Any, ...]], rank: int) -> Any:
    """What comes of sending to the left, with the places of a ring to the right."""
    return torch.from_numpy(np.concatenate(around(arguments, len(arguments) - 1, -1, lambda r, turn: r - turn)[rank]))


solution = ring_all_gather
hole = "hand on what came from the left"
given = "import torch.distributed as dist"
look_for = (
    "The bars of a rank stand one after the other: a turn can only begin when the one before has brought its part."
)
targets = RankTargets(
    draw=draw,
    wanted=everything,
    in_place=0,
    collectives=lambda world_size: ("send", "recv") * (world_size - 1),
    sent=lambda arguments, world_size: (world_size - 1) * (len(arguments[0]) // world_size),
    # Not on two first: there a turn too few is none at all, and left and right are one.
    world_sizes=(3, 2, 1, 4),
    peers=lambda rank, world_size: ((rank + 1) % world_size,),
    scratch=lambda _arguments, _world_size: 0,
)
hints = (
    "Follow one part around the ring: part 0 is sent by rank 0 in turn 0, by rank 1 in turn 1, by rank 2 in turn 2.",
    "So in turn `t` rank `r` sends part `(r - t) % world_size`, and what arrives is part `(r - t - 1) % world_size`.",
    "Within a turn: start the receive into `parts[...]`, start the send, then wait for both.",
)
wrong = (
    Wrong(
        says="sends its own part in each turn; from the second on it should hand on what has just arrived",
        replace="parts[(rank - turn) % world_size]",
        by="parts[rank]",
        gives=always_own,
    ),
    Wrong(
        says="stops one turn too early: a part has N - 1 links to pass",
        replace="range(world_size - 1)",
        by="range(max(world_size - 2, 0))",
        gives=one_short,
    ),
    Wrong(
        says="sends to the left, but puts what arrives where it would belong in a ring to the right",
        replace="right, left = (rank + 1) % world_size, (rank - 1) % world_size",
        by="left, right = (rank + 1) % world_size, (rank - 1) % world_size",
        gives=backwards,
    ),
    Wrong(says="never waited for its send", replace="        send.wait()\n", by=""),
    Wrong(
        says="it may send to rank",
        whole="""
def ring_all_gather(flat, rank, world_size):
    parts = flat.chunk(world_size)
    peers = [peer for peer in range(world_size) if peer != rank]
    works = [dist.irecv(parts[peer], src=peer) for peer in peers]
    works += [dist.isend(parts[rank], dst=peer) for peer in peers]
    for work in works:
        work.wait()
""",
    ),
    Wrong(
        says="bytes beside its arguments",
        replace="        receive = dist.irecv(parts[coming], src=left)\n",
        by="        buffers = [flat.clone()]\n        receive = dist.irecv(parts[coming], src=left)\n",
    ),
    Wrong(
        says="`ring_all_gather` hangs",
        replace="        send = dist.isend(parts[(rank - turn) % world_size], dst=right)\n        receive.wait()\n",
        by="        receive.wait()\n        send = dist.isend(parts[(rank - turn) % world_size], dst=right)\n",
    ),
)
