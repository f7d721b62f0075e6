"""What it changes when collectives start and when they are waited for: a walk through a step on two streams. No torch.

A model of GPUs, not measured on any. The computing and the sending are those of `seconds`; here each unit waits for its
own gather and its own reduction, by one of the schedules below. What is the same in all of them is left out, such as
the update, and how sending slows the computing beside it. Gathers and reductions share one link: if they have a group
each, two that run beside each other go at half the rate; in one group the second waits for the first.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from zerolab.catalog import Architecture
from zerolab.theory.seconds import (
    RECOMPUTED,
    Setting,
    attention_seconds,
    block_seconds,
    gather_seconds,
    head_seconds,
    reduce_seconds,
)


@dataclass(frozen=True)
class Schedule:
    """When collectives of a unit start and are waited for.

    Args:
        waits_at_half: computing waits for a reduction when the next unit has half its gradients, or else all of them.
        own_groups: gathers do not stand behind reductions.
        gathers_at_half: zero3's backward gathers the next unit at half of this one, or else at its beginning.
        publishes_when_used: in stages 1 and 2 a unit's forward waits for its own updated parameters, or else the update
            waits for all of them.
    """

    waits_at_half: bool = False
    own_groups: bool = True
    gathers_at_half: bool = True
    publishes_when_used: bool = True


PCIE_GEN5 = 64e9  # bytes a second to main memory: NVIDIA's data sheet of the H100 has 128 GB/s for both directions
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
"""By what is changed, from an engine's schedule over gloo to the one over NCCL; and FSDP2's, which starts the next
gather at the beginning of a unit's backward, and waits for a reduction before it starts the next one (torch 2.13,
`_fsdp_param_group.py`: `reduce_scatter_max_input_buffers` is 1)."""


class _Link:
    """The end of the latest gather and of the latest reduction; one of each is under way at most."""

    def __init__(self, own_groups: bool) -> None:
        self._own_groups = own_groups
        self.gathered = self.reduced = 0.0

    def gather(self, start: float, seconds: float) -> None:
        """A gather is started."""
        self.gathered, self.reduced = self._beside(start, seconds, self.reduced)

    def reduce(self, start: float, seconds: float) -> None:
        """A reduction is started."""
        self.reduced, self.gathered = self._beside(start, seconds, self.gathered)

    def _beside(self, start: float, seconds: float, other: float) -> tuple[float, float]:
        """When it ends, and when the other kind does."""
        left = max(other - start, 0.0)
        if not self._own_groups:
            return start + left + seconds, other
        if seconds <= left:
            return start + 2 * seconds, other + seconds
        return start + left + seconds, other + left


def seconds(shape: Architecture, stage: str, setting: Setting, schedule: Schedule) -> float:
    """Seconds of forward and backward of one micro-batch, what they wait for included.

    Args:
        shape: the model, of equal blocks and a root unit, which holds the embedding and the output.
        stage: ddp, zero1, zero2 or zero3.
        setting: what it runs on.
        schedule: what waits for what.
    """
    return _forward(shape, stage, setting, schedule) + _backward(shape, stage, setting, schedule)


def _forward(shape: Architecture, stage: str, setting: Setting, schedule: Schedule) -> float:
    block, gather, first = (
        block_seconds(shape, setting),
        gather_seconds(shape.block_params, setting),
        gather_seconds(shape.root_params, setting),
    )
    head = head_seconds(shape, setting)
    if stage == "ddp":
        return shape.depth * block + head
    if stage != "zero3" and not schedule.publishes_when_used:
        return first + shape.depth * (gather + block) + head
    now, arrived = first, first + gather
    for _ in range(shape.depth):
        now = max(now, arrived)
        # zero3 gathers one unit ahead; what is published has all been asked for at the update.
        arrived = (now if stage == "zero3" else arrived) + gather
        now += block
    return now + head


def offload_seconds(shape: Architecture, stage: str, setting: Setting, *, own_stream: bool) -> float:
    """Seconds that an offloaded update waits for mean gradients, by the schedule over NCCL.

    Args:
        shape: the model, as of `seconds`.
        stage: ddp, zero1, zero2 or zero3.
        setting: what it runs on.
        own_stream: each unit's mean leaves when it is there; else all of them when the backward is over.
    """
    numels = [shape.block_params] * shape.depth + [shape.root_params]
    ways = [4 * numel / (1 if stage == "ddp" else setting.world_size) / PCIE_GEN5 for numel in numels]
    if not own_stream:
        return sum(ways)
    means = _means(shape, stage, setting, NCCL)
    arrived = 0.0
    for at, way in zip(means, ways, strict=True):  # one after the other
        arrived = max(arrived, at) + way
    return arrived - means[-1]


def _backward(shape: Architecture, stage: str, setting: Setting, schedule: Schedule) -> float:
    return _means(shape, stage, setting, schedule)[-1]


def _means(shape: Architecture, stage: str, setting: Setting, schedule: Schedule) -> list[float]:
    """When each unit's mean gradient is there, from the backward's beginning; the root's is its end."""
    again = RECOMPUTED[setting.checkpointing]
    half = ((2 + again) * block_seconds(shape, setting) + attention_seconds(shape, setting) / 2) / 2
    gather = gather_seconds(shape.block_params, setting) if stage == "zero3" else 0.0
    now = gather_seconds(shape.root_params, setting) if stage == "zero3" else 0.0
    link = _Link(schedule.own_groups)
    link.gather(now, gather)
    now += 2 * head_seconds(shape, setting)
    means = []
    for left in reversed(range(shape.depth)):  # units that come after this one, but for the root
        now = max(now, link.gathered)
        if left and not schedule.gathers_at_half:
            link.gather(now, gather)
        now += half
        if schedule.waits_at_half:
            now = max(now, link.reduced)
        if left and schedule.gathers_at_half:
            link.gather(now, gather)
        now = max(now + half, link.reduced)
        means.append(now)  # of the unit before, whose reduction is waited for here
        link.reduce(now, reduce_seconds(stage, shape.block_params, setting))
    last = max(now, link.reduced)
    return [*means[1:], last, last + reduce_seconds(stage, shape.root_params, setting)]
