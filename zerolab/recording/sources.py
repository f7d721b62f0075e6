"""Which line of source caused an event: the innermost frame in an engine or in the learner's code.

Importing this module is cheap; the runtime fills `LABELS` in each rank before it runs a function that refers to cells.
"""

import functools
import hashlib
import linecache
import os
import re
import sys
import sysconfig
from pathlib import Path
from types import FrameType

from zerolab.recording.events import Source, SourceLine

LABELS: dict[str, str] = {}
"""From a notebook cell's file name, as its code objects have it, to its label, such as `cell [3]`."""

PACKAGE = Path(__file__).resolve().parent.parent
_LESSON_FOLDERS = ("engines", "exercises")  # the code a learner reads or writes; the rest of the package is machinery
_PASSED_THROUGH = ("scaling.py", "arguments.py")  # they lie between a line that says something, and torch
_MACHINERY = tuple(
    {os.path.realpath(sysconfig.get_path(name)) + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    | {str(Path(os.__file__).resolve().parent) + os.sep, str(PACKAGE) + os.sep}
)
_PACKAGES = {"site-packages", "dist-packages"}  # an environment may see those of another Python as well
_COMPILED = re.compile(r"[/\\]([a-z2-7]{2})[/\\]c\1[a-z2-7]{40,}\.py")  # how torch's compiler names what it writes
_AUTOGRAD = "from autograd"  # in place of a key: autograd called the frames inside this one


def label(filename: str) -> str | None:
    """What a recording calls a file, never an absolute path; None if it is neither a lesson's nor a learner's."""
    if filename in LABELS:
        return LABELS[filename]
    return None if filename.startswith("<") else _label_of_file(filename)


@functools.cache  # as for `is_own`: each recording asks about a hundred files
def _label_of_file(filename: str) -> str | None:
    path = Path(os.path.realpath(filename))
    is_ours = path.is_relative_to(PACKAGE) and path.name not in _PASSED_THROUGH
    if is_ours and path.relative_to(PACKAGE).parts[0] in _LESSON_FOLDERS:
        return f"zerolab/{path.relative_to(PACKAGE).as_posix()}"
    return None if _is_machinery(str(path)) else path.name


@functools.cache  # asked at every run about each of a thousand modules; resolving links took a tenth of a second
def is_own(filename: str) -> bool:
    """Whether a file is the learner's: not Python's, not a package's, not ours."""
    return not _is_machinery(os.path.realpath(filename))


def _is_machinery(path: str) -> bool:
    of_package = path.startswith(_MACHINERY) or not _PACKAGES.isdisjoint(Path(path).parts)
    return of_package or _COMPILED.search(path) is not None


class Sources:
    """Finds the line that an event comes from, and keeps the text of every file that events come from."""

    def __init__(self) -> None:
        self.texts: dict[str, Source] = {}
        self._keys: dict[str, str | None] = {}
        self._last: SourceLine | None = None

    def here(self, *, in_backward: bool = False) -> SourceLine | None:
        """The innermost line of a lesson that is being executed.

        An operation of autograd's has no such line: you get the line that started backward, marked as such. Where
        autograd runs in its own thread, there is not even that, and you get the last line seen.
        """
        frame: FrameType | None = sys._getframe(1)
        from_autograd = False
        while frame is not None:
            filename = frame.f_code.co_filename
            key = self._keys[filename] if filename in self._keys else self._learn(filename)
            if key == _AUTOGRAD:
                from_autograd = True
            elif key is not None:
                # Python has no line for what it does by itself, such as ending a loop.
                self._last = SourceLine(key, frame.f_lineno or frame.f_code.co_firstlineno, from_autograd)
                return self._last
            frame = frame.f_back
        if in_backward and self._last is not None:
            return SourceLine(self._last.id, self._last.line, from_autograd=True)
        return None

    def _learn(self, filename: str) -> str | None:
        name = label(filename)
        if name is None:
            key = _AUTOGRAD if filename.endswith("torch/autograd/graph.py") else None
        else:
            source = Source(name, "".join(linecache.getlines(filename)))
            # Keyed by content: a cell that was edited and run again is another source with the same label.
            key = hashlib.sha256(f"{source.label}\n{source.text}".encode()).hexdigest()[:12]
            self.texts[key] = source
        self._keys[filename] = key
        return key
