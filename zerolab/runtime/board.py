"""The board: one page a rank in memory that kernel and ranks share, with the collective that the rank is in.

The kernel can read it at any time, even after the rank has died. Imports no torch.
"""

import mmap
import struct
from typing import NamedTuple

IDLE, INSIDE, DONE, FAILED = range(4)
_PAGE = struct.Struct("=qqq40s")
_PAGE_BYTES = 64


class Position(NamedTuple):
    """Where a rank stands: its last collective, counted from 0 in each run, and whether it is still inside."""

    state: int = IDLE
    name: str = ""
    number: int | None = None  # None: a send or a receive, which ranks do unequally often
    since: int = 0  # nanoseconds on the clock that all processes share

    @property
    def label(self) -> str:
        """For example `all_gather #3`."""
        return self.name if self.number is None else f"{self.name} #{self.number}"


class Board:
    """One page a rank in memory that kernel and ranks share; each rank writes its own, the kernel reads all."""

    def __init__(self, fd: int, world_size: int) -> None:
        self._memory = mmap.mmap(fd, world_size * _PAGE_BYTES)

    def write(self, rank: int, position: Position) -> None:
        """Put a rank's position on its page."""
        number = 0 if position.number is None else position.number + 1  # so that an untouched page reads as none
        name = position.name.encode()
        _PAGE.pack_into(self._memory, rank * _PAGE_BYTES, position.state, number, position.since, name)

    def read(self, rank: int) -> Position:
        """The position that a rank wrote last."""
        state, number, since, name = _PAGE.unpack_from(self._memory, rank * _PAGE_BYTES)
        return Position(state, name.rstrip(b"\0").decode(), number - 1 if number else None, since)

    @staticmethod
    def size(world_size: int) -> int:
        """How many bytes the memory must have."""
        return world_size * _PAGE_BYTES
