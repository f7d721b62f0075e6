"""How far each rank's clock is from rank 0's, asked over the process group.

A reading is a ping-pong: rank 0 notes the time, the other rank answers with its own, rank 0 notes the time again. The
answer came somewhere in between, so half the round trip bounds the error, and the fastest of many rounds counts
(Cristian 1989, "Probabilistic clock synchronization").
"""

from collections.abc import Callable
from time import monotonic_ns

import torch
import torch.distributed as dist

from zerolab.recording.clocks import Reading

# Enough that some are not interrupted: only the fastest counts.
ROUNDS = 64


def read(clock: Callable[[], int] = monotonic_ns) -> list[Reading]:
    """Compares all ranks' clocks, in nanoseconds, with rank 0's. Collective: a reading a rank there, none elsewhere."""
    if dist.get_rank() != 0:
        _answer(clock)
        return []
    # Rank 0 is the clock, and exactly right by definition.
    here = Reading(clock(), 0, 0)
    return [here, *(_ask(rank, clock) for rank in range(1, dist.get_world_size()))]


def _ask(rank: int, clock: Callable[[], int]) -> Reading:
    """Rank 0's side of the ping-pong: the reading of the fastest round."""
    answer = torch.zeros(1, dtype=torch.int64)
    readings = []
    for _ in range(ROUNDS):
        before = clock()
        dist.send(answer, rank)
        dist.recv(answer, rank)
        after, theirs = clock(), int(answer)
        half = (after - before + 1) // 2
        readings.append(Reading(theirs, theirs - before - half, half))
    return min(readings, key=lambda reading: reading.uncertainty)


def _answer(clock: Callable[[], int]) -> None:
    """The other ranks' side: answers each question with the time."""
    question = torch.zeros(1, dtype=torch.int64)
    for _ in range(ROUNDS):
        dist.recv(question, 0)
        dist.send(torch.tensor([clock()]), 0)
