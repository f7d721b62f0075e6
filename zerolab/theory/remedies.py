"""What to try where a model does not fit, in the order in which people try it, what it saves and costs. No torch.

First come a kernel in place of attention's matrix, a line of code and some computing (checkpointing), smaller
micro-batches, of which each keeps the gradients of those before, and a loss without stored logits; then what touches
the optimizer (8 bits, main memory); then other ways to divide (all ranks instead of a node's, each matrix within a
node, each row); at the end, more GPUs. `changes` has them one by one; `ladder` begins with the first three, keeps them,
and adds the others one by one and all together.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import replace
from math import gcd
from typing import Any

from zerolab.tables import Value
from zerolab.theory import seconds
from zerolab.theory.activations import CHECKPOINTING
from zerolab.theory.moments import Job, peak

DOUBLINGS = 12  # of the GPUs, that are tried
LESS = {"full": (), "hybrid": ("hpz", "full"), "hpz": ("full",)}  # ways to shard that keep less, the next first


def needs(job: Job, stage: str) -> float:
    """Bytes of a GPU at the peak."""
    return sum(peak(job, stage)[1].values())


def difference(one: Job, other: Job) -> str:
    """The options in which the other job differs, as keywords."""
    changed = [name for name in vars(one) if getattr(one, name) != getattr(other, name)]
    return ", ".join(f"{name}={getattr(other, name)!r}" for name in changed)


def changes(job: Job, usable: float, stage: str) -> Iterator[Job]:
    """The job with one thing changed, in the order in which it is tried; of micro-batches the largest that fits."""
    if job.attention == "math":
        yield replace(job, attention="fused")
    for name in CHECKPOINTING[CHECKPOINTING.index(job.checkpointing) + 1 :]:
        yield from _possible(job, checkpointing=name)
    if job.rows > 1:
        # Fewer rows never need more, so the first count that fits is found by halving.
        fewer = range(job.rows - 1, 0, -1)
        fits = bisect_left(fewer, True, key=lambda rows: needs(_added_up(job, rows), stage) <= usable)
        yield _added_up(job, max(1, job.rows - 1 - fits))
    yield from _of_the_optimizer(job)
    yield from _divided(job, stage)
    yield from _by_more_ranks(job, "context")
    yield from _possible(job, world_size=2 * job.world_size)


def _added_up(job: Job, rows: int) -> Job:
    """The job with so many rows at once, and as many micro-batches more as its step then takes."""
    return replace(job, rows=rows, micro_batches=-(-job.rows * job.micro_batches // rows))


def _possible(job: Job, **changed: Any) -> Iterator[Job]:
    """The job with something changed, or nothing where GPUs, heads or tokens do not come out even then."""
    try:
        other = replace(job, **changed)
    except ValueError:
        return
    yield other


def _of_the_optimizer(job: Job) -> Iterator[Job]:
    if job.logits != "fused":
        yield from _possible(job, logits="fused")
    if job.moments == "fp32":
        yield from _possible(job, moments="8-bit")
    if not job.offload:
        yield from _possible(job, offload=True)


def _divided(job: Job, stage: str) -> Iterator[Job]:
    if job.world_size > job.gpus_per_node:
        # A second shard of a node's is less than the whole model in it, and none is less still.
        for name in LESS[job.sharding]:
            if name != "hpz" or stage == "zero3":
                yield from _possible(job, sharding=name)
    yield from _by_more_ranks(job, "tensor")


def _by_more_ranks(job: Job, option: str) -> Iterator[Job]:
    for ranks in (2, 4, 8):
        if ranks > getattr(job, option):
            yield from _possible(job, **{option: ranks})


def ladder(job: Job, usable: float, stage: str) -> Iterator[Job]:
    """Jobs to try until one fits: the first three things alone, then one thing after the other."""
    for other in changes(job, usable, stage):
        if (other.attention, other.checkpointing, other.rows) != (job.attention, job.checkpointing, job.rows):
            yield other
    least = replace(_added_up(job, 1), checkpointing=CHECKPOINTING[-1], attention="fused")
    yield least
    yield from _of_the_optimizer(least)
    yield from _divided(least, stage)
    yield from _by_more_ranks(least, "context")
    most = replace(least, logits="fused", moments="8-bit", sharding="full")
    yield most
    most = replace(most, offload=True)
    yield most
    yield from _divided(most, stage)
    yield from _by_more_ranks(most, "context")
    for power in range(1, DOUBLINGS + 1):
        for larger in _possible(least, world_size=job.world_size * 2**power, sharding="full"):
            yield from _on_more_gpus(larger, job.context * 2**power, stage)


def _on_more_gpus(least: Job, context: int, stage: str) -> Iterator[Job]:
    """The job as it is, with matrices divided as far as these GPUs allow, and rows too, each also with a fused loss."""
    *_, divided = [least, *_divided(least, stage)]
    # Of ranks that have the same part of each matrix no more can share a row than there are.
    ranks = gcd(context, divided.world_size // divided.tensor)
    for other in dict.fromkeys((least, divided, *_possible(divided, context=ranks))):
        yield other
        if other.logits != "fused":
            yield replace(other, logits="fused")


def table(job: Job, setting: seconds.Setting, usable: float, stage: str) -> list[dict[str, Value]]:
    """A row for each change: what is needed with it, what it saves, and how much longer a token takes."""
    now, pace = needs(job, stage), _seconds_a_token(job, setting, stage)
    rows: list[dict[str, Value]] = []
    for other in changes(job, usable, stage):
        need, slower = needs(other, stage), _seconds_a_token(other, setting, stage) / pace
        rows.append(
            {
                "try": difference(job, other),
                "saves GB": (now - need) / 1e9,
                "needs GB": need / 1e9,
                "fits": need <= usable,
                "GPU time a token": f"{slower - 1:+.0%}",
            }
        )
    return rows


def _seconds_a_token(job: Job, setting: seconds.Setting, stage: str) -> float:
    """Seconds of one GPU for each token, computed: a quoted utilisation is not known of what has been changed."""
    names = ("world_size", "rows", "micro_batches", "checkpointing", "tensor", "context", "offload")
    given: dict[str, Any] = {name: getattr(job, name) for name in names}
    given |= {"hybrid": job.sharding == "hybrid", "second_shard": job.sharding == "hpz", "utilisation": None}
    changed = replace(setting, **given)
    step = seconds.step(replace(job.shape, context=job.length), stage, changed).total
    return step * job.tensor * job.context / (job.rows * job.micro_batches * job.length)
