"""The memory of ranks as rows of tables, of a recording's and of a comparison's; on a GPU device by device."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from zerolab.recording.events import CARD_FIGURES, CATEGORIES, STATE, CardFigures, RankInfo, RankRecording, State
from zerolab.tables import Table

if TYPE_CHECKING:
    from zerolab.recording.recording import Recording

HOST = "main memory"
BOTH = "both"
ON_CARD = "on the card"
_TENSORS = "tensors"
NO_SIZE = "no module was called with its own parameters, so that Ψ is not known"
Columns = Mapping[str, Mapping[str, int] | None]


def table(recording: "Recording") -> Table:
    """One row a rank: bytes of state at the update, by formula, at the peak, and sent in the last step."""
    rows: list[dict[str, Any]] = []
    for rank in recording.ranks:
        info = rank.info
        row: dict[str, Any] = {"rank": rank.rank, **(info.state or dict.fromkeys(STATE))}
        row |= {"state": _total(info.state), "formula": _total(recording.info.formula), "peak": info.peak_total}
        if info.host_peak is not None:
            row |= {"in main memory": _total(info.host_state), "its peak": _total(info.host_peak)}
        rows.append(row | {"logical bytes": info.logical_bytes[-1] if info.logical_bytes else None})
    title = f"{recording.title}: bytes a rank, at the update and at the peak of the last step"
    return Table(rows, title + _why_empty(recording, recording.ranks[0]))


def memory(recording: "Recording", rank: int | None = None) -> Table:
    """One row a category: bytes of `rank` (None: the first) at the update, by formula, and at the peak.

    For a rank on a GPU, this for each device, whose peaks are not at the same moment; and what the card holds besides
    the tensors, up to the bytes that the driver counts. Raises ValueError if the rank is not in the recording.
    """
    chosen = recording.rank(rank)
    title = f"{recording.title}: bytes of rank {chosen.rank}{_why_empty(recording, chosen)}"
    return Table(_rows(chosen.info, recording.info.formula), title)


def highest(recording: "Recording", category: str, rank: int | None = None, step: int | None = None) -> int:
    """The most live bytes of one category at any event of one step on a rank; between two there may be more.

    The categories are `parameters`, `gradients`, `optimizer_state`, `activations`, `communication` and `other`. Of
    ranks, None takes the first; of steps, which are counted from 1, the last. Raises ValueError for a category, a rank
    or a step that is not in the recording.
    """
    recording.info.check_bytes()
    of_rank = recording.rank(rank)
    chosen = of_rank.info.steps if step is None else step
    # The steps before the last allocate what stays, so the last is what a step is like.
    found = [event.live[category] for event in of_rank.events if event.step == chosen and category in event.live]
    if not found:
        raise ValueError(
            f"no live bytes of {category!r} in step {chosen!r}: choose one of {', '.join(CATEGORIES)}, "
            f"and a step from 1 to {of_rank.info.steps}"
        )
    return max(found)


def _why_empty(recording: "Recording", chosen: RankRecording) -> str:
    """The reason, on a line of its own, for columns without a number; nothing where there is none."""
    try:
        _ = chosen.state
    except ValueError as reason:
        return f"\n{reason}"
    info = recording.info
    if not recording.units and info.stage is None:
        return f"\nno formula: {NO_SIZE}"
    if info.formula is None and info.stage is None:
        return "\nno formula: nothing says which stage this loop is; explain() sets it beside the nearest one"
    if info.formula is None:
        return f"\nno formula: no closed form covers {info.stage} in {info.precision} with {info.optimizer}"
    return ""


def _rows(info: RankInfo, formula: State | None) -> list[dict[str, Any]]:
    if info.host_peak is None:
        return _by_category({"state": info.state, "formula": formula, "peak": info.peak}, CATEGORIES)
    here, there = str(info.device), info.host_state
    state = _less(info.state, there) if info.state and there else None
    beside = [{"category": name, "peak": nbytes} for name, nbytes in _beside_tensors(info).items()]
    named = {
        here: [*_by_category({"state": state, "peak": info.peak}, CATEGORIES), *beside],
        HOST: _by_category({"state": there, "peak": info.host_peak}, CATEGORIES),
        BOTH: _by_category({"state": info.state, "formula": formula}, STATE),
    }
    return [{"device": device} | row for device, of_device in named.items() for row in of_device]


def _by_category(columns: Columns, categories: Sequence[str]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [
        {"category": category} | {name: (values or {}).get(category) for name, values in columns.items()}
        for category in categories
    ]
    return [*found, {"category": "total"} | {name: _total(values) for name, values in columns.items()}]


def _total(by_category: Mapping[str, int] | None) -> int | None:
    return sum(by_category.values()) if by_category else None


def _less(one: dict[str, int], other: dict[str, int]) -> dict[str, int]:
    """The difference, category by category."""
    return {name: nbytes - other[name] for name, nbytes in one.items()}


def terms_on_card(figures: CardFigures) -> dict[str, int]:
    """The bytes on the card as a sum of named terms: what the driver says of the process, or else of the whole card.

    Raises ValueError if one of `CARD_FIGURES` is missing that must be there.
    """
    known = {name: value for name, value in figures.items() if value is not None}
    if missing := [name for name in CARD_FIGURES if name not in {*known, "process", "requested"}]:
        raise ValueError(f"the figures of a card lack {', '.join(missing)}: record the run again")
    rest = "context and NCCL" if "process" in known else "context, NCCL and other processes"
    return {
        _TENSORS: known["ledger"],
        "from before": known["older"],
        "rounding and workspaces": known["allocated"] - known["older"] - known["ledger"],
        "cached": known["reserved"] - known["allocated"],
        rest: known.get("process", known["used"]) - known["reserved"],
    }


def _beside_tensors(info: RankInfo) -> dict[str, int]:
    """What the card held besides the tensors in the last step, by name, and in total; empty if it was not asked.

    The tensors' own bytes are the peak, in the row above.
    """
    if not info.card:
        return {}
    terms = terms_on_card(info.card[-1])
    return {name: nbytes for name, nbytes in terms.items() if name != _TENSORS} | {ON_CARD: sum(terms.values())}


def summary(row: dict[str, Any]) -> dict[str, Any]:
    """A row of a comparison as one line of numbers, without the terms that are zero."""
    state, formula = sum(row["state"].values()), sum(row["formula"].values())
    return {
        "stage": row["stage"],
        **row["state"],
        "state": state,
        "formula": formula,
        **{name: value for name, value in row["terms"].items() if value},
        "unexplained": state - formula - sum(row["terms"].values()),
        "sent a step": row["traffic"]["logical_bytes"],
        "first loss": row["losses"][0] if row["losses"] else None,  # a simulation has none
        "last loss": row["losses"][-1] if row["losses"] else None,
        "step_seconds": row["step_seconds"],
    }


def seconds_range(seconds: list[float] | None) -> dict[str, float]:
    """The fastest and the slowest step; empty where nothing was measured, as in a simulation."""
    return {"fastest_seconds": min(seconds), "slowest_seconds": max(seconds)} if seconds else {}


def sizes(rows: list[dict[str, Any]]) -> set[str]:
    """The columns that are bytes."""
    return {name for row in rows for name, value in row.items() if isinstance(value, int)}


def of_row(info: RankInfo) -> dict[str, Any]:
    """What a comparison's row has of a rank on a GPU, beyond what it has on a CPU."""
    if info.host_state is None:
        return {}
    figures = {"host_state": info.host_state, "host_peak": info.host_peak, "card": _beside_tensors(info)}
    return {"device": info.device} | figures


def states(row: dict[str, Any], both: dict[str, Any]) -> list[dict[str, Any]]:
    """A line of a comparison, `both`, as three: the state on both devices, of which the formula speaks, and on each."""
    devices = {row["device"]: _less(row["state"], row["host_state"]), HOST: row["host_state"]}
    apart = [{"device": device, **state, "state": sum(state.values())} for device, state in devices.items()]
    return [{"stage": row["stage"], "device": BOTH} | both, *apart]


def peaks(row: dict[str, Any]) -> list[dict[str, Any]]:
    """The peak of a comparison's row: one line, and on a GPU one for each device."""
    peak, host = row["peak"], row.get("host_peak")
    line = {**peak, "peak": sum(peak.values())}
    if host is None:
        return [line]
    return [{"device": row["device"], **line, **row["card"]}, {"device": HOST, **host, "peak": sum(host.values())}]
