"""Files are written whole or not at all: to a temporary file first, which then replaces the target in one step.

A reader finds the old file or the new one, even after a crash, a full disk or a power cut. All files that the package
keeps are written here: recordings, pages, traces, checkpoints, rows, notebooks, progress.
"""

import errno
import json
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from secrets import token_hex
from stat import S_IMODE
from typing import Any

StrPath = str | os.PathLike[str]

_OF_A_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}  # they name no file


def check_place(path: StrPath) -> None:
    """Raises ValueError for a folder, or a path whose folder does not exist or may not be written to.

    It is also called before minutes of work whose result would go there.
    """
    place, folder = Path(path), Path(path).absolute().parent
    if place.is_dir():
        raise ValueError(f"cannot write {str(path)!r}: it is a folder; name a file in it, such as 'run.json'")
    # The folder is not created: a mistyped path would leave folders behind.
    if not folder.is_dir():
        raise ValueError(f"cannot write {str(path)!r}: its folder does not exist; create it, or choose another")
    if not os.access(place if _takes_writes_only(place) else folder, os.W_OK):
        raise ValueError(f"cannot write {str(path)!r}: you have no permission to write there; choose another folder")


@contextmanager
def replacing(path: StrPath) -> Iterator[Path]:
    """Gives the path of an empty file to write to; if the block succeeds, that file replaces `path`.

    It gets the mode of the file that it replaces, or that of any new file. A link stays a link: its target is replaced.
    A pipe or a device cannot be replaced, and is written to directly. Raises ValueError as `check_place`, and OSError
    with the name of `path` where the disk is full.
    """
    check_place(path)
    if _takes_writes_only(Path(path)):  # not resolved: a pipe such as /dev/stdout leads to no file
        with _naming(path, path):
            yield Path(path)
        return
    target = Path(path).resolve()
    # In the same folder: across file systems a move is not atomic. Under a random name: other processes may be writing
    # the same file, and a name made from the file's own could be too long.
    part = target.with_name(f".zerolab-{token_hex(8)}.part")
    try:
        os.close(os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
    except OSError as error:  # it would name `part`, which nobody gave; and in /proc root may write, but make no file
        raise ValueError(f"cannot write {str(path)!r}: {error.strerror}; choose another folder") from error
    try:
        with _naming(path, part):
            yield part
            if target.exists():
                part.chmod(S_IMODE(target.stat().st_mode))
            # The rename may reach the disk before the bytes do: after a power cut the file would be empty.
            with part.open("rb") as written:
                os.fsync(written.fileno())
            part.replace(target)
    finally:  # not `except Exception`: a stopped cell would leave half a file behind
        part.unlink(missing_ok=True)


@contextmanager
def _naming(path: StrPath, part: StrPath) -> Iterator[None]:
    """Errors of a disk, and of the file that is written, name the file that was asked for."""
    try:
        yield
    except OSError as error:
        if str(error.filename) == str(part) or (error.filename is None and error.errno in _OF_A_DISK):
            error.filename = str(path)
        raise


def check_readable(path: StrPath) -> None:
    """Raises ValueError for a pipe, a socket or a device: who reads one may wait forever, or get no end of bytes.

    Not for one that is open already, as a shell's `<(...)`.
    """
    is_open = str(path).startswith(("/dev/stdin", "/dev/fd/", "/proc/self/fd/"))
    if not is_open and _takes_writes_only(place := Path(path)) and not place.is_dir():
        said = "is no file, but a device or a pipe: write what comes out of it into a file"
        raise ValueError(f"{str(path)!r} {said}")


@contextmanager
def named(path: StrPath) -> Iterator[None]:
    """Within it, an error of a disk that fails while a file is read names the file."""
    try:
        yield
    except OSError as error:
        if error.errno is not None:  # else its own words are all that it says
            error.filename = error.filename or str(path)
        raise


def settle(folder: StrPath) -> None:
    """Sees to it that what was renamed in a folder is so on the disk, too, where the system can."""
    if hasattr(os, "O_DIRECTORY"):
        handle = os.open(folder, os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def write_text(path: StrPath, text: str) -> None:
    """Writes a text in UTF-8, whole or not at all. Raises ValueError as `check_place`."""
    with replacing(path) as part:
        part.write_text(text, encoding="utf-8")


def write_json(path: StrPath, value: Any) -> None:
    """Writes `value` as JSON, as `write_text`. Raises ValueError as `check_place`, TypeError if JSON cannot hold it."""
    write_text(path, json.dumps(value, indent=1) + "\n")


def _takes_writes_only(path: Path) -> bool:
    """Whether it exists and is not a file: a pipe, a terminal or a device such as /dev/null."""
    return path.exists() and not path.is_file()


def finite(value: object) -> object:
    """JSON knows neither infinity nor NaN, and a loss may be one: it becomes null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): finite(item) for key, item in value.items()}
    # A tuple becomes a list here as it would in JSON, so that what was saved equals what is loaded.
    return [finite(item) for item in value] if isinstance(value, (list, tuple)) else value
