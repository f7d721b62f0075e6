"""Measured bytes beside what theory says, term by term; what is left in the last column is a bug in one of the two."""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from zerolab.tables import Table

if TYPE_CHECKING:
    from zerolab.recording.recording import Recording

SHARE = {"parameters": "4 Ψ", "gradients": "4 Ψ", "optimizer_state": "8 Ψ"}
SHARE_BF16 = {"parameters": "2 Ψ", "gradients": "2 Ψ", "optimizer_state": "12 Ψ"}
TERMS = {
    "padding": "flats filled up to a multiple of N",
    "step_counters": "4 bytes a flat",
    "fp32_gradient_shard": "fp32 copy of the owned gradients",
    "frozen": "no gradients, no optimizer state",
}
PEAK_TERMS = {  # term of the peak -> the ledger's category, and in words
    "parameters": ("parameters", "held all the time"),
    "gathered_units": ("parameters", "units that are whole"),
    "gradients": ("gradients", "laid end to end, and means"),
    "incoming_gradients": ("gradients", "as autograd left them"),
    "optimizer_state": ("optimizer_state", "two moments and a counter"),
    "activations": ("activations", "from a plain step"),
    "receive_buffers": ("communication", "(N-1)/N of a flat"),
    "update_temporaries": ("other", "2 to 3 of a flat"),
    "batches": ("other", "of the caller"),
}


def explain(recording: "Recording", rank: int | None = None, peak: Mapping[str, int] | None = None) -> Table:
    """One row a term: its formula, its bytes, what was measured, and the difference, which is to be 0.

    Args:
        recording: of one of the four stages, with two steps of Adam or more.
        rank: whose bytes; None takes the first.
        peak: what `theory.peak` predicts for the run; with it the peak is explained too.

    Raises:
        ValueError: the recording has no such rank, or no state that a closed form speaks of.
    """
    from zerolab import theory

    chosen = recording.ranks[0] if rank is None else recording.rank(rank)
    stage, precision, state = (
        recording.meta.get("stage"),
        str(recording.meta.get("precision")),
        chosen.meta.get("state"),
    )
    if stage not in theory.STAGES or not isinstance(state, dict) or precision not in theory.BYTES_PER_PARAMETER:
        raise ValueError(
            f"no closed form for stage {stage!r} in {precision}, or fewer than two steps: record two under one of "
            f"{', '.join(theory.STAGES)}"
        )
    world_size = recording.world_size
    flats: list[Any] = [
        SimpleNamespace(numel=u.numel, padded=u.padded, shard_numel=u.padded // world_size, frozen=u.frozen)
        for u in recording.units
    ]
    formula = theory.state_bytes(str(stage), sum(flat.numel for flat in flats), world_size, precision)
    terms = theory.terms(str(stage), flats, world_size, precision)
    words = SHARE if precision == "fp32" else SHARE_BF16
    rows: list[dict[str, Any]] = []
    for category, nbytes in formula.items():
        share = words[category] + (" / N" if category in theory.SHARDED[str(stage)] else "")
        rows.append({"term": category, "formula": share, "bytes": nbytes, "measured": state[category]})
    rows += [{"term": name, "formula": TERMS[name], "bytes": nbytes} for name, nbytes in terms.items() if nbytes]
    rows.append(_total("state", sum(formula.values()) + sum(terms.values()), sum(state.values())))
    measured = chosen.meta.get("peak")
    if peak is not None and isinstance(measured, dict):
        rows += _peak_rows(peak, measured)
    return Table(rows, f"{stage} on {world_size} ranks, {precision}: bytes of rank {chosen.rank}")


def _peak_rows(peak: Mapping[str, int], measured: Mapping[str, int]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    seen: set[str] = set()
    for term, (category, words) in PEAK_TERMS.items():
        if peak.get(term):
            row: dict[str, Any] = {"term": f"peak: {term}", "formula": words, "bytes": peak[term]}
            rows.append(row if category in seen else row | {"measured": measured.get(category, 0)})
            seen.add(category)
    return [*rows, _total("peak", sum(peak.values()), sum(measured.values()))]


def _total(name: str, predicted: int, measured: int) -> dict[str, Any]:
    return {
        "term": name,
        "formula": "sum",
        "bytes": predicted,
        "measured": measured,
        "difference": measured - predicted,
    }
