"""Help on demand: three hints, one at each call, and the solution, folded."""

import html

from zerolab.exercises.harness.exercise import load
from zerolab.lessons import folding

# How many hints each exercise has given in this kernel; a fresh kernel begins at the first.
_given: dict[str, int] = {}


def hint(exercise_id: str) -> None:
    """Prints the exercise's next hint; after the last one, where the solution is."""
    try:
        hints = load(exercise_id).hints
    except ValueError as error:
        print(error)
        return
    number = _given[exercise_id] = _given.get(exercise_id, 0) + 1
    if number > len(hints):
        print(f'That was the last of {len(hints)} hints. solution("{exercise_id}") shows our answer.')
    else:
        print(f"Hint {number} of {len(hints)}: {hints[number - 1]}")


def solution(exercise_id: str) -> None:
    """Shows the exercise's solution: folded in a notebook, as text elsewhere."""
    try:
        source = load(exercise_id).solution_source()
    except ValueError as error:
        print(error)
        return
    folded = f"<details><summary>Our solution</summary><pre>{html.escape(source)}</pre></details>"
    if not folding.show(folded, "(our solution, folded)"):
        print(source)
