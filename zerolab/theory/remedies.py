"""What to try where a model does not fit, in the order in which people try it, what it saves and costs. No torch.

First come kernels in place of attention's matrix and of norms, a line of code and some computing (checkpointing),
smaller micro-batches, of which each keeps the gradients of those before, and a loss without stored logits; then what
touches the optimizer (8 bits, main memory); then other ways to divide (all ranks instead of a node's, each matrix
within a node, each row); at the end, more GPUs. `changes` has them one by one; `ladder` begins with the first three,
keeps them, and adds the others one by one and all together.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from math import gcd
from typing import Any

from zerolab.tables import Value
from zerolab.theory import seconds
from zerolab.theory.activations import CHECKPOINTING
from zerolab.theory.job import Job
from zerolab.theory.moments import peak

MOST_GPUS, MOST_ROWS = 2**20, 2**40  # that are tried
LESS: dict[str, dict[Any, tuple[Any, ...]]] = {
    "attention": {"math": ("fused",)},
    "norms": {"unfused": ("fused",)},
    "checkpointing": {"none": CHECKPOINTING[1:], "selective": CHECKPOINTING[2:]},
    "logits": {"own": ("fused",), "fp32": ("fused",), "flash": ("fused",)},
    "moments": {"fp32": ("8-bit",)},
    "offload": {False: (True,)},
    "sharding": {"hybrid": ("hpz", "full"), "hpz": ("full",)},
    "tensor": {ranks: tuple(more for more in (2, 4, 8) if more > ranks) for ranks in range(1, 8)},
}
"""Of each option, by what is chosen, what needs less, in the order in which it is tried. A second shard in each node is
less than the whole model there, and no second shard is less still."""
LESS["context"] = LESS["tensor"]
OPTIMIZER, DIVIDED = ("logits", "moments", "offload"), ("sharding", "tensor", "context")


def needs(job: Job, stage: str) -> float:
    """Bytes of a GPU at the peak."""
    return sum(peak(job, stage)[1].values())


def difference(one: Job, other: Job) -> str:
    """The options in which the other job differs, as keywords of `plan`."""
    changed = {name: value for name, value in vars(other).items() if value != getattr(one, name)}
    return ", ".join(f"{name}={_written(name, value)}" for name, value in changed.items())


def _written(name: str, value: Any) -> str:
    return f"{value / 1e9:g}e9" if name == "bandwidth" else repr(value.name if name == "network" else value)


def changes(job: Job, usable: float, stage: str) -> Iterator[Job]:
    """The job with one change that saves memory, in the order in which it is tried; of rows the most that fit."""
    now = needs(job, stage)
    tried = [*_less(job, stage, "attention", "norms", "checkpointing"), *_fewer_rows(job, usable, stage)]
    tried += [*_less(job, stage, *OPTIMIZER, *DIVIDED), *_possible(job, world_size=2 * job.world_size)]
    yield from (other for other in tried if needs(other, stage) < now)


def _fewer_rows(job: Job, usable: float, stage: str) -> Iterator[Job]:
    """The job with fewer rows at once, and more micro-batches, so that a step has as many rows: the most that fit."""
    if job.rows == 1:
        return
    # Fewer of them never need more, so the most that fit are found by halving.
    fewer = range(1, min(job.rows, MOST_ROWS))
    most = bisect_left(fewer, True, key=lambda rows: needs(replace(job, rows=rows, micro_batches=2), stage) > usable)
    together = job.rows * job.micro_batches
    rows = next(rows for rows in range(max(most, 1), 0, -1) if together % rows == 0)
    yield replace(job, rows=rows, micro_batches=together // rows)


def _possible(job: Job, **changed: Any) -> list[Job]:
    """The job with something changed, or nothing where GPUs, heads or tokens do not come out even then."""
    with suppress(ValueError):
        return [replace(job, **changed)]
    return []


def _less(job: Job, stage: str, *options: str) -> Iterator[Job]:
    """The job with one of the options changed to what needs less."""
    for option in options:
        for value in LESS[option].get(getattr(job, option), ()):
            if option != "sharding" or (job.nodes > 1 and (value != "hpz" or stage == "zero3")):
                yield from _possible(job, **{option: value})


def ladder(job: Job, usable: float, stage: str) -> Iterator[Job]:
    """Jobs to try until one fits: the first three things alone, then one thing after the other."""
    for other in changes(job, usable, stage):
        if any(getattr(other, name) != getattr(job, name) for name in ("attention", "norms", "checkpointing", "rows")):
            yield other
    a_row = {"rows": 1, "micro_batches": job.rows * job.micro_batches}
    least = _all(job, stage, {"checkpointing": CHECKPOINTING[-1]}, {"attention": "fused"}, {"norms": "fused"}, a_row)
    yield least
    yield from _less(least, stage, *OPTIMIZER, *DIVIDED)
    most = _all(least, stage, {"logits": "fused"}, {"moments": "8-bit"}, {"sharding": "full"})
    yield most
    most = _all(most, stage, {"offload": True})
    yield most
    yield from _less(most, stage, *DIVIDED)
    doublings = (MOST_GPUS // job.world_size).bit_length() - 1
    for power in range(1, max(1, doublings) + 1):
        for larger in _possible(least, world_size=job.world_size * 2**power, sharding="full"):
            yield from _on_more_gpus(larger, job.context * 2**power)


def _all(job: Job, stage: str, *changes: dict[str, Any]) -> Job:
    """The job with all changes, except those that are not possible or that need more."""
    for changed in changes:
        for other in _possible(job, **changed):
            job = min(other, job, key=lambda each: needs(each, stage))
    return job


def _on_more_gpus(least: Job, context: int) -> Iterator[Job]:
    """The job as it is, with matrices divided as far as these GPUs allow, and rows too, each also with a fused loss."""
    *_, divided = [least, *_less(least, "", "tensor")]
    # A row is shared by ranks that have the same part of each matrix: at most all of them, and no more than its tokens.
    ranks = gcd(context, divided.world_size // divided.tensor, divided.length)
    for other in dict.fromkeys((least, divided, *_possible(divided, context=ranks))):
        yield other
        if other.logits != "fused":
            yield from _possible(other, logits="fused")


def table(job: Job, usable: float, stage: str) -> list[dict[str, Value]]:
    """A row for each change: what is needed with it, what it saves, and how much longer a token takes."""
    now, pace = needs(job, stage), _seconds_a_token(job, stage)
    rows: list[dict[str, Value]] = []
    for other in changes(job, usable, stage):
        need, slower = needs(other, stage), _seconds_a_token(other, stage) / pace
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


def _seconds_a_token(job: Job, stage: str) -> float:
    """Seconds of one GPU for each token, computed: a quoted utilisation is not known of what has been changed."""
    return seconds.step(replace(job, utilisation=None), stage).total / job.tokens / job.micro_batches
