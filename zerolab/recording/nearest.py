"""A loop of one's own beside the closed form that it comes nearest to, or beside the stage that it is meant to be.

Nobody says what such a loop is, so each category is set beside both of its forms, whole and divided by N, and the
nearer one is shown. What differs then stands in its row: a copy too many, or parameters that N does not divide.
"""

from typing import TYPE_CHECKING, Any

from zerolab.recording.events import RankRecording, State
from zerolab.tables import Table

if TYPE_CHECKING:
    import torch

    from zerolab.recording.recording import Recording

MOMENTS = {"Adam": (2,), "AdamW": (2,)}
ANY_MOMENTS = (0, 1, 2)  # how many numbers a parameter other optimizers keep, depending on their options


def beside_nearest(recording: "Recording", chosen: RankRecording, state: State, stage: str | None) -> Table:
    """One row a category: formula, bytes, measured, difference; the optimizer's step counters have one of their own.

    Args:
        recording: of a loop without an engine.
        chosen: the rank whose state is set beside the formula.
        state: its bytes, by category.
        stage: one of `theory.STAGES`; None takes of each category the nearer form.

    Raises:
        ValueError: there is no such stage.
    """
    from zerolab import theory

    if stage is not None and stage not in theory.STAGES:
        raise ValueError(f"unknown stage {stage!r}: choose one of {', '.join(theory.STAGES)}")
    counters = chosen.info.step_counters
    measured = {**state, "optimizer_state": state["optimizer_state"] - counters}
    rows, divided = [], set()
    for category, forms in _forms(recording).items():
        # Whole first: with one rank, or where nothing is held, both are as near.
        shares = [category in theory.SHARDED[stage]] if stage else [False, True]
        divisors = [recording.world_size if share else 1 for share in shares]
        candidates = [(size // divisor, text, divisor) for divisor in divisors for text, size in forms]
        nbytes, text, divisor = min(candidates, key=lambda form: abs(form[0] - measured[category]))
        rows.append(_row(category, text + " / N" * (divisor > 1), nbytes, measured[category]))
        divided |= {category} if divisor > 1 else set()
    if counters:
        rows.append(_row("step_counters", "as the optimizer keeps them", counters, counters))
    total = _row("state", "sum", sum(row["bytes"] for row in rows), sum(state.values()))
    alike = next(
        (f"nearest to {name}" for name in theory.STAGES if set(theory.SHARDED[name]) == divided), "like no stage"
    )
    beside = f"beside {stage}" if stage else alike
    title = f"a loop of your own on {recording.world_size} ranks, {beside}: bytes of rank {chosen.rank}"
    return Table([*rows, total], title)


def _forms(recording: "Recording") -> dict[str, list[tuple[str, int]]]:
    """The whole bytes of each category, in words and numbers; several where an optimizer's options decide."""
    every = sum(unit.numel * dtype(unit.dtype).itemsize for unit in recording.units)
    trained = sum(unit.numel * dtype(unit.dtype).itemsize for unit in recording.units if not unit.frozen)
    sizes = {dtype(unit.dtype).itemsize for unit in recording.units}
    width = f"{sizes.pop()} Ψ" if len(sizes) == 1 else "Ψ, each in its dtype"
    what = " of what is trained" if trained < every else ""
    moments = MOMENTS.get(str(recording.info.optimizer), ANY_MOMENTS)
    return {
        "parameters": [(width, every)],
        "gradients": [(width + what, trained)],
        "optimizer_state": [(f"{count} x {width}{what}" if count else "none", count * trained) for count in moments],
    }


def dtype(name: str) -> "torch.dtype":
    """The dtype that a unit names."""
    import torch

    # From a file anything may come: a name that torch lacks counts as fp32, as the formula does.
    found = getattr(torch, name, None)
    return found if isinstance(found, torch.dtype) else torch.float32


def _row(term: str, formula: str, nbytes: int, measured: int) -> dict[str, Any]:
    return {"term": term, "formula": formula, "bytes": nbytes, "measured": measured, "difference": measured - nbytes}
