"""How many minutes a lesson takes, by one rule for all; `tools/notebooks.py` writes them into the lessons' first cells.

An estimate, and no measurement. A teacher who went through 00 to 06 put them at ten to eleven hours for the learner
they are written for, exercises included, and the rule was set to come near that. Prose at 200 words a minute; a minute
for each cell that is read, run and looked at, and two more where a picture plays or has a slider; the longer our answer
to an exercise is, the longer it takes to find one.
"""

import ast
import math
import re

from nbformat import NotebookNode

from zerolab.exercises.harness.exercise import TAG, load

WORDS = 200  # of prose in a minute
CELL, PLAYS = 1, 2  # minutes of a cell outside of exercises, and of what plays in it or has a slider
EXERCISE, LINE = 6, 2  # minutes of an exercise, and of each line of our answer
CASE = 10  # of a case of the clinic, in which a line is looked for and not written
ROW = r"(?<=\| \*\*Minutes\*\* \| ).*(?= \|)"  # what is written must not change what is counted
ROUND = 5  # to how many minutes what comes out is rounded up


def minutes(book: NotebookNode) -> tuple[int, int]:
    """The lesson's minutes without its exercises, and those of the exercises."""
    reading = 0.0
    exercises = set()
    for cell in book.cells:
        tags = cell.metadata.get("tags", [])
        ids = {tag.removeprefix(TAG) for tag in tags if tag.startswith(TAG)}
        exercises |= ids
        if not ids:
            reading += of_cell(cell)
    return _rounded(reading), _rounded(sum(map(of_exercise, exercises)))


def of_cell(cell: NotebookNode) -> float:
    """The minutes of a cell outside of exercises."""
    if cell.cell_type == "markdown":
        return len(re.sub(ROW, "", cell.source).split()) / WORDS
    return CELL + PLAYS * bool(re.search(r"\.play\(|\.strip\(\)|figures\.[a-z_]+\(", cell.source))


def of_exercise(exercise_id: str) -> int:
    """The minutes of an exercise."""
    exercise = load(exercise_id)
    if exercise.suspects:
        return CASE
    (answer,) = ast.parse(exercise.solution_source()).body
    lines = {node.lineno for node in ast.walk(answer) if isinstance(node, ast.stmt)}
    return EXERCISE + LINE * (len(lines) - 2)  # without the line that names it and its docstring


def stated(book: NotebookNode) -> str:
    """What stands beside **Minutes** in the lesson's first cell."""
    lesson, exercises = minutes(book)
    return f"{lesson}, and {exercises} for exercises" if exercises else f"{lesson}"


def state(book: NotebookNode) -> None:
    """Writes the minutes into the lesson's first cell."""
    first = book.cells[0]
    first.source = re.sub(ROW, stated(book), first.source)


def _rounded(found: float) -> int:
    return ROUND * math.ceil(found / ROUND)
