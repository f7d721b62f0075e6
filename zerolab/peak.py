"""The peak of a step in closed form: the highest of all moments, each a sum of named terms. No torch.

A peak is no sum of maxima: what is largest is not large at the same time. So the step is walked through, mark by mark
(`zerolab.walk`), with what a plain training of the same model showed between the marks (`zerolab.series.measure`:
activations, never a residual) and with the rules of the stage for everything else, with AdamW and direct exchange
(gloo) on the CPU:

* a flat's gradients stay where autograd left them until the last has come, and are then laid end to end;
* one reduction is in flight, with (N-1)/N of its flat to receive into; it makes room at half of the next flat;
* zero3 has a unit whole while it is used, gathers the next one in forward at once and in backward at half of the unit;
* torch's AdamW on CPU needs two temporaries as large as what the rank owns of a flat, and 12 bytes for a number, while
  the last one of the flat before still lies in a variable.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from zerolab.pieces import Mark, Plan
from zerolab.walk import Walk

if TYPE_CHECKING:
    import torch

    from zerolab.engines.partition import FlatLayout

__all__ = ["TERMS", "Mark", "peak", "peaks"]

# Written here once more, because `theory` imports this module and not the other way round.
STAGES = ("ddp", "zero1", "zero2", "zero3")
PHASES = ("forward", "backward", "reduce", "step", "gather")
# In the order in which `recording.explain` shows them: what a rank always has, then what comes and goes.
TERMS = (
    "parameters",
    "gathered_units",
    "gradients",
    "incoming_gradients",
    "optimizer_state",
    "activations",
    "new_mean",
    "receive_buffers",
    "update_temporaries",
    "numbers",
    "batches",
)


def peak(
    stage: str,
    flats: Iterable[FlatLayout],
    world_size: int,
    series: Iterable[Mark],
    batch_bytes: int = 0,
    **options: Any,
) -> dict[str, int]:
    """Bytes at the highest moment of a step (from the second on), by term; their sum is the peak.

    Args:
        stage: ddp, zero1, zero2 or zero3.
        flats: the layouts that `zerolab.engines.partition.partition` makes for the model, with the units and parameter
            groups that the engine has.
        world_size: number of ranks N.
        series: what `zerolab.series.measure` gave for the model and one rank's batch, in the same precision.
        batch_bytes: bytes of batches that lie in memory meanwhile.
        **options: those of `peaks`.

    Returns:
        Terms that are not zero: parameters, gathered_units, gradients (laid end to end, the means, and in bf16 their
        fp32 copies), incoming_gradients (as autograd left them), new_mean (of a later micro-batch), optimizer_state,
        receive_buffers, update_temporaries, numbers (Python's, made tensors), activations, batches.

    Raises:
        ValueError: as `peaks`.

    Source: ZeRO, arXiv 1910.02054, sections 3.2 and 5; the schedule is the engines' own.
    """
    return peaks(stage, flats, world_size, series, batch_bytes, **options)["whole step"]


def peaks(
    stage: str,
    flats: Iterable[FlatLayout],
    world_size: int,
    series: Iterable[Mark],
    batch_bytes: int = 0,
    *,
    precision: str = "fp32",
    reduce_dtype: torch.dtype | None = None,
    overlap: bool = True,
    offload: bool = False,
    release_after_forward: bool = True,
    prefetch: int = 1,
    micro_batches: int = 1,
    rank: int = 0,
) -> dict[str, dict[str, int]]:
    """The terms of `peak` for the highest moment of each phase that the stage has, and of the whole step.

    Args:
        stage: as for `peak`, like the arguments that follow.
        flats: as for `peak`.
        world_size: as for `peak`.
        series: as for `peak`.
        batch_bytes: as for `peak`.
        precision: as the engine has it, like the options that follow.
        reduce_dtype: what gradients are added up in; None for the precision's own.
        overlap: whether a reduction goes on while autograd works.
        offload: whether the optimizer updates a copy in main memory, which on the CPU is the same memory, and counts.
        release_after_forward: whether zero3 releases a unit after its forward.
        prefetch: how many units zero3 gathers ahead.
        micro_batches: batches a step, all but the last inside `engine.accumulate()`, each through `training_step`.
        rank: whose peak it is; ranks differ only where a parameter gets no gradient, which its owners do not update.

    Returns:
        By phase: "whole step", "forward", "backward", "reduce" and "gather" (while a collective is started or waited
        for) and "step" (the update), each a dictionary of terms as `peak` gives it.

    Raises:
        ValueError: an unknown stage or precision, an option that the stage lacks, or a series of another model.
    """
    layouts, marks = list(flats), list(series)
    plan = Plan(
        stage,
        world_size,
        bf16=precision == "bf16",
        reduce_width=None if reduce_dtype is None else reduce_dtype.itemsize,
        overlap=overlap,
        offload=offload,
        release_after_forward=release_after_forward,
        prefetch=prefetch,
        micro_batches=micro_batches,
        batch_bytes=batch_bytes,
        rank=rank,
    )
    _check(plan, precision, layouts, marks)
    walk = Walk(plan, layouts, marks)
    walk.step()  # the first step only learns in which order the units come, as the engines do
    walk.step()
    phases = {phase: walk.highest[phase] for phase in PHASES if phase in walk.highest}
    return {phase: _named(moment) for phase, (_, moment) in {"whole step": walk.peak, **phases}.items()}


def _named(moment: Counter[str]) -> dict[str, int]:
    # To a reader both are gradients as autograd left them. The walk keeps those apart whose own mark has not come yet,
    # because each mark tells their bytes anew.
    found = moment + Counter(incoming_gradients=moment["arriving_gradients"])
    return {term: found[term] for term in TERMS if found[term]}


def _check(plan: Plan, precision: str, flats: list[FlatLayout], series: list[Mark]) -> None:
    """Refuses what cannot be predicted, in one sentence each."""
    if plan.stage not in STAGES:
        raise ValueError(f"unknown stage {plan.stage!r}: the peak is predicted for {', '.join(STAGES)}")
    if precision not in ("fp32", "bf16"):
        raise ValueError(f"precision is {precision!r}: choose fp32 or bf16")
    # Options of another stage would change nothing, and a prediction that ignores what it was asked misleads.
    if plan.stage != "zero3" and not (plan.release_after_forward and plan.prefetch == 1):
        raise ValueError(f"{plan.stage} has neither release_after_forward nor prefetch: only zero3 releases units")
    if plan.micro_batches < 1 or plan.prefetch < 0 or plan.micro_batches % 1 or plan.prefetch % 1:
        raise ValueError(
            f"micro_batches is {plan.micro_batches} and prefetch {plan.prefetch}: take at least 1 and at least 0, both "
            "whole numbers"
        )
    # Padding depends on N, so the flats of another N would give bytes that are nearly right.
    if any(flat.world_size != plan.world_size for flat in flats):
        raise ValueError(f"the flats are not those of {plan.world_size} ranks: call partition(model, world_size) again")
    if not series:
        raise ValueError("the series is empty: take what zerolab.series.measure(model, inputs, targets, loss_fn) gave")
    _check_series(plan, flats, series)


def _check_series(plan: Plan, flats: list[FlatLayout], series: list[Mark]) -> None:
    # The series was measured on one model and the flats were made of another, perhaps. Unchecked, the walk would fail
    # somewhere in its middle, far from the mistake.
    units = {flat.unit for flat in flats}
    slots: dict[str, Any] = {slot.name: (flat, slot) for flat in flats for slot in flat.slots}
    for mark in series:
        if mark.kind == "use" and mark.name not in units:
            raise ValueError(
                f"the series has the unit {mark.name!r}, the flats have {', '.join(sorted(units))}: give both the same"
            )
        if mark.kind != "grad":
            continue
        if mark.name not in slots:
            raise ValueError(f"the series has a gradient of {mark.name!r}, which lies in no flat: give both one model")
        flat, slot = slots[mark.name]
        # Gradients tell in which precision the series was measured: no other mark has bytes of a known shape.
        nbytes = slot.shape.numel() * (2 if plan.bf16 else flat.dtype.itemsize)
        if mark.nbytes != nbytes:
            raise ValueError(
                f"the gradient of {mark.name!r} has {mark.nbytes} bytes in the series, and {nbytes} in this precision: "
                "measure the series with the same model and precision"
            )
