"""Values as plain data, so that what an answer gave can be sent, compared and shown.

Neither torch nor NumPy is imported: a plain function is also judged in a browser, which has neither.
"""

import sys
from numbers import Real
from typing import Any


def plain(value: Any) -> Any:
    """The same value in numbers, text, lists, dicts and numpy arrays; anything else as its type's name."""
    # float64, so that comparing adds no rounding of its own; a copy, so that the answer's memory can go.
    if _is("torch.Tensor", value):
        whole = value.detach().cpu()
        value = (whole.double() if whole.is_floating_point() else whole).numpy().copy()
    if _is("numpy.generic", value) or (_is_array(value) and value.ndim == 0):
        return value.item()  # a tensor without dimensions is a number
    if isinstance(value, (bool, int, float, str, type(None))) or _is_array(value):
        return value
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, Real):  # a Fraction
        return float(value)
    # Never the value itself: whatever a learner returns has to cross from a process to this one.
    return f"<{type(value).__name__}>"


def listed(value: Any) -> Any:
    """A plain value with lists in place of arrays: `[2, 3]` is right whether it came as list, array or tensor."""
    if _is_array(value):
        return value.tolist()
    return [listed(item) for item in value] if isinstance(value, list) else value


def same(one: Any, other: Any, tolerance: float) -> bool:
    """Whether two plain values agree: numbers to `tolerance`, relative to those above 1, everything else exactly."""
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(same(*pair, tolerance) for pair in zip(one, other, strict=True))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key], tolerance) for key in other)
    if _is_array(one) and _is_array(other):
        return one.shape == other.shape and bool((abs(one - other) <= tolerance * abs(other).clip(1)).all())
    if _is_number(one) and _is_number(other):
        return bool(abs(one - other) <= tolerance * max(1, abs(other)))
    # True is no 1 here: a function that says yes has not counted.
    return type(one) is type(other) and not _is_array(one) and bool(one == other)


def first_difference(one: Any, other: Any, tolerance: float) -> str:
    """Where two lists part, as `describe` shows only how they begin. Empty for what is no list, or is equal."""
    if not (isinstance(one, list) and isinstance(other, list)) or same(one, other, tolerance):
        return ""
    for place, (left, right) in enumerate(zip(one, other, strict=False)):
        if not same(left, right, tolerance):
            return f"at place {place} stands {describe(left)}, and {describe(right)} belongs there"
    return f"it has {len(one)} items where {len(other)} belong"


def describe(value: Any) -> str:
    """A plain value in few characters: `1,234`, `[1, 2, 3]`, `4 numbers from 0.5 to 2`."""
    if _is_array(value):
        if value.size <= 6:
            return str([float(f"{item:.4g}") for item in value.reshape(-1).tolist()])
        return f"{value.size:,} numbers, the first {value.reshape(-1)[0]:.4g}, the last {value.reshape(-1)[-1]:.4g}"
    if isinstance(value, bool) or not _is_number(value):
        return str(value) if len(str(value)) <= 100 else str(value)[:97] + "..."
    return f"{value:,}" if isinstance(value, int) else f"{value:,.6g}"


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_array(value: Any) -> bool:
    return _is("numpy.ndarray", value)


def _is(name: str, value: Any) -> bool:
    """Whether a value is of this class of a library; of one that nobody has imported, nothing is."""
    library, _, kind = name.partition(".")
    return library in sys.modules and isinstance(value, getattr(sys.modules[library], kind))
