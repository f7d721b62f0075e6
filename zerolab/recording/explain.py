"""Measured bytes next to what theory says, term by term; whatever is left in the last column is a bug in one of them.

Your own loop names no stage, so each category is compared with both of its forms, whole and divided by N, and the
nearer one is shown. The difference in its row then reveals one copy too many, or parameters that N does not divide.
"""

from dataclasses import asdict
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from zerolab import theory
from zerolab.recording.events import RankRecording, UnitInfo
from zerolab.recording.memory import NO_SIZE
from zerolab.tables import Table

if TYPE_CHECKING:
    import torch

    from zerolab.recording.recording import Recording

# Ψ is the number of parameters; what is sharded gets its "/ N" below, from the same table as the formula.
SHARE = {"parameters": "4 Ψ", "gradients": "4 Ψ", "optimizer_state": "8 Ψ"}
SHARE_BF16 = {"parameters": "2 Ψ", "gradients": "2 Ψ", "optimizer_state": "12 Ψ"}
IN_8_BITS = {"8 Ψ": "(2 + 8/256) Ψ", "12 Ψ": "(6 + 8/256) Ψ"}  # both moments, with a scale for each block
TERMS = {
    "padding": "flats filled up to N equal shards",
    "step_counters": "4 bytes a flat",
    "fp32_gradient_shard": "fp32 copy of the owned gradients",
    "frozen": "no gradients, no optimizer state",
    "replicated": "whole on every rank, not a shard",
    "reduce_dtype": "gradients added up in another dtype",
    "amsgrad": "the largest second moments",
    "offloaded_copy": "fp32 copy that the optimizer updates",
    "offloaded_gradients": "copy of the owned gradients, in main memory",
    "other_dtypes": "parameters that are not fp32",
    "unused": "no optimizer state: never a gradient",
}
MOMENTS = {"Adam": (2,), "AdamW": (2,)}
ANY_MOMENTS = (0, 1, 2)  # how many numbers per parameter other optimizers keep, depending on their options


def explain(recording: "Recording", rank: int | None = None, stage: str | None = None) -> Table:
    """One row a term of the closed form: its formula, its bytes, what was measured, and the difference: it is to be 0.

    It takes one of the four stages or your own loop, with at least two steps of Adam. `rank` says whose bytes, and None
    takes the first; `stage` is the one that your own loop is meant to be, and None takes the one it comes closest to.
    Raises ValueError if the recording has no such rank, or no state, no closed form, or if there is no such stage.
    """
    chosen, world_size = recording.rank(rank), recording.world_size
    ran, precision, state = recording.info.stage, recording.info.precision, chosen.state
    if ran is None:
        return _beside_nearest(recording, chosen, stage)
    if stage not in (None, ran):
        raise ValueError(f"this run is {ran}, not {stage!r}: leave out stage=, which is for a loop of your own")
    # A wrong row is worse than none: other systems shard as they like, and have no closed form here.
    if ran not in theory.STAGES or precision is None or precision not in theory.BYTES_PER_PARAMETER:
        raise ValueError(
            f"no closed form for stage {ran!r} in {precision}: record one of {', '.join(theory.STAGES)}, or let "
            "zerolab.compare name what the system holds beyond its form"
        )
    if recording.info.formula is None:
        raise ValueError(
            f"no closed form for {recording.info.optimizer}: the formulas count two moments for each parameter, as "
            "Adam keeps them; record the run with Adam or AdamW"
        )
    flats, moments = flats_of(recording), chosen.info.moments
    formula = theory.state_bytes(ran, sum(flat.numel for flat in flats), world_size, precision, moments=moments)
    terms = theory.terms(ran, flats, world_size, precision, **chosen.info.for_terms)
    words = SHARE if precision == "fp32" else SHARE_BF16
    if moments == "8-bit":
        words = words | {"optimizer_state": IN_8_BITS[words["optimizer_state"]]}
    words = {category: text + " / N" * (category in theory.SHARDED[ran]) for category, text in words.items()}
    # The terms belong to no category, so what was measured stands with the formula and with the sum.
    rows: list[dict[str, Any]] = [
        {"term": category, "formula": words[category], "bytes": nbytes, "measured": state[category]}
        for category, nbytes in formula.items()
    ]
    rows += [{"term": name, "formula": TERMS[name], "bytes": nbytes} for name, nbytes in terms.items() if nbytes]
    total = _row("state", "sum", sum(formula.values()) + sum(terms.values()), sum(state.values()))
    return Table([*rows, total], f"{ran} on {world_size} ranks, {precision}: bytes of rank {chosen.rank}")


def flats_of(recording: "Recording") -> list[Any]:
    """The flats as they were in this run, as far as theory asks: four numbers and the dtype of each."""
    shares = [{"shard_numel": unit.padded // recording.world_size, "dtype": _dtype(unit)} for unit in recording.units]
    return [SimpleNamespace(**asdict(unit) | share) for unit, share in zip(recording.units, shares, strict=True)]


def _beside_nearest(recording: "Recording", chosen: RankRecording, stage: str | None) -> Table:
    """The table of a loop of one's own; the optimizer's masters and step counters have rows of their own."""
    if stage is not None and stage not in theory.STAGES:
        raise ValueError(f"unknown stage {stage!r}: choose one of {', '.join(theory.STAGES)}")
    if not recording.units:
        raise ValueError(f"{NO_SIZE}, and no form stands beside what was measured: memory() has that")
    state, counters, masters = chosen.state, chosen.info.step_counters, chosen.info.masters
    measured = {**state, "optimizer_state": state["optimizer_state"] - counters - masters}
    rows, divided = [], set()
    for category, forms in _forms(recording, chosen).items():
        # Whole first: with one rank, or where nothing is held, both are as near.
        shares = [category in theory.SHARDED[stage]] if stage else [False, True]
        divisors = [recording.world_size if share else 1 for share in shares]
        candidates = [(size // divisor, text, divisor) for divisor in divisors for text, size in forms]
        nbytes, text, divisor = min(candidates, key=lambda form: abs(form[0] - measured[category]))
        rows.append(_row(category, text + " / N" * (divisor > 1), nbytes, measured[category]))
        divided |= {category} if divisor > 1 else set()
    if masters:
        divisor = recording.world_size if "optimizer_state" in divided else 1
        rows.append(_masters(_units_of(recording, chosen), divisor, masters))
    if counters:
        rows.append(_row("step_counters", "as the optimizer keeps them", counters, counters))
    total = _row("state", "sum", sum(row["bytes"] for row in rows), sum(state.values()))
    nearest = (f"nearest to {name}" for name in theory.STAGES if set(theory.SHARDED[name]) == divided)
    beside = f"beside {stage}" if stage else next(nearest, "like no stage")
    title = f"a loop of your own on {recording.world_size} ranks, {beside}: bytes of rank {chosen.rank}"
    return Table([*rows, total], title)


def _units_of(recording: "Recording", chosen: RankRecording) -> list[UnitInfo]:
    """The units of the model that this rank trains: of a pipeline's stages, only its own."""
    expected, held = chosen.info.num_params, {event.unit for event in chosen.events if event.op == "hold"}
    every, mine = list(recording.units), [unit for unit in recording.units if unit.name in held]
    for units in (every, mine):
        if expected in (None, sum(unit.numel for unit in units)):
            return units
    raise ValueError(
        f"rank {chosen.rank} trains a model of its own, of {expected} parameters, under names that mean others on rank "
        f"{recording.ranks[0].rank}: leave out rank=, or give the parts of the models names of their own"
    )


def _forms(recording: "Recording", chosen: RankRecording) -> dict[str, list[tuple[str, int]]]:
    """The whole bytes of each category, in words and numbers; several where an optimizer's options decide."""
    units = _units_of(recording, chosen)
    sizes = [(unit.numel * _dtype(unit).itemsize, unit.frozen) for unit in units]
    every, trained = sum(size for size, _ in sizes), sum(size for size, frozen in sizes if not frozen)
    widths = {_dtype(unit).itemsize for unit in units}
    width = f"{widths.pop()} Ψ" if len(widths) == 1 else "Ψ, each in its dtype"
    what = " of what is trained" if trained < every else ""
    moments = MOMENTS.get(str(recording.info.optimizer), ANY_MOMENTS)
    forms = {"parameters": [(width, every)]}
    if chosen.info.masters:  # whose gradients and moments are in their dtype
        width, trained = "4 Ψ", 4 * sum(unit.numel for unit in units if not unit.frozen)
    return forms | {
        "gradients": [(width + what, trained)],
        "optimizer_state": [(f"{count} x {width}{what}" if count else "none", count * trained) for count in moments],
    }


def _masters(units: list[UnitInfo], divisor: int, measured: int) -> dict[str, Any]:
    """The row of what is updated in place of parameters: of fp32 ones, it is a copy too many."""
    copied = 4 * sum(unit.numel for unit in units if _dtype(unit).itemsize < 4 and not unit.frozen)
    formula = "4 Ψ" + " of what is trained" * any(unit.frozen for unit in units) + " / N" * (divisor > 1)
    return _row("masters", formula if copied else "none", copied // divisor, measured)


def _dtype(unit: UnitInfo) -> "torch.dtype":
    import torch

    # From a file anything may come: a name that torch lacks counts as fp32, as the formula does.
    found = getattr(torch, unit.dtype, None)
    return found if isinstance(found, torch.dtype) else torch.float32


def _row(term: str, formula: str, nbytes: int, measured: int) -> dict[str, Any]:
    return {"term": term, "formula": formula, "bytes": nbytes, "measured": measured, "difference": measured - nbytes}
