"""What a rank's recording says about the run as a whole: figures of its steps, and what was trained on what."""

import torch
import torch.distributed as dist

from zerolab.recording.events import CATEGORIES, Category
from zerolab.recording.log import Log, StepFigures
from zerolab.recording.ownership import Ownership

STATE: tuple[Category, ...] = ("parameters", "gradients", "optimizer_state")
_PRECISIONS = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16", "float64": "fp64"}


def describe(log: Log, ownership: Ownership, world_size: int) -> dict[str, object]:
    """All of it, as plain values; `state`, `peak`, `peak_total` and `peaks` (by phase) are those of the last step."""
    units = list(ownership.units.values())  # a copy: another thread may ask while an engine is being made
    # Two words where a model mixes them: no closed form speaks of that, and `_formula` sees that it is none.
    dtypes = "+".join(sorted({_PRECISIONS.get(unit.dtype, unit.dtype) for unit in units})) or None
    backend = dist.get_backend() if dist.is_available() and dist.is_initialized() else None
    meta: dict[str, object] = {
        "stage": ownership.stage,
        "num_params": sum(unit.numel for unit in units) or None,
        "optimizer": ownership.optimizer,
        "precision": ownership.precision if ownership.precision == "bf16" else dtypes,
        "offload": ownership.offload,
        "backend": backend,
        "device": ownership.device,
        "simulated": backend == "fake",
        "torch": torch.__version__,
        **_figures(log.steps),
        "logical_bytes": [_logical_bytes(log, step.number) for step in log.steps],
        "losses": log.losses,
    }
    if ownership.updated:  # only of parameters that never had a gradient is there anything to say
        meta["updated"] = {name: list(sizes) for name, sizes in ownership.updated.items()}
    trained = sum(unit.numel for unit in units if not unit.frozen)
    return meta | {"formula": _formula(meta, trained, world_size)}


def _figures(steps: list[StepFigures]) -> dict[str, object]:
    last = steps[-1] if steps else None
    # In step 1 Adam has no moments yet, so what is held at its update is not yet the state.
    state = _by_category(last.state) if last and last.state and last.number > 1 else None
    return {
        "steps": len(steps),
        "state": {category: state[category] for category in STATE} if state else None,
        "step_counters": last.step_counters if state and last else None,
        "peak": _by_category(last.peak) if last else None,
        "peak_total": sum(last.peak) if last else None,
        "peaks": {phase: dict(zip(CATEGORIES, live, strict=True)) for phase, live in last.peaks.items()}
        if last
        else {},
        "wire_bytes": [step.wire_bytes for step in steps],
        "operations": [step.operations for step in steps],
    }


def _by_category(live: list[int]) -> dict[Category, int]:
    return dict(zip(CATEGORIES, live, strict=True))


def _logical_bytes(log: Log, step: int) -> int:
    return sum(draft.get("logical_bytes", 0) for draft in log.drafts if draft["step"] == step)


def _formula(meta: dict[str, object], trained: int, world_size: int) -> dict[str, int] | None:
    """The closed form for this run, if it is one of the stages and precisions that have one.

    What is frozen has neither gradient nor optimizer state; `explain` has that as a term, because Ψ counts it.
    """
    from zerolab import theory
    from zerolab.theory import systems

    stage, num_params, precision = meta["stage"], meta["num_params"], meta["precision"]
    # A loop of one's own has no stage, and a formula beside it would be a guess.
    known = stage in theory.STAGES or stage in systems.FORMS
    if not known or precision not in theory.BYTES_PER_PARAMETER or not isinstance(num_params, int):
        return None
    return systems.needed_bytes(str(stage), num_params, trained, world_size, str(precision))
