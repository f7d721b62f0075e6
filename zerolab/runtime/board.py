"""The board: a page a rank in memory that kernel and ranks share, with where the rank stands and how it came there.

Two pages beside it are for its device and for its other threads. The kernel can read them at any time, even after the
rank has died. Imports no torch.
"""

import mmap
import struct
import time
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

IDLE, INSIDE, DONE, FAILED, IN_FLIGHT, ON_DEVICE = range(6)
"""No collective yet; in a call that waits; out of it again; out of it by an error; started by native code, under way;
begun by the device and not done.

IN_FLIGHT says less than INSIDE: only native code knows whether the rank waits for it or computes meanwhile. ON_DEVICE
says that the device waits, whatever the host does.
"""
JOINING, UNPACKING, RUNNING, PACKING, RESTING = range(5)
STAGES = (
    ("joining", "while it joined the process group"),
    ("unpickling", "while the function was unpickled"),
    ("running", "while the function ran"),
    ("pickling", "while the result was pickled"),
    ("idle", "while it was idle"),
)
"""What the rank is at, by these numbers: one word for `RankError.phase`, and the words of the message."""

TRIES = 100  # readings of a position that keeps changing before the last one is taken as it is
# Collectives of a rank that can be compared with the others': more than a host is ahead of a GPU, whose queue has room
# for about a thousand operations.
KEPT = 128
_SLOTS = KEPT + 1  # of their ring: one may be half overwritten while the others are read
LONGEST_NAME, _FILE_BYTES = 40, 256
_NO_UNICODE = "surrogateescape"  # how Python reads a file's name that is no UTF-8
_HASH_BITS = 40  # of the ranks of a group that has one above the highest for which there is a bit
_HIGHEST = 62
# Native formats: they store a number by one instruction, the others byte by byte, and a reader could see half of it.
_HEAD = struct.Struct(f"@8q{LONGEST_NAME}s{LONGEST_NAME}s")
_PLACE = struct.Struct(f"@qq16s{_FILE_BYTES}s")
_STAGE = struct.Struct("@q")
_CURRENT_AT = 2 * _HEAD.size  # after two places for the position: which of them holds, in its lowest bit
_PLACE_AT = _CURRENT_AT + _STAGE.size
_STAGE_AT = _PLACE_AT + _PLACE.size
_ENTERED_AT = _STAGE_AT + _STAGE.size  # how many collectives were ever entered in the ring
_RING_AT = _ENTERED_AT + _STAGE.size
_PAGE_BYTES = _RING_AT + _SLOTS * _HEAD.size


_ONE_WORD = {
    "all_gather_into_tensor": "all_gather",
    "all_gather_single": "all_gather",
    "all_to_all_single": "all_to_all",
    "reduce_scatter_single": "reduce_scatter_tensor",  # not `reduce_scatter`, which gloo adds up in another way
}


class Position(NamedTuple):
    """Where a rank stands: its last collective, counted from 0 in each run, and whether it is still inside."""

    state: int = IDLE
    name: str = ""
    number: int | None = None  # among the collectives of its group; None: a send or a receive, done unequally often
    since: int = 0  # nanoseconds on the clock that all processes share
    numel: int = -1  # elements that this rank put in; -1 where that is not to be compared
    itemsize: int = 0  # bytes of one of them
    members: int = 0  # the ranks of its group, as of `members`; 0: all
    peer: int = -1  # from or to which rank; the root of a broadcast; -1: none
    travels: str = ""  # what an engine sends, where only the order tells it; or the sizes of tensors sent as one
    group: int = 0  # torch's number of the group, which groups of the same ranks differ in; 0: the first, of all

    @property
    def word(self) -> str:
        """What it is by whichever of torch's functions: what goes by several names meets all the same."""
        return _ONE_WORD.get(self.name, self.name)

    @property
    def label(self) -> str:
        """For example `all_gather #3`, or `all_gather #3 of ranks 0, 2` in a group of its own.

        Of a group whose ranks are not listed, it says how many there are; of a second one of all ranks, its number.
        """
        if not self.name or self.number is None:
            return self.name
        group = f" of group {self.group}" if self.group else ""
        if self.members > 0:
            group = f" of ranks {', '.join(map(str, self.ranks))}"
        if self.members < 0:
            group = f" of {-self.members >> _HASH_BITS} ranks"
        return f"{self.name} #{self.number}{group}"

    @property
    def waits(self) -> bool:
        """Whether this cannot end without other ranks."""
        return self.state in (INSIDE, IN_FLIGHT, ON_DEVICE)

    @property
    def circle(self) -> tuple[int, int]:
        """Who counts its collectives together: the same ranks may have several groups."""
        return self.members, self.group

    @property
    def ranks(self) -> list[int]:
        """The ranks of its group; empty for all, and where they are not listed."""
        return [rank for rank in range(self.members.bit_length()) if self.members > 0 and self.members >> rank & 1]


def members(ranks: Sequence[int]) -> int:
    """The ranks of a group in the 64 bits that a page has for them: one bit each, the lowest for rank 0.

    Where one is above 62 they cannot be listed. Below 0, there are then the size of the group, and a hash that is the
    same on all ranks, which tells it from the other groups.
    """
    if max(ranks) <= _HIGHEST:
        return sum(1 << rank for rank in ranks)
    return -(len(ranks) << _HASH_BITS | hash(tuple(sorted(ranks))) & ((1 << _HASH_BITS) - 1))


class Place(NamedTuple):
    """A line that a rank was at, and when it said so."""

    time: int = 0
    phase: str = ""
    filename: str = ""
    line: int = 0


class Page:
    """One rank's page, which the rank writes and the kernel reads. Nobody locks: a reader may see a line too early.

    The kernel writes two things between two calls: that a rank rests, and that it has called nothing yet.

    A position is never seen half written, though a rank may be stopped or killed while it writes: half of one and half
    of another was once a rank that had waited since the machine was started, and was reported as a hang.
    """

    def __init__(self, memory: memoryview, device: "Page | None" = None, beside: "Page | None" = None) -> None:
        self._memory = memory
        self.device = device
        """What the rank's device does, which has a pace of its own: a page that the rank's side thread writes."""
        self.beside = beside
        """A page on which is the oldest call that threads other than the rank's own are in."""
        self._entered = self._written = 0  # by whoever writes through this object

    def write(self, position: Position) -> None:
        """Write a position beside the current one, which it then replaces by one byte."""
        self._written = (self._written + 1) % 256
        _HEAD.pack_into(self._memory, self._written % 2 * _HEAD.size, *_packed(position))
        self._memory[_CURRENT_AT] = self._written

    def read(self) -> Position:
        """The position that was written last; if the device waits in a collective, that one, the oldest."""
        on_device = self.device.read() if self.device is not None else Position()
        return on_device if on_device.state == ON_DEVICE else self.read_host()

    def read_host(self) -> Position:
        """The position that was written last, whatever the device does."""
        for _ in range(TRIES):
            current = self._memory[_CURRENT_AT]
            fields = _HEAD.unpack_from(self._memory, current % 2 * _HEAD.size)
            if current == self._memory[_CURRENT_AT]:  # else it may have been overwritten meanwhile
                break
        return _unpacked(fields)

    def enter(self, position: Position) -> None:
        """Add a collective to the history, in place of the oldest one."""
        _HEAD.pack_into(self._memory, _RING_AT + self._entered % _SLOTS * _HEAD.size, *_packed(position))
        self._entered += 1
        _STAGE.pack_into(self._memory, _ENTERED_AT, self._entered)

    def history(self, begin: int = 0) -> list[Position]:
        """The last collectives, in the order in which they were called, without the first `begin`; at most `KEPT`."""
        entered = self.count()
        first = max(begin, entered - KEPT)
        read = [_HEAD.unpack(self._slot(index)) for index in range(first, entered)]
        # Whoever has gone on meanwhile has overwritten the oldest, and may be in the midst of the next.
        overwritten = self.count() - _SLOTS + 1 - first
        return [_unpacked(fields) for fields in read[max(0, overwritten) :]]

    def count(self) -> int:
        """How many collectives were entered in this run."""
        return int(_STAGE.unpack_from(self._memory, _ENTERED_AT)[0])

    def is_as_far(self, other: "Page") -> bool:
        """Whether another rank has entered the very same collective, as one of as many."""
        return other._slot(self._entered - 1) == self._slot(self._entered - 1)

    def _slot(self, index: int) -> memoryview:
        start = _RING_AT + index % _SLOTS * _HEAD.size
        return self._memory[start : start + _HEAD.size]

    def reset(self) -> None:
        """Begin a run: no collective yet, and none before."""
        self._entered = 0
        self.write(Position())
        self.forget()

    def forget(self) -> None:
        """Drop the history: the kernel does so, too, so that no rank takes another's last run for this one."""
        _STAGE.pack_into(self._memory, _ENTERED_AT, 0)

    def write_stage(self, stage: int) -> None:
        """Say what the rank is at."""
        _STAGE.pack_into(self._memory, _STAGE_AT, stage)

    def read_stage(self) -> int:
        """What the rank was last at."""
        return int(_STAGE.unpack_from(self._memory, _STAGE_AT)[0])

    def write_place(self, phase: str, filename: str, line: int) -> None:
        """Say at which line the rank is; a file name that is too long is left out."""
        name = filename.encode(errors=_NO_UNICODE)
        name = name if len(name) <= _FILE_BYTES else b""
        _PLACE.pack_into(self._memory, _PLACE_AT, time.monotonic_ns(), line, phase.encode(), name)

    def read_place(self) -> Place:
        """The line that the rank named last; that of the collective in which its device waits."""
        if self.device is not None and self.read().state == ON_DEVICE:
            return self.device.read_place()
        when, line, phase, name = _PLACE.unpack_from(self._memory, _PLACE_AT)
        return Place(when, _text(phase), name.rstrip(b"\0").decode(errors=_NO_UNICODE), line)


def size(world_size: int) -> int:
    """How many bytes the shared memory must have."""
    return 3 * world_size * _PAGE_BYTES


def pages(fd: int, world_size: int) -> list[Page]:
    """The pages of all ranks, in shared memory."""
    memory = memoryview(mmap.mmap(fd, size(world_size)))
    cut = [memory[number * _PAGE_BYTES : (number + 1) * _PAGE_BYTES] for number in range(3 * world_size)]
    each = zip(cut[::3], cut[1::3], cut[2::3], strict=True)
    return [Page(host, Page(device), Page(beside)) for host, device, beside in each]


def positions(read: Mapping[int, Page], running: Collection[int]) -> dict[int, Position]:
    """Where ranks stand; if none that runs waits by itself, the calls that their other threads are in come first.

    A thread that listens for messages or writes a checkpoint is no wait of its rank's, unless nothing else explains why
    the rank stands still.
    """
    own = {rank: page.read() for rank, page in read.items()}
    if any(own[rank].waits for rank in running):
        return own
    beside = {rank: page.beside.read() for rank, page in read.items() if rank in running and page.beside is not None}
    return own | {rank: position for rank, position in beside.items() if position.waits}


def _packed(position: Position) -> tuple[int | bytes, ...]:
    state, name, number, since, numel, itemsize, members, peer, travels, group = position
    # One more than the number, so that an untouched page reads as none; the peer and the size likewise.
    numbers = state, 0 if number is None else number + 1, since, numel + 1, itemsize, members, peer + 1, group
    return *numbers, name.encode(), travels.encode()[-LONGEST_NAME:]  # names of units differ at their ends


def _unpacked(fields: tuple[int, int, int, int, int, int, int, int, bytes, bytes]) -> Position:
    state, number, since, numel, itemsize, members, peer, group, *names = fields
    name, travels = map(_text, names)
    place = number - 1 if number else None
    return Position(state, name, place, since, numel - 1, itemsize, members, peer - 1, travels, group)


def _text(data: bytes) -> str:
    return data.rstrip(b"\0").decode(errors="replace")
