"""A rank's memory as rows of a table: category by category, on a GPU device by device, and all that a card holds."""

from collections.abc import Mapping, Sequence
from typing import Any

from zerolab.recording import card
from zerolab.recording.events import CATEGORIES, STATE, RankInfo, State

HOST = "main memory"
BOTH = "both"
ON_CARD = "on the card"
Columns = Mapping[str, Mapping[str, int] | None]


def rows(info: RankInfo, formula: State | None) -> list[dict[str, Any]]:
    """Bytes at the update (`state`), by formula and at the peak; of a rank on a GPU each device has rows of its own.

    The two peaks are not at the same moment: the GPU and main memory each have their own. Below the GPU's rows comes
    what the card holds besides the tensors, up to the bytes that the driver counts.
    """
    if info.host_peak is None:
        return _by_category({"state": info.state, "formula": formula, "peak": info.peak}, CATEGORIES)
    here, there = str(info.device), info.host_state
    state = less(info.state, there) if info.state and there else None
    beside = [{"category": name, "peak": nbytes} for name, nbytes in beside_tensors(info).items()]
    named = {
        here: [*_by_category({"state": state, "peak": info.peak}, CATEGORIES), *beside],
        HOST: _by_category({"state": there, "peak": info.host_peak}, CATEGORIES),
        BOTH: _by_category({"state": info.state, "formula": formula}, STATE),
    }
    return [{"device": device} | row for device, of_device in named.items() for row in of_device]


def less(one: dict[str, int], other: dict[str, int]) -> dict[str, int]:
    """The difference, category by category."""
    return {name: nbytes - other[name] for name, nbytes in one.items()}


def _by_category(columns: Columns, categories: Sequence[str]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [
        {"category": category} | {name: (values or {}).get(category) for name, values in columns.items()}
        for category in categories
    ]
    total = {name: sum(values.values()) if values else None for name, values in columns.items()}
    return [*found, {"category": "total"} | total]


def beside_tensors(info: RankInfo) -> dict[str, int]:
    """What the card held besides the tensors in the last step, by name, and in total; empty if it was not asked.

    The tensors' own bytes are the peak, in the row above.
    """
    if not info.card:
        return {}
    terms = card.terms(info.card[-1])
    return {name: nbytes for name, nbytes in terms.items() if name != card.TENSORS} | {ON_CARD: sum(terms.values())}
