"""Whether the figures in a file's `meta` are what tables, pictures and formulas compute with: a file may be damaged."""

from collections.abc import Callable, Mapping

from zerolab.recording.events import CATEGORIES

_STATE = set(CATEGORIES[:3])


def wrong_key(meta: Mapping[str, object]) -> str | None:
    """The first key whose value is not of the kind that its readers expect; None if all are, or are None."""
    # What this version does not know it leaves aside: a later one may add to it.
    return next((key for key, fits in _KINDS.items() if (value := meta.get(key)) is not None and not fits(value)), None)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_flag(value: object) -> bool:
    return isinstance(value, bool)


def _are_numbers(value: object) -> bool:
    return isinstance(value, list) and all(item is None or _is_number(item) for item in value)


def _is_by_category(value: object) -> bool:
    return isinstance(value, dict) and value.keys() <= set(CATEGORIES) and all(map(_is_number, value.values()))


def _is_state(value: object) -> bool:
    return isinstance(value, dict) and value.keys() == _STATE and _is_by_category(value)


def _is_by_phase(value: object) -> bool:
    return isinstance(value, dict) and all(map(_is_by_category, value.values()))


_KINDS: dict[str, Callable[[object], bool]] = {
    **dict.fromkeys(("num_params", "steps", "started_ns", "peak_total"), _is_number),
    **dict.fromkeys(("stage", "optimizer", "precision", "backend", "device", "torch"), _is_text),
    **dict.fromkeys(("offload", "simulated"), _is_flag),
    **dict.fromkeys(("wire_bytes", "operations", "logical_bytes", "losses"), _are_numbers),
    **dict.fromkeys(("formula", "peak"), _is_by_category),
    "state": _is_state,
    "peaks": _is_by_phase,
}
