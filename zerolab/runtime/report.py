"""What a rank reports of an exception that a learner's function raised, whatever the exception's class does.

Such a class may raise in `__str__`, or call `sys.exit` there; compare tensors in `__eq__`, or have a property for a
name. None of that may end the rank, or prevent the report.
"""

import time
from typing import Any

from zerolab.runtime import drivers, stack
from zerolab.runtime.screen import printable

LONGEST_MESSAGE, LONGEST_TRACEBACK = 4_000, 40_000  # characters, which a browser has to draw
_LOST = ("connection closed by peer", "connection reset", "broken pipe")
_NETWORK = ("gloo", "nccl", "socket")
_CHECK = "enforce fail"  # gloo's own checks, of an address or a size: a cause, although they name gloo


def of(error: BaseException, stage: int) -> dict[str, Any]:
    """What happened, in plain values: `exception`, `message`, `traceback`, `frames`, `phase`, `stage`, `where`, ...

    `stage` is what the rank was at. `peer` is True if the error only says that another rank has gone: a consequence,
    not the cause.
    """
    phase, where = stack.describe_error(_own(error, "__traceback__"))
    said = {
        "exception": name_of(error),
        "message": _with_remedy(_cut(text_of(error), LONGEST_MESSAGE)),
        "traceback": _cut(_traceback(error), LONGEST_TRACEBACK),
        "frames": _cut(stack.format_frames(_own(error, "__traceback__")), LONGEST_TRACEBACK),
        "phase": phase,
        "where": where,
    }
    # With a lone surrogate in it, no front end would show the cell's output.
    plain = {key: printable(text.encode(errors="backslashreplace").decode()) for key, text in said.items()}
    return plain | {"stage": stage, "peer": blames_a_peer(error), "time": time.monotonic_ns()}


def _with_remedy(text: str) -> str:
    """What was said; of a GPU that is lost in the middle of a run, with what to do behind the first line."""
    first, *others = text.split("\n")
    remedy = drivers.lost(text)
    return "\n".join([f"{first}; {remedy}" if remedy else first, *others])


def text_of(error: BaseException) -> str:
    """What an error says of itself."""
    try:
        return str.__str__(str(error))  # a plain str, whatever subclass was returned
    except BaseException as second:  # noqa: BLE001  # SystemExit too
        return f"(its __str__ raised {name_of(second)})"


def name_of(error: BaseException) -> str:
    """The name of an error's class."""
    return str(type.__dict__["__name__"].__get__(type(error)))


def blames_a_peer(error: BaseException | None) -> bool:
    """Whether an error, or one that led to it, only says that another rank has gone."""
    seen: list[int] = []
    while error is not None and id(error) not in seen:
        if issubclass(type(error), RuntimeError):  # `isinstance` asks the error, too
            text = text_of(error)
            is_cause = _CHECK in text.lower() or drivers.lost(text)
            if any(word in text.lower() for word in (_LOST if is_cause else (*_LOST, *_NETWORK))):
                return True
        seen.append(id(error))
        error = _own(error, "__cause__") or _own(error, "__context__")
    return False


def _own(error: BaseException, name: str) -> Any:
    """What Python itself has noted in an error; a property of its class may hide it."""
    return BaseException.__dict__[name].__get__(error)


def _traceback(error: BaseException) -> str:
    try:
        return stack.format_error(error)
    except BaseException as second:  # noqa: BLE001  # Python's own module reads the error's attributes, too
        return f"{name_of(error)}: {text_of(error)}\n(its traceback cannot be formatted: {name_of(second)})"


def _cut(text: str, most: int) -> str:
    left_out = len(text) - most
    half = most // 2
    return text if left_out <= 0 else f"{text[:half]}\n... {left_out:,} characters are left out ...\n{text[-half:]}"
