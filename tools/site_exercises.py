"""The exercises' pages: a statement each, their index, the solutions; and the form that answers one on a page."""

import html
from collections.abc import Callable
from pathlib import Path

from nbformat import NotebookNode
from nbformat.v4 import new_markdown_cell
from site_lessons import Lesson

from zerolab.exercises.harness.exercise import TAG, Exercise, load, names
from zerolab.exercises.harness.failure import too_long

Relink = Callable[[str, str, str], str]
SECONDS = 10  # that an answer may take in a browser; a right one takes a few milliseconds
SCRIPT = '<script defer src="../_static/exercise.js"></script>'


def form(exercise: Exercise) -> str:
    """Where an exercise that is a plain function is written and checked, on one line: Markdown ends it at an empty one.

    Without scripts the code is there to be read.
    """
    given = {
        "exercise": exercise.id,
        "opening": exercise.opening() + "\n",
        "seconds": str(SECONDS),
        "late": too_long(exercise.name, f"{SECONDS} seconds"),
    }
    said = " ".join(f'data-{name}="{_in_one_line(text)}"' for name, text in given.items())
    return f'<div class="zl-exercise" {said}><pre>{_in_one_line(exercise.opening())}</pre></div>'


def _in_one_line(text: str) -> str:
    return html.escape(text).replace("\n", "&#10;")


def with_forms(cells: list[NotebookNode]) -> list[NotebookNode]:
    """A lesson's cells, with a form in place of the code of each exercise that is a plain function."""
    kept = []
    for cell in cells:
        exercise_id = next((tag.removeprefix(TAG) for tag in cell.metadata.get("tags", []) if tag.startswith(TAG)), "")
        exercise = load(exercise_id) if exercise_id else None
        if exercise is None or exercise.targets.on_ranks or cell.cell_type == "markdown":
            kept.append(cell)
        elif f"def {exercise.name}(" in cell.source:
            kept.append(new_markdown_cell(form(exercise)))
    if len(kept) < len(cells):
        kept.append(new_markdown_cell(SCRIPT))
    return kept


def write_exercises(source: Path, lessons: list[Lesson], relink: Relink) -> None:
    """A page for each exercise, their index, and the page of solutions."""
    homes = {name: lesson for lesson in lessons for name in lesson.exercises}
    every = [*homes, *(name for name in names() if name not in homes)]  # in the order of the lessons
    folder = source / "exercises"
    folder.mkdir()
    for name in every:
        (folder / f"{name}.md").write_text(_statement(load(name), homes.get(name), relink))
    (folder / "index.md").write_text(_index(every, homes))
    (source / "solutions.md").write_text("\n\n".join([SOLUTIONS, *(_solution(load(name)) for name in every)]) + "\n")


def _from(lesson: Lesson | None) -> str:
    if lesson is None:
        return "In no lesson yet"
    return f"[{lesson.number} · {lesson.title}](../notebooks/{lesson.path.name})"


INDEX = """# Exercises

You write the piece; sizes, seeds and batches are drawn anew, and the check says what is wrong in words. Those that are
plain functions can be answered right here, in the browser, which keeps what you passed to itself. The others run on
real ranks: each is a cell in its lesson.

| exercise | answered | lesson |
|---|---|---|
"""
SOLUTIONS = """# Solutions

For hosts, and for who has tried. Each is folded; below it what the check says of answers that learners give. That list
is tested: each such answer is tried, and must be told exactly this."""


def _index(every: list[str], homes: dict[str, Lesson]) -> str:
    rows = "\n".join(
        f"| [{load(name).title}]({name}.md) | {_where(name)} | {_from(homes.get(name))} |" for name in every
    )
    return f"{INDEX}{rows}\n\n{SCRIPT}\n\n```{{toctree}}\n:hidden:\n\n" + "\n".join(every) + "\n```\n"


def _where(name: str) -> str:
    return "on&nbsp;ranks" if load(name).targets.on_ranks else "in&nbsp;the&nbsp;browser"


def _folded(summary: str, text: str) -> str:
    return f"<details class='zl-folded'><summary>{html.escape(summary)}</summary>\n\n{text}\n\n</details>"


def _statement(exercise: Exercise, lesson: Lesson | None, relink: Relink) -> str:
    hints = [_folded(f"Hint {number}", hint) for number, hint in enumerate(exercise.hints, 1)]
    parts = [
        f"# {exercise.title}",
        f"*{_from(lesson)}*",
        relink(exercise.statement, "notebooks", "exercises"),
        *(_on_ranks(exercise, lesson) if exercise.targets.on_ranks else [f"## Your answer\n\n{form(exercise)}"]),
        relink(exercise.look_for, "notebooks", "exercises"),
        "## Hints",
        *hints,
        SCRIPT,
    ]
    return "\n\n".join(parts) + "\n"


def _on_ranks(exercise: Exercise, lesson: Lesson | None) -> list[str]:
    [_, (_, hole), (_, check), *_] = exercise.cells()
    where = f"`zerolab lab`, then open `{lesson.path.name}`" if lesson else "`zerolab lab`"
    begin = f"## You begin with\n\n```python\n{hole}\n```\n\n```python\n{check}\n```"
    return [begin, f"This one runs on real ranks, which a web page cannot start: {where}."]


def _solution(exercise: Exercise) -> str:
    said = "\n".join(f"* … {wrong.says} …" for wrong in exercise.wrong)
    code = _folded("Our solution", f"```python\n{exercise.solution_source().rstrip()}\n```")
    wrong = _folded("What the check says of wrong answers", said)
    return f"## {exercise.title}\n\n[Statement](exercises/{exercise.id}.md)\n\n{code}\n\n{wrong}"
