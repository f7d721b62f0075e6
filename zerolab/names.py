"""Names, unknown ones with what was probably meant; and other arguments that make no sense: counts and fractions."""

import re
from collections.abc import Collection, Iterable, Sequence
from difflib import get_close_matches
from numbers import Real
from typing import Any

ROOT = "root"  # the unit of what is in no block
SHORT = 16  # up to so many names are all listed; of more, only the nearest ones, if there are any


def check_known(what: str, given: object, known: Collection[object]) -> None:
    """Raises ValueError with the sentence of `unknown` unless `given` is one of `known`."""
    if given not in tuple(known):  # a list is in no set
        raise ValueError(unknown(what, given, map(str, known)))


def check_count(what: str, given: float) -> int:
    """The same as an int. Raises ValueError unless it is a whole number, 1 or more: 7e9 is one, and so are NumPy's."""
    is_number = isinstance(given, Real) and not isinstance(given, bool)
    if not (is_number and given >= 1 and given // 1 == given):  # false for nan and inf too
        raise ValueError(f"the {what} is {given!r}: it must be a whole number, 1 or more")
    return int(given)


def check_type(name: str, given: object, kinds: Any, wanted: str) -> None:
    """Raises TypeError unless `given`, which is called `name`, is one of these `kinds`; `wanted` says them in words."""
    if not isinstance(given, kinds):
        raise TypeError(f"{name} is {given!r}: pass {wanted}")


def check_divides(name: str, count: int, of: int, what: str) -> None:
    """Raises ValueError unless `count`, which is called `name`, divides `of`, which are `what`."""
    check_count(name, count)
    if of % count:
        raise ValueError(f"{name} is {count}, which does not divide {of} {what}: choose a number that does")


def check_fraction(what: str, given: float) -> None:
    """Raises ValueError unless `given` is above 0 and at most 1."""
    if not 0 < given <= 1:
        raise ValueError(f"the {what} is {given!r}: it must be a fraction, above 0 and at most 1")


def stage_names(stages: str | Sequence[str], known: Iterable[str], what: str = "stage") -> list[str]:
    """The names as a list; `what` they are names of.

    Raises TypeError for anything but text or a sequence of names, and ValueError for none, or for one that is given
    twice: rows and recordings go by it.
    """
    if not isinstance(stages, Iterable):
        some = [*known][:2]
        raise TypeError(f"{what}s is {stages!r}: pass names, such as {some} or {','.join(some)!r}")
    names = [stage.strip() for stage in stages.split(",") if stage.strip()] if isinstance(stages, str) else list(stages)
    if not names:
        raise ValueError(f"no {what}s were named: choose from {', '.join(known)}")
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"{name} is named {names.count(name)} times: name each {what} once")
    return names


def unknown(what: str, given: object, known: Iterable[str]) -> str:
    """The sentence for a `stage`, say, that does not exist: the `known` names, and what was probably meant."""
    names = list(known)
    # A person means the same by `llama_7B`, `Llama 7B` and `llama-7b`.
    plain = {_plain(name): name for name in reversed(names)}
    near = [plain[close] for close in get_close_matches(_plain(str(given)), plain, n=3)]
    listed = [f"choose one of {', '.join(names)}"] if len(names) <= SHORT or not near else []
    meant = [f"did you mean {_either(near)}?"] if near else []
    return f"unknown {what} {given!r}: {'; '.join([*listed, *meant])}"


def _plain(name: str) -> str:
    return re.sub(r"[\s_.]+", "-", name.strip().lower())


def _either(names: list[str]) -> str:
    *first, last = map(repr, names)
    return f"{', '.join(first)} or {last}" if first else last
