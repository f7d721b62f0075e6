"""Which exercises are solved, in the order of the lessons: by yourself, and by a class."""

import json
from collections.abc import Sequence
from pathlib import Path

from zerolab.exercises.harness.exercise import TAG, names
from zerolab.lessons import progress
from zerolab.lessons.workspace import published
from zerolab.recording.events import count


def by_lesson() -> list[tuple[str, str]]:
    """(number of the lesson, id) of each exercise in the order of the lessons; the number is `-` for those in none."""
    found = {
        tag.removeprefix(TAG): name[:2]
        for name, file in published().items()
        if file.suffix == ".ipynb"
        for cell in json.loads(file.read_text(encoding="utf-8"))["cells"]
        for tag in cell["metadata"].get("tags", ())
        if tag.startswith(TAG)
    }
    return [(lesson, name) for name, lesson in found.items()] + [("-", name) for name in names() if name not in found]


def summary() -> str:
    """Your progress as text, one line per exercise."""
    done, exercises = progress.read()["exercises"], by_lesson()
    width = max(len(name) for _, name in exercises)
    lines, passed = [], 0
    for lesson, name in exercises:
        entry = done.get(name, {"tries": 0, "passed": False})
        passed += entry["passed"]
        lines.append(
            f"{lesson:<2}  {name:<{width}}  {'passed' if entry['passed'] else 'open':<6}  {entry['tries']} tries"
        )
    return "\n".join([*lines, f"{passed} of {len(exercises)} exercises passed"])


def of_class(files: Sequence[Path]) -> str:
    """The progress of a class: how many learners have tried and passed each exercise, from one file per learner.

    Raises ValueError for a file that is missing, cannot be read, or is no learner's.
    """
    for file in files:  # a mistyped name must not count as a learner who has done nothing
        if not progress.is_one(file):
            raise ValueError(f"{str(file)!r} is no progress file that can be read: name those that zerolab keeps")
    learners, exercises = [progress.read(file)["exercises"] for file in files], by_lesson()
    width = max(len(name) for _, name in exercises)
    lines = []
    for lesson, name in exercises:
        entries = [learner[name] for learner in learners if name in learner]
        passed, tries = sum(entry["passed"] for entry in entries), sum(entry["tries"] for entry in entries)
        lines.append(f"{lesson:<2}  {name:<{width}}  passed {passed}  tried {len(entries)}  tries {tries}")
    return "\n".join([*lines, count(len(learners), "learner")])
