"""The part of a function that the learner still has to write."""

import dis
from collections.abc import Callable, Iterator
from types import CodeType
from typing import Any, NoReturn


class OpenHole(RuntimeError):
    """A function was called whose hole nobody has filled yet."""


def hole(what: str) -> NoReturn:
    """Stands where code is missing; `what` says what the code should do. Raises OpenHole when it is reached."""
    raise OpenHole(f"the hole {what!r} is still open: write code in place of hole({what!r})")


def open_holes(function: Callable[..., Any]) -> list[str]:
    """What the holes that are left in a function or in a class's methods ask for; an empty list once all are filled.

    Read from the compiled code, so that nothing has to run to find out.
    """
    parts = vars(function).values() if isinstance(function, type) else [function]
    codes = [getattr(part, "__code__", None) for part in parts]
    return [what for code in codes if isinstance(code, CodeType) for what in _holes_in(code)]


def _holes_in(code: CodeType) -> Iterator[str]:
    reached = False
    for instruction in dis.get_instructions(code):
        if instruction.argval == "hole" and instruction.opname.startswith("LOAD_"):
            reached = instruction.opname != "LOAD_CONST"
        elif reached and instruction.opname == "LOAD_CONST":  # the argument is loaded right after the function
            yield str(instruction.argval)
            reached = False
    # Functions inside the function have holes of their own.
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _holes_in(constant)
