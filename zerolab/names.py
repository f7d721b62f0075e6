"""A name that is not known: what was meant, and what there is."""

import re
from collections.abc import Collection, Iterable
from difflib import get_close_matches

SHORT = 16  # names that are listed whole; of more, only those that are near, if any are


def check_known(what: str, given: object, known: Collection[object]) -> None:
    """Raises ValueError with the sentence of `unknown` unless `given` is one of `known`."""
    if given not in known:
        raise ValueError(unknown(what, given, map(str, known)))


def unknown(what: str, given: object, known: Iterable[str]) -> str:
    """The sentence for a name that does not exist: what there is, and what was probably meant.

    Args:
        what: the kind of thing, such as `stage`.
        given: what was written.
        known: the names that exist.
    """
    names = list(known)
    # `llama_7B`, `Llama 7B` and `llama-7b` are one name to whoever types them.
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
