"""Values as plain data, so that what an answer gave can be sent, compared and shown.

Neither torch nor NumPy is imported: a plain function is also judged in a browser, which has neither.
"""

import math
import sys
from collections import Counter
from decimal import Decimal
from functools import partial
from itertools import repeat, takewhile
from numbers import Real
from typing import Any

FEW = 6  # elements of an array that are shown one by one
EXACT = 2**53  # below it every digit of a whole float means something
HUGE = 10**100  # from here on nobody reads digits, and Python writes no more than some thousand
ALIKE = 1e-3  # relative difference between what is one multiple of what is right, each rounded as may be
SUMS_ALIKE = 1e-6  # and between what is added to what is right, as far as digits that cancel out leave it
NUMBERS = "biufc"  # NumPy's kinds of dtypes: bool, int, unsigned, float, complex


class Words(str):
    """What is said of a value that is no plain data; text of the answer's own is quoted, and this is not."""

    __slots__ = ()
    __repr__ = str.__str__


def kind_of(value: Any) -> str:
    """What a value is, for a sentence: `nothing`, `an int`, `a Tensor`."""
    name = type(value).__name__
    article = "an" if name.lower().startswith(("a", "e", "i", "o", "u", "nd")) else "a"
    return "nothing" if value is None else f"{article} {name}"


def plain(value: Any) -> Any:
    """The same value in numbers, text, lists, dicts and numpy arrays; anything else as its type's name."""
    if _is("torch.Tensor", value) and not hasattr(value, "to_local"):  # all of a DTensor would have to be gathered
        value = _read(value)
    if _is("numpy.generic", value) or (_is_array(value) and value.ndim == 0):
        return value.item()  # a tensor without dimensions is a number
    if _is_array(value) and value.dtype.kind not in NUMBERS:
        value = value.tolist()
    huge = isinstance(value, int) and abs(value) >= HUGE
    if (isinstance(value, (bool, int, float, str, type(None))) and not huge) or _is_array(value):
        return value
    if isinstance(value, (list, tuple, range)):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (Real, Decimal)) and not huge:  # a Fraction
        return float(value)
    # Never the value itself: whatever a learner returns has to cross from a process to this one.
    what = f"a number of {math.floor(math.log10(abs(value))) + 1:,} digits" if huge else type(value).__name__
    return Words(f"<{what}>")


def _read(tensor: Any) -> Any:
    """A tensor's values as an array; in words, if it has none that NumPy can hold: on the device meta, or quantized."""
    try:
        whole = tensor.detach().cpu()
        whole = whole if whole.layout is sys.modules["torch"].strided else whole.to_dense()
        # float64, so that comparing adds no rounding of its own; a copy, so that the answer's memory can go.
        return (whole.double() if whole.is_floating_point() else whole).numpy().copy()
    except (RuntimeError, TypeError):
        return Words(f"<a tensor of {tensor.dtype} on {tensor.device}, whose values cannot be read>")


def listed(value: Any) -> Any:
    """A plain value with lists in place of arrays: `[2, 3]` is right whether it came as list, array or tensor."""
    if _is_array(value):
        return value.tolist()
    return [listed(item) for item in value] if isinstance(value, list) else value


def same(one: Any, other: Any, tolerance: float) -> bool:
    """Whether two plain values agree: numbers to `tolerance`, relative to those above 1, everything else exactly."""
    one, other = _alike(one, other)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(same(*pair, tolerance) for pair in zip(one, other, strict=True))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key], tolerance) for key in other)
    if _is_array(one) and _is_array(other):
        return one.shape == other.shape and bool(_agreeing(one, other, tolerance).all())
    if _is_number(one) and _is_number(other):
        return bool(abs(one - other) <= tolerance * max(1, abs(other)) or (math.isnan(one) and math.isnan(other)))
    # True is no 1 here: a function that says yes has not counted.
    return type(one) is type(other) and not _is_array(one) and bool(one == other)


def first_difference(one: Any, other: Any, tolerance: float) -> str:
    """What `describe` does not show of two values that differ: another kind or shape, or where they part; else empty.

    `one` is what is, `other` what should be.
    """
    one, other = _alike(one, other)
    if same(one, other, tolerance) or one is None or isinstance(one, Words):
        return ""
    kinds = _kind(one), _kind(other)
    if kinds[0] != kinds[1]:
        return f"it is {kinds[0]} where {kinds[1]} belongs"
    if isinstance(one, list):
        return _lists_part(one, other, tolerance)
    if _is_array(one):
        return _arrays_part(one, other, tolerance)
    if isinstance(one, float) and isinstance(other, int) and math.isfinite(one) and not one.is_integer():
        return "it is a fraction where a whole number belongs"
    return f"it is {one!r}, not {other!r}" if _is_number(one) and describe(one) == describe(other) else ""


def _lists_part(one: list[Any], other: list[Any], tolerance: float) -> str:
    for place, (left, right) in enumerate(zip(one, other, strict=False)):
        if not same(left, right, tolerance):
            return _at(place, left, right, tolerance)
    return f"it has {len(one)} items where {len(other)} belong"


def _arrays_part(one: Any, other: Any, tolerance: float) -> str:
    if one.shape != other.shape:
        return f"its shape is {list(one.shape)} where {list(other.shape)} belongs"
    if one.size <= FEW and describe(one) != describe(other):
        return ""
    place = [int(each[0]) for each in (~_agreeing(one, other, tolerance)).nonzero()]
    left, right = one[tuple(place)].item(), other[tuple(place)].item()
    return _at(place[0] if len(place) == 1 else place, left, right, tolerance)


def _at(place: Any, left: Any, right: Any, tolerance: float) -> str:
    said = describe(left), describe(right)
    if said[0] == said[1] or _is_array(left):
        deeper = "" if _is_number(left) else first_difference(left, right, tolerance)
        if deeper:
            return f"at place {place}, {deeper}"
        said = repr(left), repr(right)
    return f"at place {place} stands {said[0]}, and {said[1]} belongs there"


def likeness(one: Any, other: Any, tolerance: float) -> str:
    """How all numbers of two arrays or lists that differ are related, in a sentence; empty if they are not, or are few.

    `one` is what is, `other` what should be.
    """
    left, right = (each.reshape(-1).tolist() if _is_array(each) else each for each in (one, other))
    if not all(isinstance(each, list) and all(map(_is_number, each)) for each in (left, right)):
        return ""
    if len(left) != len(right) or sum(map(bool, right)) < FEW:
        return ""
    if times := _times(left, right, tolerance):
        return f"Each number is {times:.4g} times the right one."
    return "These are the right numbers, in another order." if same(sorted(left), sorted(right), tolerance) else ""


def displaced(one: Any, other: Any, tolerance: float) -> str:
    """Where the first numbers that differ belong, in a sentence; of a matrix its rows. Empty if that is nowhere.

    `one` is what is, `other` what should be. Fewer than a few in a row are no sign of anything.
    """
    if not (_is_array(one) and _is_array(other) and one.ndim == other.ndim > 0):
        return ""
    left, right = (each.tolist() if each.ndim == 1 else list(each) for each in (one, other))
    first = next((place for place, pair in enumerate(zip(left, right, strict=False)) if not same(*pair, tolerance)), 0)
    places = [place for place, each in enumerate(right) if left and same(left[first], each, tolerance)]
    if len(places) != 1 or places == [first]:  # where there are several, none is known
        return ""
    moved = zip(left[first:], right[places[0] :], strict=False)
    run = sum(1 for _ in takewhile(lambda pair: same(*pair, tolerance), moved))
    if run < FEW:
        return ""
    far, where = abs(places[0] - first), "further on" if places[0] > first else "further to the front"
    what = "numbers" if one.ndim == 1 else "rows"
    places_away = "1 place" if far == 1 else f"{far:,} places"
    return f"At places {first} to {first + run - 1} stand the {what} that belong {places_away} {where}."


def in_common(given: list[Any], right: list[Any], tolerance: float) -> str:
    """What all of these values are to the right ones, each of which differs; empty if nothing that is known.

    Of lists, that they have the right items; of numbers, by what they are multiplied, or what is added to them.
    """
    if all(isinstance(each, list) for each in (*given, *right)):
        alike = all(
            Counter(map(repr, one)) == Counter(map(repr, other)) for one, other in zip(given, right, strict=True)
        )
        return "the right items, in another order" if alike else ""
    if not all(map(_is_number, (*given, *right))) or len(set(right)) < FEW or len(set(given)) == 1:
        return ""
    if times := _times(given, right, tolerance):
        return f"{times:.4g} times the right one"
    more = _more(given, right, tolerance)
    return f"{describe(abs(more))} {'more' if more > 0 else 'less'} than the right one" if more else ""


def _times(left: list[Any], right: list[Any], tolerance: float) -> float:
    """By what each number is multiplied to give the other; 0 if there is no such factor, or it is 1."""
    largest = max(right, key=abs)
    times = left[right.index(largest)] / largest if largest else 0
    close = partial(math.isclose, rel_tol=ALIKE, abs_tol=tolerance)
    if math.isfinite(times) and not close(times, 1) and all(map(close, left, [times * each for each in right])):
        return float(times)
    return 0.0


def _more(left: list[Any], right: list[Any], tolerance: float) -> Any:
    """What is added to each number to give the other; 0 if nothing is."""
    by = [one - other for one, other in zip(left, right, strict=True)]
    if all(isinstance(each, int) for each in by):  # without a digit that is rounded
        return by[0] if len(set(by)) == 1 else 0
    alike = all(math.isfinite(each) and math.isclose(each, by[0], rel_tol=SUMS_ALIKE) for each in by)
    # Beside much that is added the rest would not count: without what is added all has to be right.
    return by[0] if alike and all(map(same, (each - by[0] for each in left), right, repeat(tolerance))) else 0


def describe(value: Any) -> str:
    """A plain value in few characters: `1,234`, `[1, 2, 3]`, `4 numbers from 0.5 to 2`."""
    if _is_array(value):
        if value.size <= FEW:
            items = value.reshape(-1).tolist()
            return str([float(f"{item:.4g}") if isinstance(item, float) else item for item in items])
        return f"{value.size:,} numbers, the first {value.reshape(-1)[0]:.4g}, the last {value.reshape(-1)[-1]:.4g}"
    if isinstance(value, bool) or not _is_number(value):
        said = repr(_with_words(value))
        return said if len(said) <= 100 else said[:97] + "..."
    if isinstance(value, float) and not (value.is_integer() and abs(value) < EXACT):
        return f"{value:,.6g}"
    return f"{int(value):,}"


def _with_words(value: Any) -> Any:
    """Lists and dicts with words in place of arrays."""
    if isinstance(value, list):
        return [_with_words(item) for item in value]
    if isinstance(value, dict):
        return {key: _with_words(item) for key, item in value.items()}
    return Words(describe(value)) if _is_array(value) else value


def _kind(value: Any) -> str:
    if _is_array(value):
        return "a tensor"
    kinds = {"NoneType": "None", "bool": "a bool", "str": "text", "list": "a list", "dict": "a dict"}
    return kinds.get(type(value).__name__, "a number")


def _alike(one: Any, other: Any) -> tuple[Any, Any]:
    """Two values, `one` of the kind of `other` where nothing else tells them apart.

    An array of one element is a number where the other is one: it is right with `item()` or without. Where a list
    belongs, an array is one.
    """
    if _is_number(one) or _is_number(other):
        one, other = (each.item() if _is_array(each) and each.size == 1 else each for each in (one, other))
    if isinstance(other, list) and _is_array(one) and one.ndim:
        one = list(one) if one.ndim > 1 else one.tolist()
    return one, other


def _agreeing(one: Any, other: Any, tolerance: float) -> Any:
    return abs(one - other) <= tolerance * abs(other).clip(1)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_array(value: Any) -> bool:
    return _is("numpy.ndarray", value)


def _is(name: str, value: Any) -> bool:
    """Whether a value is of this class of a library; of one that nobody has imported, nothing is."""
    library, _, kind = name.partition(".")
    return library in sys.modules and isinstance(value, getattr(sys.modules[library], kind))
