"""Measured bytes beside what theory says, term by term; what is left in the last column is a bug in one of the two."""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from zerolab.recording.events import CATEGORIES, RankRecording
from zerolab.recording.nearest import beside_nearest, dtype
from zerolab.tables import Table

if TYPE_CHECKING:
    from zerolab.recording.recording import Recording

# Ψ is the number of parameters; what is sharded gets its "/ N" below, from the same table as the formula.
SHARE = {"parameters": "4 Ψ", "gradients": "4 Ψ", "optimizer_state": "8 Ψ"}
SHARE_BF16 = {"parameters": "2 Ψ", "gradients": "2 Ψ", "optimizer_state": "12 Ψ"}
TERMS = {
    "padding": "flats filled up to a multiple of N",
    "step_counters": "4 bytes a flat",
    "fp32_gradient_shard": "fp32 copy of the owned gradients",
    "frozen": "no gradients, no optimizer state",
    "offloaded_copy": "fp32 copy that the optimizer updates",
    "other_dtypes": "parameters that are not fp32",
    "unused": "no optimizer state: never a gradient",
}
PEAK_TERMS = {  # term of the peak -> the ledger's category, and in words
    "parameters": ("parameters", "held all the time"),
    "gathered_units": ("parameters", "units that are whole"),
    "gradients": ("gradients", "laid end to end, and means"),
    "incoming_gradients": ("gradients", "as autograd left them"),
    "optimizer_state": ("optimizer_state", "two moments and a counter"),
    "activations": ("activations", "from a plain step"),
    "new_mean": ("activations", "until it is added to that of earlier micro-batches"),
    "receive_buffers": ("communication", "(N-1)/N of a flat"),
    "update_temporaries": ("other", "2 to 3 of a flat"),
    "numbers": ("other", "Python's numbers, made tensors"),
    "batches": ("other", "of the caller"),
}


def why_empty(recording: "Recording", chosen: RankRecording) -> str:
    """The reason, on a line of its own, for columns without a number; nothing where there is none."""
    if not isinstance(chosen.meta.get("state"), dict):
        return f"\n{_no_state(chosen)}"
    if recording.meta.get("formula") is None and recording.meta.get("stage") is None:
        return "\nno formula: nothing says which stage this loop is; explain() sets it beside the nearest one"
    return ""


def _no_state(chosen: RankRecording) -> str:
    steps = chosen.meta.get("steps") or 0
    return (
        f"no state after {steps} step{'s' * (steps != 1)}: Adam makes its moments in the first, so record two or more"
    )


def explain(
    recording: "Recording",
    rank: int | None = None,
    peak: Mapping[str, int] | None = None,
    phase: str | None = None,
    beside: str | None = None,
) -> Table:
    """One row a term: its formula, its bytes, what was measured, and the difference, which is to be 0.

    Terms of the peak add up to a category of the ledger; what was measured of it stands with the last of them.

    Args:
        recording: of one of the four stages or a loop of one's own, with two steps of Adam or more.
        rank: whose bytes; None takes the first.
        peak: what `theory.peak` predicts for the run; with it the peak is explained too.
        phase: the phase of the step for which it was predicted; None for the whole step.
        beside: the stage that a loop of one's own is meant to be; None takes the one that it comes nearest to.

    Raises:
        ValueError: the recording has no such rank, no state that a closed form speaks of, or a peak that `theory.peak`
            does not predict (a loop of one's own, another optimizer, a GPU, NCCL, a phase that the run did not have).
    """
    from zerolab import theory

    chosen = recording.ranks[0] if rank is None else recording.rank(rank)
    stage, precision, state = (
        recording.meta.get("stage"),
        str(recording.meta.get("precision")),
        chosen.meta.get("state"),
    )
    if not isinstance(state, dict):
        raise ValueError(_no_state(chosen))  # noqa: TRY004  (the recording is of the right type, and too short)
    if stage is None:
        if peak is not None:
            stages = ", ".join(theory.STAGES)
            raise ValueError(f"nothing predicts the peak of a loop of your own: leave out peak=, or record {stages}")
        return beside_nearest(recording, chosen, beside)
    if beside not in (None, stage):
        raise ValueError(f"this run is {stage}, not {beside!r}: leave out stage=, which is for a loop of your own")
    # A wrong row is worse than none: other systems shard as they like, and have no closed form here.
    if stage not in theory.STAGES or precision not in theory.BYTES_PER_PARAMETER:
        raise ValueError(
            f"no closed form for stage {stage!r} in {precision}: record one of {', '.join(theory.STAGES)}, or let "
            "zerolab.compare name what the system holds beyond its form"
        )
    rows = _state_rows(recording, str(stage), precision, chosen.meta)
    if peak is not None:
        rows += _peak_rows(peak, _measured_peak(recording, chosen, phase))
    return Table(rows, f"{stage} on {recording.world_size} ranks, {precision}: bytes of rank {chosen.rank}")


def _state_rows(recording: "Recording", stage: str, precision: str, meta: Mapping[str, Any]) -> list[dict[str, Any]]:
    from zerolab import theory

    world_size, state = recording.world_size, meta["state"]
    flats: list[Any] = [
        # Theory needs four numbers and the dtype of a flat; a file has them and no tensors.
        SimpleNamespace(
            name=u.name,
            numel=u.numel,
            padded=u.padded,
            shard_numel=u.padded // world_size,
            frozen=u.frozen,
            dtype=dtype(u.dtype),
        )
        for u in recording.units
    ]
    formula = theory.state_bytes(stage, sum(flat.numel for flat in flats), world_size, precision)
    offload, updated = bool(recording.meta.get("offload")), meta.get("updated")
    terms = theory.terms(
        # From a file anything may come.
        stage,
        flats,
        world_size,
        precision,
        offload=offload,
        updated=updated if isinstance(updated, dict) else {},
    )
    words = SHARE if precision == "fp32" else SHARE_BF16
    rows: list[dict[str, Any]] = []
    for category, nbytes in formula.items():
        share = words[category] + (" / N" if category in theory.SHARDED[stage] else "")
        # The terms that follow belong to no category, so what was measured stands with the formula and with the sum.
        rows.append({"term": category, "formula": share, "bytes": nbytes, "measured": state[category]})
    rows += [{"term": name, "formula": TERMS[name], "bytes": nbytes} for name, nbytes in terms.items() if nbytes]
    return [*rows, _total("state", sum(formula.values()) + sum(terms.values()), sum(state.values()))]


def _measured_peak(recording: "Recording", chosen: RankRecording, phase: str | None) -> Mapping[str, int]:
    """The bytes by category at a rank's highest moment; refuses a run that `theory.peak` does not speak of."""
    optimizer, device, backend = (recording.meta.get(key) for key in ("optimizer", "device", "backend"))
    # Their temporaries are in the peak, and each optimizer has others.
    if optimizer not in ("Adam", "AdamW"):
        raise ValueError(f"the peak is predicted for Adam and AdamW, and this run updated with {optimizer}")
    if (device, backend) != ("cpu", "gloo"):
        raise ValueError(
            f"the peak is predicted for the CPU and gloo, and this run was on {device} with {backend}: there the "
            "library keeps buffers of its own"
        )
    peaks = chosen.meta.get("peaks")
    found = {"whole step": chosen.meta.get("peak"), **(peaks if isinstance(peaks, dict) else {})}
    measured = found.get(phase or "whole step")
    if measured is None:
        raise ValueError(f"the recording has no peak of phase {phase!r}: choose one of {', '.join(found)}")
    return dict(measured)


def _peak_rows(peak: Mapping[str, int], measured: Mapping[str, int]) -> list[dict[str, Any]]:
    """The terms by category, and with the last one of each category what was measured of it."""
    rows: list[dict[str, Any]] = []
    for category in CATEGORIES:
        terms = [term for term, (kind, _) in PEAK_TERMS.items() if kind == category and peak.get(term)]
        rows += [{"term": f"peak: {term}", "formula": PEAK_TERMS[term][1], "bytes": peak[term]} for term in terms]
        # A category that nobody predicted is shown, or the sum would not add up.
        if not terms and measured.get(category):
            rows.append({"term": f"peak: {category}", "formula": "none", "bytes": 0})
        # The ledger knows categories and no terms: only their sum can be measured.
        if terms or measured.get(category):
            found = measured.get(category, 0)
            rows[-1] |= {"measured": found, "difference": found - sum(peak[term] for term in terms)}
    return [*rows, _total("peak", sum(peak.values()), sum(measured.values()))]


def _total(name: str, predicted: int, measured: int) -> dict[str, Any]:
    return {
        "term": name,
        "formula": "sum",
        "bytes": predicted,
        "measured": measured,
        "difference": measured - predicted,
    }
