"""What glibc's malloc does with memory that is freed: in ranks it keeps it, as torch's allocator does on a GPU.

A step frees and takes the same megabytes again and again. By itself malloc gives most of them back to Linux, which then
clears every page anew.
"""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

KEPT = 128 << 20  # bytes at the end of the heap
LARGEST = 32 << 20  # bytes of a block that lies in the heap, the most that glibc takes here
_AT_FIRST = 128 << 10  # what both are until malloc is told
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of mallopt(3)
_keeps = False


def keep() -> None:
    """From here on this process keeps what it frees, and so do those that it forks. Nothing under another libc."""
    global _keeps  # noqa: PLW0603  (there is one malloc)
    _keeps = _set(KEPT, LARGEST)


@contextmanager
def giving_back() -> Iterator[None]:
    """Gives back to Linux what is kept, and within the block what is freed: its count is then what is in use.

    A block that fits into a hole of the heap still goes there, and leaves its pages.
    """
    trim = _function("malloc_trim")
    if trim is not None:
        trim(0)
    if not _keeps:  # there malloc goes by what it sees, and once told anything no longer would
        yield
        return
    _set(_AT_FIRST, _AT_FIRST)
    try:
        yield
    finally:
        _set(KEPT, LARGEST)


def _set(kept: int, largest: int) -> bool:
    mallopt = _function("mallopt")
    return mallopt is not None and bool(mallopt(_TRIM_THRESHOLD, kept) and mallopt(_MMAP_THRESHOLD, largest))


def _function(name: str) -> Any:
    return getattr(ctypes.CDLL(None), name, None)
