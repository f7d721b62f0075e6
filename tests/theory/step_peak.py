"""The peak of a step in closed form: the highest of all moments, each a sum of named terms. No torch.

A peak is no sum of maxima: what is largest is not large at the same time. So the step is walked through, mark by mark
(`step_walk`), with what a plain training of the same model showed between the marks (`step_activations.measure`:
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
from typing import TYPE_CHECKING

from step_bytes import Mark, Plan
from step_walk import Walk

if TYPE_CHECKING:
    import torch

    from zerolab.engines.partition import FlatLayout

__all__ = ["TERMS", "Mark", "peaks"]

PHASES = ("forward", "backward", "reduce", "step", "gather")
TERMS = {  # what a rank always has, then what comes and goes; each with the ledger's category
    "parameters": "parameters",
    "gathered_units": "parameters",
    "gradients": "gradients",
    "incoming_gradients": "gradients",
    "optimizer_state": "optimizer_state",
    "activations": "activations",
    "new_mean": "activations",
    "receive_buffers": "communication",
    "update_temporaries": "other",
    "numbers": "other",
    "batches": "other",
}


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
    """Bytes at the highest moment of each phase that the stage has, and of the whole step (from step 2 on), by term.

    Args:
        stage: ddp, zero1, zero2 or zero3.
        flats: the layouts that `zerolab.engines.partition.partition` makes for the model, with the units and parameter
            groups that the engine has.
        world_size: number of ranks N.
        series: what `step_activations.measure` gave for the model and one rank's batch, in the same precision.
        batch_bytes: bytes of batches that lie in memory meanwhile.
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
        for) and "step" (the update), each its terms that are not zero: parameters, gathered_units, gradients (laid end
        to end, the means, and in bf16 their fp32 copies), incoming_gradients (as autograd left them), new_mean (of a
        later micro-batch), optimizer_state, receive_buffers, update_temporaries, numbers (Python's, made tensors),
        activations, batches. Their sum is the peak.

    Raises:
        ValueError: an unknown stage or precision, an option that the stage lacks, or a series of another model.

    Source: ZeRO, arXiv 1910.02054, sections 3.2 and 5; the schedule is the engines' own.
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
