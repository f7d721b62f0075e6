"""Pages of the site that are written from the package: the landing page's numbers and cards, and the exercises."""

import html
from collections.abc import Callable
from pathlib import Path
from typing import Any

from site_lessons import Lesson, Pictures

from zerolab import compare
from zerolab.exercises.harness.exercise import Exercise, load, names
from zerolab.player.page import frame

Relink = Callable[[str, str, str], str]


def fill_landing(page: Path, lessons: list[Lesson], pictures: Pictures) -> None:
    """Puts what four ranks just did in place of the landing page's marks: the player, the strip, the lessons."""
    ran = compare(world_size=4, model="gpt-tiny", steps=3, device="cpu")
    for row in ran.rows:
        explained(row)
    player = pictures.frame(frame(ran.recordings["zero3"]), "landing", None, above="", opened="plays")
    text = page.read_text()
    for mark, filling in {"player": player, "strip": ran.strip().html(), "lessons": cards(lessons)}.items():
        if f"<!-- {mark} -->" not in text:
            raise ValueError(f"docs/{page.name} has no mark <!-- {mark} --> to put the {mark} in place of")
        text = text.replace(f"<!-- {mark} -->", filling)
    page.write_text(text)


def explained(row: dict[str, Any]) -> None:
    """Raises ValueError where bytes are explained by no term, of which the page says otherwise."""
    unexplained = sum(row["state"].values()) - sum(row["formula"].values()) - sum(row["terms"].values())
    if unexplained:
        raise ValueError(f"{row['stage']}: {unexplained} bytes are explained by no term; the page would say otherwise")


def cards(lessons: list[Lesson]) -> str:
    """The series: a card for each lesson, with the question that it asks."""
    return f'<div class="zl-cards">{"".join(_card(lesson) for lesson in lessons)}</div>'


def _card(lesson: Lesson) -> str:
    title, question, minutes = (html.escape(text) for text in (lesson.title, lesson.question, lesson.minutes))
    question = question[:1].upper() + question[1:]
    exercises = len(lesson.exercises)
    said = f"{minutes.partition(',')[0]} minutes"
    said += f" · {exercises} exercise{'s' * (exercises > 1)}" if exercises else ""
    inner = f"<i>{lesson.number}</i><b>{title}</b><span>{question}</span><small>{said}</small>"
    return f'<a class="zl-card" href="notebooks/{lesson.path.stem}.html">{inner}</a>'


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

You write the piece; it runs on real ranks, with sizes, seeds and batches drawn anew; the check says what is wrong in
words. Each is a cell in its lesson, where it can be solved; here they can be read.

| exercise | lesson |
|---|---|
"""
SOLUTIONS = """# Solutions

For hosts, and for who has tried. Each is folded; below it what the check says of answers that learners give. That list
is tested: each such answer is tried, and must be told exactly this."""


def _index(every: list[str], homes: dict[str, Lesson]) -> str:
    rows = "\n".join(f"| [{load(name).title}]({name}.md) | {_from(homes.get(name))} |" for name in every)
    return f"{INDEX}{rows}\n\n```{{toctree}}\n:hidden:\n\n" + "\n".join(every) + "\n```\n"


def _folded(summary: str, text: str) -> str:
    return f"<details class='zl-folded'><summary>{html.escape(summary)}</summary>\n\n{text}\n\n</details>"


def _statement(exercise: Exercise, lesson: Lesson | None, relink: Relink) -> str:
    [_, (_, hole), (_, check), *_] = exercise.cells()
    hints = [_folded(f"Hint {number}", hint) for number, hint in enumerate(exercise.hints, 1)]
    parts = [
        f"# {exercise.title}",
        f"*{_from(lesson)}*",
        relink(exercise.statement, "notebooks", "exercises"),
        "## You begin with",
        f"```python\n{hole}\n```",
        f"```python\n{check}\n```",
        relink(exercise.look_for, "notebooks", "exercises"),
        "## Hints",
        *hints,
    ]
    return "\n\n".join(parts) + "\n"


def _solution(exercise: Exercise) -> str:
    said = "\n".join(f"* … {wrong.says} …" for wrong in exercise.wrong)
    code = _folded("Our solution", f"```python\n{exercise.solution_source().rstrip()}\n```")
    wrong = _folded("What the check says of wrong answers", said)
    return f"## {exercise.title}\n\n[Statement](exercises/{exercise.id}.md)\n\n{code}\n\n{wrong}"
