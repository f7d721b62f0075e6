"""How much it matters when collectives start and are waited for: a walk through a step on two streams. No torch.

A model of GPUs, not measured on any. The times of computing and sending are those of `seconds`; here each unit waits
for its own gather and its own reduction, under one of the schedules below. What is the same in all of them is left out,
such as the update, and how sending slows the computing that overlaps it. Gathers and reductions share one link: if each
kind has its own group, two that overlap run at half the rate; in one group the second waits for the first.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from zerolab.theory.job import Job
from zerolab.theory.seconds import (
    RECOMPUTED,
    attention_seconds,
    block_seconds,
    gather_seconds,
    head_seconds,
    reduce_seconds,
)


@dataclass(frozen=True)
class Schedule:
    """When the collectives of a unit start and are waited for.

    Args:
        waits_at_half: computing waits for a reduction once the next unit has half its gradients; else once it has all.
        own_groups: gathers do not queue behind reductions.
        gathers_at_half: zero3's backward gathers the next unit halfway through this one; else at the start of this one.
        publishes_when_used: in stages 1 and 2 a unit's forward waits for its own updated parameters; else the update
            waits for all of them.
    """

    waits_at_half: bool = False
    own_groups: bool = True
    gathers_at_half: bool = True
    publishes_when_used: bool = True


PCIE_GEN5 = 64e9  # bytes per second to main memory: NVIDIA's H100 data sheet has 128 GB/s for both directions
GLOO = Schedule(waits_at_half=True, own_groups=False, publishes_when_used=False)
NCCL = Schedule()
FSDP2 = Schedule(gathers_at_half=False)
SCHEDULES = {
    "as over gloo": GLOO,
    "two groups": replace(GLOO, own_groups=True),
    "late waits": replace(GLOO, waits_at_half=False),
    "both": replace(GLOO, own_groups=True, waits_at_half=False),
    "and parameters when used": NCCL,
    "FSDP2": FSDP2,
}
"""Named by what changes, from an engine's schedule over gloo to the one over NCCL; and FSDP2's, which starts the next
gather at the beginning of a unit's backward, and waits for a reduction before it starts the next one (torch 2.13,
`_fsdp_param_group.py`: `reduce_scatter_max_input_buffers` is 1)."""


class _Link:
    """When the latest gather and the latest reduction end; at most one of each is under way."""

    def __init__(self, own_groups: bool) -> None:
        self._own_groups = own_groups
        self.gathered = self.reduced = 0.0

    def gather(self, start: float, seconds: float) -> None:
        """A gather starts."""
        self.gathered, self.reduced = self._beside(start, seconds, self.reduced)

    def reduce(self, start: float, seconds: float) -> None:
        """A reduction starts."""
        self.reduced, self.gathered = self._beside(start, seconds, self.gathered)

    def _beside(self, start: float, seconds: float, other: float) -> tuple[float, float]:
        """When it ends, and when the one of the other kind does."""
        left = max(other - start, 0.0)
        if not self._own_groups:
            return start + left + seconds, other
        if seconds <= left:
            return start + 2 * seconds, other + seconds
        return start + left + seconds, other + left


def seconds(stage: str, job: Job, schedule: Schedule) -> float:
    """Seconds that forward and backward of one micro-batch take, including what they wait for.

    Args:
        stage: ddp, zero1, zero2 or zero3.
        job: what is trained on what: a model of equal blocks and a root unit, which holds the embedding and the output.
        schedule: what waits for what.
    """
    return _forward(stage, job, schedule) + _backward(stage, job, schedule)


def _forward(stage: str, job: Job, schedule: Schedule) -> float:
    block, gather, first = (
        block_seconds(job),
        gather_seconds(job.shape.block_params, job),
        gather_seconds(job.shape.root_params, job),
    )
    head = head_seconds(job)
    if stage == "ddp":
        return job.shape.depth * block + head
    if stage != "zero3" and not schedule.publishes_when_used:
        return first + job.shape.depth * (gather + block) + head
    now, arrived = first, first + gather
    for _ in range(job.shape.depth):
        now = max(now, arrived)
        # zero3 gathers one unit ahead; zero1 and zero2 start publishing all units at the update.
        arrived = (now if stage == "zero3" else arrived) + gather
        now += block
    return now + head


def offload_seconds(stage: str, job: Job, *, own_stream: bool) -> float:
    """Seconds that an offloaded update waits for mean gradients, under the schedule over NCCL.

    Args:
        stage: ddp, zero1, zero2 or zero3.
        job: as for `seconds`.
        own_stream: each unit's mean is copied as soon as it exists; else all of them once backward is over.
    """
    numels = [job.shape.block_params] * job.shape.depth + [job.shape.root_params]
    ways = [4 * numel / (1 if stage == "ddp" else job.world_size) / PCIE_GEN5 for numel in numels]
    if not own_stream:
        return sum(ways)
    means = _means(stage, job, NCCL)
    arrived = 0.0
    for at, way in zip(means, ways, strict=True):  # copied one after the other
        arrived = max(arrived, at) + way
    return arrived - means[-1]


def _backward(stage: str, job: Job, schedule: Schedule) -> float:
    return _means(stage, job, schedule)[-1]


def _means(stage: str, job: Job, schedule: Schedule) -> list[float]:
    """When each unit's mean gradient is ready, from the start of backward; the root's comes last, at the end of it."""
    again = RECOMPUTED[job.checkpointing]
    half = ((2 + again) * block_seconds(job) + attention_seconds(job) / 2) / 2
    gather = gather_seconds(job.shape.block_params, job) if stage == "zero3" else 0.0
    now = gather_seconds(job.shape.root_params, job) if stage == "zero3" else 0.0
    link = _Link(schedule.own_groups)
    link.gather(now, gather)
    now += 2 * head_seconds(job)
    means = []
    for left in reversed(range(job.shape.depth)):  # units still to come after this one, except the root
        now = max(now, link.gathered)
        if left and not schedule.gathers_at_half:
            link.gather(now, gather)
        now += half
        if schedule.waits_at_half:
            now = max(now, link.reduced)
        if left and schedule.gathers_at_half:
            link.gather(now, gather)
        now = max(now + half, link.reduced)
        means.append(now)  # the previous unit's, whose reduction is waited for here
        link.reduce(now, reduce_seconds(stage, job.shape.block_params, job))
    last = max(now, link.reduced)
    return [*means[1:], last, last + reduce_seconds(stage, job.shape.root_params, job)]
