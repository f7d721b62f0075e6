"""What kind of file it is, judged by its first bytes, and its contents: unzipped if need be, but only up to a limit."""

import gzip
import io
import json
import zlib
from pathlib import Path
from typing import Any, BinaryIO

from zerolab import files
from zerolab.opening.found import Foreign
from zerolab.runtime.waiting import says

HEAD = 1 << 16
INFLATED = 400  # gzip shrinks a trace 20 to 60 times; a file that expands further than this was made to exhaust memory
LARGEST = 1 << 31  # bytes of a dump or a snapshot, which is read whole
_PICKLE = tuple(bytes([0x80, protocol]) for protocol in range(2, 6))
# How other files that people keep next to their traces begin, and what to do with those.
_OTHERS = (
    (b"SQLite format 3\0", "an SQLite database, as Nsight Systems exports it; zerolab opens traces of torch.profiler"),
    (b"QDSTRM", "Nsight Systems' own file; zerolab opens traces of torch.profiler"),
    (b"PK\x03\x04", "a zip archive, such as torch.save writes: unpack it if a trace is in it"),
    (b"\x7fELF", "a program"),
    (b"<!DOCTYPE html", "a page of HTML: give the file that it was made from"),
    (b"<html", "a page of HTML: give the file that it was made from"),
    (b"\n", "a text, or Perfetto's own file: give torch.profiler's JSON, as export_chrome_trace() writes it"),
)


class Stream:
    """A file's bytes, in order. Raises Foreign if it is no file, is damaged, or expands to far more than its size."""

    def __init__(self, path: Path) -> None:
        if path.is_dir():
            raise Foreign(f"{str(path)!r} is a folder: name the files in it, one of each rank")
        if not path.exists():
            raise FileNotFoundError(f"{str(path)!r} does not exist: check the name")
        if not path.is_file():
            raise Foreign(f"{str(path)!r} is no file, but a device or a pipe: write what comes out of it into a file")
        self.name, self.size = path.name, path.stat().st_size
        self._raw: BinaryIO = path.open("rb")
        self._given = 0
        try:
            with files.named(self.name):
                packed = self._raw.read(2) == b"\x1f\x8b"
        except OSError:
            self._raw.close()
            raise
        self._raw.seek(0)
        self._file: Any = gzip.GzipFile(fileobj=self._raw) if packed else self._raw

    def read(self, count: int) -> bytes:
        """The next bytes, fewer only at the end."""
        try:
            with files.named(self.name):
                data: bytes = self._file.read(count)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise Foreign(f"{self.name!r} is half a file of gzip, or damaged ({error}): fetch it again") from None
        self._given += len(data)
        if self._given > HEAD + INFLATED * self.size:
            raise Foreign(f"{self.name!r} unpacks to more than {INFLATED} times its size, as no trace does")
        says(f"reading {self.name}: {self._raw.tell() >> 20:,} of {self.size >> 20:,} MB")
        return data

    def peek(self) -> bytes:
        """The first bytes, to be read again."""
        head = self.read(HEAD)
        self._file.seek(0)
        self._given = 0
        return head

    def all(self) -> bytes:
        """What is left, if it is no more than `LARGEST` bytes."""
        parts = io.BytesIO()
        while part := self.read(1 << 22):
            parts.write(part)
            if parts.tell() > LARGEST:
                raise Foreign(f"{self.name!r} has more than {LARGEST >> 30} GB: record fewer entries")
        return parts.getvalue()

    def close(self) -> None:
        """Closes the file."""
        self._file.close()
        self._raw.close()


def is_pickle(stream: Stream) -> bool:
    """Whether it is a pickle, and not JSON. Raises Foreign if it is neither."""
    head = stream.peek()
    if not head.strip():
        raise Foreign(f"{stream.name!r} is empty: the run was perhaps ended before it was written")
    if head.startswith(_PICKLE):
        return True
    if head.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"{"):
        return False
    known = next((said for start, said in _OTHERS if head.startswith(start)), None)
    if known is None and head.lstrip().startswith(b"["):
        known = "a list of events, and not torch.profiler's: that begins with a brace and its schemaVersion"
    nothing = "nothing that zerolab opens: give traces of torch.profiler, dumps of the flight recorder, or snapshots"
    raise Foreign(f"{stream.name!r} is {known or nothing}")


def document(stream: Stream) -> Any:
    """The whole file as JSON."""
    try:
        return json.loads(stream.all())
    # RecursionError: a file of a million open brackets. ValueError: a number of a million digits.
    except (ValueError, RecursionError) as error:
        said = str(error)[:80]
        raise Foreign(f"{stream.name!r} is half a file, or damaged: it is not JSON ({said}); fetch it again") from None
