"""ZeRO-3 in three rungs: an answer to one runs within the whole loop, beside the other two parts of it.

The parts before it are the learner's own, once they have passed in this kernel; those that come after it are ours.
"""

from collections.abc import Callable
from typing import Any

from zerolab.exercises.harness.exercise import Text, load

RUNGS = {"forward": "zero3-forward", "backward": "zero3-backward", "train": "zero3-train"}
_passed: dict[str, Callable[..., Any]] = {}

Parts = dict[str, Callable[..., Any] | Text]
"""Of a rung its function, or our answer as text."""


def note_passed(exercise_id: str, answer: Callable[..., Any]) -> None:
    """Remembers an answer that passed, for the rungs above it."""
    if exercise_id in RUNGS.values():
        _passed[exercise_id] = answer


def ours(rung: str) -> Parts:
    """Our answers to the other rungs."""
    return {other: load(exercise_id).ours for other, exercise_id in RUNGS.items() if other != rung}


def beside(rung: str) -> Parts:
    """What runs beside an answer to this rung."""
    below = list(RUNGS)[: list(RUNGS).index(rung)]
    own = {other: _passed[RUNGS[other]] for other in below if RUNGS[other] in _passed}
    return {**ours(rung), **own}


def in_words(parts: Parts) -> str:
    """Whose the parts are."""
    whose = [f"{'our' if isinstance(part, Text) else 'your'} {RUNGS[rung]}" for rung, part in parts.items()]
    return f"It ran with {' and '.join(whose)}."
