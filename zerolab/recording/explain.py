"""Measured bytes beside what theory says, term by term; what is left in the last column is a bug in one of the two."""

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from zerolab import theory
from zerolab.recording.events import RankRecording, State
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


def why_empty(recording: "Recording", chosen: RankRecording) -> str:
    """The reason, on a line of its own, for columns without a number; nothing where there is none."""
    try:
        _ = chosen.state
    except ValueError as reason:
        return f"\n{reason}"
    if recording.info.formula is None and recording.info.stage is None:
        return "\nno formula: nothing says which stage this loop is; explain() sets it beside the nearest one"
    return ""


def explain(
    recording: "Recording",
    rank: int | None = None,
    beside: str | None = None,
) -> Table:
    """One row a term: its formula, its bytes, what was measured, and the difference, which is to be 0.

    Args:
        recording: of one of the four stages or a loop of one's own, with two steps of Adam or more.
        rank: whose bytes; None takes the first.
        beside: the stage that a loop of one's own is meant to be; None takes the one that it comes nearest to.

    Raises:
        ValueError: the recording has no such rank, or no state that a closed form speaks of.
    """
    chosen = recording.ranks[0] if rank is None else recording.rank(rank)
    stage, precision, state = recording.info.stage, recording.info.precision, chosen.state
    if stage is None:
        return beside_nearest(recording, chosen, state, beside)
    if beside not in (None, stage):
        raise ValueError(f"this run is {stage}, not {beside!r}: leave out stage=, which is for a loop of your own")
    # A wrong row is worse than none: other systems shard as they like, and have no closed form here.
    if stage not in theory.STAGES or precision is None or precision not in theory.BYTES_PER_PARAMETER:
        raise ValueError(
            f"no closed form for stage {stage!r} in {precision}: record one of {', '.join(theory.STAGES)}, or let "
            "zerolab.compare name what the system holds beyond its form"
        )
    rows = _state_rows(recording, stage, precision, state, chosen.info.updated)
    return Table(rows, f"{stage} on {recording.world_size} ranks, {precision}: bytes of rank {chosen.rank}")


def _state_rows(
    recording: "Recording",
    stage: str,
    precision: str,
    state: State,
    updated: dict[str, list[int]],
) -> list[dict[str, Any]]:
    world_size = recording.world_size
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
    terms = theory.terms(stage, flats, world_size, precision, offload=recording.info.offload, updated=updated)
    words = SHARE if precision == "fp32" else SHARE_BF16
    rows: list[dict[str, Any]] = []
    for category, nbytes in formula.items():
        share = words[category] + (" / N" if category in theory.SHARDED[stage] else "")
        # The terms that follow belong to no category, so what was measured stands with the formula and with the sum.
        rows.append({"term": category, "formula": share, "bytes": nbytes, "measured": state[category]})
    rows += [{"term": name, "formula": TERMS[name], "bytes": nbytes} for name, nbytes in terms.items() if nbytes]
    return [*rows, _total("state", sum(formula.values()) + sum(terms.values()), sum(state.values()))]


def _total(name: str, predicted: int, measured: int) -> dict[str, Any]:
    return {
        "term": name,
        "formula": "sum",
        "bytes": predicted,
        "measured": measured,
        "difference": measured - predicted,
    }
