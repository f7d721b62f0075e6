"""What a rank's recording says about the run as a whole: figures of its steps, and what was trained on what."""

from collections import Counter
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from zerolab.engines.agreement import is_simulated
from zerolab.recording.events import CATEGORIES, STATE, RankInfo, State
from zerolab.recording.ledger import HOST
from zerolab.recording.log import Log, StepFigures, levels_on
from zerolab.recording.ownership import Ownership

_PRECISIONS = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16", "float64": "fp64"}


class Membership(NamedTuple):
    """Where a process is among the ranks, and what they exchange over; None for one that is alone."""

    rank: int = 0
    world_size: int = 1
    backend: str | None = None


def membership(known: Membership) -> Membership:
    """That of this process; what was known of it, once its group is gone: a script may end that before itself."""
    if not dist.is_initialized():
        return known
    return Membership(dist.get_rank(), dist.get_world_size(), dist.get_backend())


def describe(log: Log, steps: list[StepFigures], ownership: Ownership, at: Membership, started_ns: int) -> RankInfo:
    """The figures of the run so far, of which these steps are over."""
    units = ownership.described()
    # Joined where a model mixes them; no closed form has that name, so `_formula` gives None.
    dtypes = "+".join(sorted({_PRECISIONS.get(unit.dtype, unit.dtype) for unit in units})) or None
    precision = dtypes if ownership.precision in {None, "fp32"} else ownership.precision
    num_params = sum(unit.numel for unit in units)
    trained = sum(unit.numel for unit in units if not unit.frozen)
    sent: Counter[int] = Counter()  # by step, in one pass: a long recording has many steps and many events
    for draft in log.drafts:
        sent[draft["step"]] += draft.get("logical_bytes", 0)
    updates = ownership.optimizers
    return RankInfo(
        stage=ownership.stage,
        optimizer=updates.kind,
        matrices=ownership.matrices,
        moments=updates.moments,
        offload=ownership.offload,
        reduce_dtype=ownership.reduce_dtype,
        masters=updates.masters,
        amsgrad=sorted(updates.amsgrad),
        num_params=num_params or None,
        precision=precision,
        backend=at.backend,
        device=log.device,
        simulated=is_simulated(at.backend),
        formula=_formula(ownership, num_params, trained, at.world_size, precision),
        torch=torch.__version__,
        times_only=log.times_only,
        steps=len(steps),
        started_ns=started_ns,
        logical_bytes=[sent[step.number] for step in steps],
        wire_bytes=[step.wire_bytes for step in steps],
        operations=[] if log.times_only else [step.operations for step in steps],
        card=[step.card for step in steps if step.card is not None],
        losses=[loss if isinstance(loss, float) else None for loss in log.losses],
        updated={name: list(sizes) for name, sizes in updates.updated.items()},
        **(_figures(steps, log.device, had_state=updates.had_state) if steps and not log.times_only else {}),
    )


def _figures(steps: list[StepFigures], device: str, *, had_state: bool) -> dict[str, Any]:
    last, updates = steps[-1], [step for step in steps if step.state]
    peak = levels_on(last.peak, device) or dict.fromkeys(CATEGORIES, 0)  # a GPU on which nothing lay yet
    figures: dict[str, Any] = {
        "peak": peak,
        "peak_total": sum(peak.values()),
        "peaks": {phase: levels_on(levels, device) for phase, levels in last.peaks.items() if device in levels},
    }
    if device != HOST:
        figures["host_peak"] = levels_on(last.peak, HOST)
    # At its first update Adam has no moments yet, so what is held then is not the state; and a step that fp16 skips
    # has no update.
    if len(updates) > (0 if had_state else 1) and updates[-1].state:
        held = {place: levels_on(updates[-1].state, place) for place in (device, HOST)}
        # The formula speaks of the state, wherever it lies.
        figures["state"] = {category: sum(levels.get(category, 0) for levels in held.values()) for category in STATE}
        figures["step_counters"] = updates[-1].step_counters
        if device != HOST:
            figures["host_state"] = {category: held[HOST][category] for category in STATE}
    return figures


def _formula(of: Ownership, num_params: int, trained: int, world_size: int, precision: str | None) -> State | None:
    """The closed form for this run, if it is one of the stages, precisions and optimizers that have one.

    What is frozen has neither gradient nor optimizer state; `explain` has that as a term, because Ψ counts it.
    """
    from zerolab import theory
    from zerolab.theory import systems

    # A loop of one's own has no stage, and a formula next to it would be a guess.
    stage = of.stage
    if stage not in (*theory.STAGES, *systems.FORMS) or precision not in theory.BYTES_PER_PARAMETER or not num_params:
        return None
    if not of.optimizers.has_form:
        return None
    return systems.state_bytes(
        stage, num_params, world_size, precision, trained=trained, moments=of.optimizers.moments, matrices=of.matrices
    )
