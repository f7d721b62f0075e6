"""The landing page: its numbers and cards, written from the package."""

import html
import re
from pathlib import Path
from typing import Any

from site_lessons import Lesson, Pictures

from zerolab import compare
from zerolab.player.page import frame


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
    title, question, minutes = map(_words, (lesson.title, lesson.question, lesson.minutes))
    question = question[:1].upper() + question[1:]
    exercises = len(lesson.exercises)
    said = f"{minutes.partition(',')[0]} minutes"
    said += f" · {exercises} exercise{'s' * (exercises > 1)}" if exercises else ""
    inner = f"<i>{lesson.number}</i><b>{title}</b><span>{question}</span><small>{said}</small>"
    return f'<a class="zl-card" href="notebooks/{lesson.path.stem}.html">{inner}</a>'


def _words(text: str) -> str:
    """A line of Markdown as HTML, as far as titles and questions need it: code."""
    return re.sub("`(.+?)`", r"<code>\1</code>", html.escape(text))
