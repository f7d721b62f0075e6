"""A rank's notes: a file that it maps into memory, so that they can be read whatever happens to the rank. No torch.

The file has the rank's page of the board, and what a second thread continually reports, as JSON.
"""

import json
import mmap
import os
from pathlib import Path
from typing import Any

from zerolab.runtime import board

NAME = "rank-"  # and the rank, of its file
SLOT = 4096  # bytes of what is said at one time
_SLOTS_AT = board.size(1)
_CURRENT_AT = _SLOTS_AT + 2 * SLOT  # a byte: its lowest bit says which of the two slots is valid
_BYTES = _CURRENT_AT + 1


class Notes:
    """One rank's file, which it makes anew, and others read."""

    def __init__(self, path: Path, *, new: bool = False) -> None:
        # Made under another name and renamed: a reader of an earlier run's file must not see it change.
        place = path.with_name(f".{path.name}.{os.getpid()}") if new else path
        descriptor = os.open(place, os.O_RDWR | (os.O_CREAT | os.O_TRUNC if new else 0), 0o600)
        try:
            if new:
                _fill(place)
                place.rename(path)
            elif os.fstat(descriptor).st_size != _BYTES:
                raise ValueError(f"{str(path)!r} is not what a rank writes under zerolab.why: name another folder")
            (self.page,) = board.pages(descriptor, 1)
            self.file = os.fstat(descriptor).st_ino
            self._memory = memoryview(mmap.mmap(descriptor, _BYTES))
        finally:
            os.close(descriptor)
        self._written = 0

    def say(self, **said: Any) -> None:
        """Writes this next to the previous report, and then switches over by changing one byte.

        Texts for which there is no room lose their ends.
        """
        text = _encoded(said).ljust(SLOT)
        self._written = (self._written + 1) % 256
        start = _SLOTS_AT + self._written % 2 * SLOT
        self._memory[start : start + SLOT] = text
        self._memory[_CURRENT_AT] = self._written

    def said(self) -> dict[str, Any]:
        """What was said last; nothing while that cannot be read."""
        for _ in range(board.TRIES):
            current = self._memory[_CURRENT_AT]
            start = _SLOTS_AT + current % 2 * SLOT
            text = bytes(self._memory[start : start + SLOT])
            if current == self._memory[_CURRENT_AT]:
                break
        try:
            said: dict[str, Any] = json.loads(text.strip(b" \0"))
        except ValueError:
            return {}
        return said


def in_folder(folder: Path) -> dict[int, Path]:
    """The files in which ranks have their notes, by rank; other files may have names that begin alike."""
    named = {path: path.name.removeprefix(NAME) for path in folder.glob(f"{NAME}*")}
    return {int(rank): path for path, rank in named.items() if rank.isdecimal()}


def _fill(place: Path) -> None:
    """Zeros for all of it: on a full disk that fails, while memory mapped from a hole would end the rank by SIGBUS."""
    try:
        place.write_bytes(bytes(_BYTES))
    except OSError:
        place.unlink()
        raise


def _encoded(said: dict[str, Any]) -> bytes:
    while len(text := json.dumps(said, ensure_ascii=False).encode(errors="backslashreplace")) > SLOT:
        # Cut as text and not as bytes: half of a letter, or of JSON, cannot be read.
        longest = max((key for key in said if isinstance(said[key], str)), key=lambda key: len(said[key]))
        said = said | {longest: said[longest][: len(said[longest]) * 7 // 8]}
    return text
