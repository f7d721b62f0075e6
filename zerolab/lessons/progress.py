"""What a learner has tried and passed: a small JSON file in the user's data folder, never in the project.

`ZEROLAB_PROGRESS` names another file, or is `off`. Nothing is written in tests, or when notebooks are run to be stored.
If the file is lost, only check marks are, so a problem with it is never an error.
"""

import json
import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from numbers import Real
from pathlib import Path
from typing import Any

from zerolab import files
from zerolab.runtime import variables

FORMAT = 1


def path() -> Path | None:
    """The progress file; None if nothing is to be kept."""
    named = variables.progress()
    if named:
        return None if named == "off" else Path(named)
    if "PYTEST_CURRENT_TEST" in os.environ or variables.static():
        return None
    try:
        import platformdirs
    except ImportError:  # it is part of zerolab[lab]: without it, no progress is kept
        return None
    with suppress(RuntimeError):  # of somebody whose home nobody knows, as in a container that is given only a number
        return Path(platformdirs.user_data_dir("zerolab")) / "progress.json"
    return None


def read(file: Path | None = None) -> dict[str, Any]:
    """`{"exercises": {id: {"tries", "passed"}}, "guesses": {id: guess}}`; empty for a missing or unreadable file.

    `file` is another learner's; by default your own.
    """
    content = _content(file or path()) or _empty()
    # A check must not fail because of an edited file.
    content["exercises"] = {
        name: entry
        for name, entry in content["exercises"].items()
        if isinstance(entry, dict) and isinstance(entry.get("tries"), int) and isinstance(entry.get("passed"), bool)
    }
    return content


def is_one(file: Path) -> bool:
    """Whether it is a learner's progress file."""
    return _content(file) is not None


def _empty() -> dict[str, Any]:
    return {"format": FORMAT, "exercises": {}, "guesses": {}}


def _content(file: Path | None) -> dict[str, Any] | None:
    """What a progress file says; None if it says nothing that can be understood."""
    try:
        content: Any = json.loads(file.read_text(encoding="utf-8")) if file else None
    except (OSError, ValueError, RecursionError):
        return None
    known = isinstance(content, dict) and all(type(content.get(key)) is type(value) for key, value in _empty().items())
    return content if known and content["format"] == FORMAT else None


def note_attempt(exercise_id: str, passed: bool) -> None:
    """Counts one try; once passed, an exercise stays passed."""

    def change(content: dict[str, Any]) -> None:
        entry = content["exercises"].setdefault(exercise_id, {"tries": 0, "passed": False})
        entry["tries"] += 1
        entry["passed"] = entry["passed"] or passed

    _change(change)


def number_of(guess: Any) -> float | None:
    """A guess as a number, NumPy's and torch's scalars too; None for what is none: text, a list, True."""
    if getattr(guess, "ndim", None) == 0:
        guess = guess.item()
    if isinstance(guess, bool) or not isinstance(guess, Real):
        return None
    try:
        return float(guess)
    except OverflowError:  # an int beyond all floats
        return math.inf


def note_guess(prediction_id: str, guess: float) -> None:
    """Keeps the first guess of a prediction."""
    _change(lambda content: content["guesses"].setdefault(prediction_id, guess))


def reset() -> bool:
    """Forgets everything; returns whether there was anything to forget."""
    file = path()
    if file is None or not file.exists():
        return False
    file.unlink()
    return True


def _change(change: Callable[[dict[str, Any]], Any]) -> None:
    """Changes what is kept. A file that cannot be understood, as another version's, is kept beside the new one."""
    if (file := path()) is None:
        return
    from zerolab.lessons.workspace import keep

    with suppress(OSError, ValueError):  # a full or read-only disk: progress is only a convenience
        file.parent.mkdir(parents=True, exist_ok=True)
        with _alone_in(file.parent):
            if file.is_file() and not is_one(file):
                keep(file)
            content = read(file)
            change(content)
            files.write_json(file, content)


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """One kernel at a time: of two that read the same file, the second to write would undo what the first noted."""
    import fcntl  # not at the top: a browser's Python has none, and keeps no progress

    handle = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # some network file systems lock no folder
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
