"""Reads a Chrome trace piece by piece: what is asked for is decoded, the rest is skipped as bytes.

A profiler's trace has a million operators for every thousand collectives. Turning all of them into objects would take
minutes, and ten times the file's size in memory; searching for names takes no longer than reading the file. Whatever
lies between the braces around a name is then decoded as JSON, whatever its spacing and the order of its keys.
"""

import json
import re
from collections.abc import Generator, Iterator
from typing import Any

from zerolab.opening.contents import Stream
from zerolab.opening.found import Foreign

CHUNK = 1 << 23
LONGEST = 1 << 18  # bytes of an event: more are looked at nowhere
_LONGEST_HEAD = 1 << 26
_TRIES = 64  # braces before a name that are tried, the innermost first
_EVENTS = re.compile(rb'"traceEvents"\s*:\s*\[')
_DECODER = json.JSONDecoder(strict=False)
_SIZES = (1 << 10, 1 << 13, 1 << 16, LONGEST * 2)
Object = dict[str, Any]


class Scan:
    """One trace; `about` is what stands beside its events, complete when all of them were read."""

    def __init__(self, stream: Stream) -> None:
        self.name, self._stream = stream.name, stream
        self._buffer = b""
        self._is_over = False
        self.about = self._head()

    def events(self, wanted: re.Pattern[bytes]) -> Iterator[Object]:
        """The events whose bytes hold a match of `wanted`, such as `"name": "nccl...`, in the file's order."""
        done = 0  # up to here in the buffer everything was looked at
        while True:
            looked = yield from self._look(wanted, done)
            if self._is_over:
                self._tail()
                return
            # An event may begin in this piece and end in the next.
            kept = max(0, min(looked, len(self._buffer)) - LONGEST)
            done = looked - kept
            self._buffer = self._buffer[kept:] + self._more()

    def _look(self, wanted: re.Pattern[bytes], done: int) -> Generator[Object, None, int]:
        buffer = self._buffer
        for match in wanted.finditer(buffer, done):
            at = match.start()
            if at < done:  # within the event that was found last
                continue
            found = _around(buffer, at)
            if found is None:
                if not self._is_over and len(buffer) - at < LONGEST:
                    return at  # it goes on in the next piece
                raise self._damaged("something in it is no event")
            event, done = found
            yield event
        # A name may be cut in two.
        return max(done, len(buffer) - 256)

    def _more(self) -> bytes:
        piece = self._stream.read(CHUNK)
        self._is_over = len(piece) < CHUNK
        if b"\0" in piece:
            raise self._damaged("it has bytes that are no text")
        return piece

    def _head(self) -> Object:
        while (found := _EVENTS.search(self._buffer)) is None:
            if self._is_over or len(self._buffer) > _LONGEST_HEAD:
                raise Foreign(f"{self.name!r} has no traceEvents: it is no trace, or less than half of one")
            self._buffer += self._more()
        about = self._loaded(self._buffer[: found.start()] + b'"traceEvents":0}')
        self._buffer = self._buffer[found.end() :]
        if about is None:
            raise self._damaged("what stands before its events is not JSON")
        return about

    def _tail(self) -> None:
        """What stands behind the events. Raises Foreign if they do not end: the file is cut off."""
        end = self._buffer.rstrip()[-LONGEST:]
        closing = len(end)
        longest: Object | None = None  # what stands behind may have lists of its own
        for _ in range(_TRIES):
            closing = end.rfind(b"]", 0, closing)
            if closing < 0:
                break
            rest = self._loaded(b'{"traceEvents":0' + end[closing + 1 :])
            if rest is not None and end[:closing].rstrip()[-1:] in (b"}", b"", b"["):
                longest = rest
        if longest is None:
            raise Foreign(f"{self.name!r} is half a file: its events do not end; fetch it again, or export it again")
        self.about |= longest

    def _loaded(self, data: bytes) -> Object | None:
        try:
            value = _DECODER.decode(data.decode("utf-8-sig", "replace").strip())
        except (ValueError, RecursionError):
            return None
        return value if isinstance(value, dict) else None

    def _damaged(self, why: str) -> Foreign:
        return Foreign(f"{self.name!r} is damaged: {why}; fetch it again, or export it again")


def _around(buffer: bytes, at: int) -> tuple[Object, int] | None:
    """The event around a place, and where it ends; None if there is none."""
    opening = at
    for _ in range(_TRIES):
        opening = buffer.rfind(b"{", max(0, at - LONGEST), opening)
        if opening < 0:
            return None
        found = _decoded(buffer, opening)
        if found is not None and found[1] > at and "ph" in found[0]:
            return found
    return None


def _decoded(buffer: bytes, opening: int) -> tuple[Object, int] | None:
    for size in _SIZES:
        # In Latin-1 each byte is one character, so positions are those in the buffer; `text` undoes it.
        piece = buffer[opening : opening + size].decode("latin-1")
        try:
            value, length = _DECODER.raw_decode(piece)
        except (ValueError, RecursionError):
            if len(piece) < size:
                return None
            continue
        return (value, opening + length) if isinstance(value, dict) else None
    return None


def text(value: object) -> str:
    """A text of an event, with the letters that it had in the file."""
    return str(value).encode("latin-1", "replace").decode("utf-8", "replace")
