"""torch's caching allocator of a GPU: what it reserves for a sequence of tensors, by its own rules. No torch.

A tensor is a block in a segment, and segments are what torch asks the GPU for (cudaMalloc), and what
`torch.cuda.max_memory_reserved` counts. A freed block stays in its segment, merges with free neighbours, and goes to
the next tensor that fits into it; each tensor takes the smallest block that is large enough. So there is reserved what
was live at the peak, rounded up, and the holes that no later tensor fitted into; and each stream has blocks of its own.

Source: pytorch, c10/cuda/CUDACachingAllocator.cpp (round_size, get_allocation_size, should_split, get_free_block,
try_merge_blocks; map_block for expandable segments). Left out: free segments are given back when the GPU is full; and a
block that another stream has used, too, is free only when the GPU has come that far, so later the further the host is
ahead of it, which depends on time.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import NamedTuple

MIB = 2**20
ROUND = 512  # every block is a multiple
SMALL = 1 * MIB  # at most so large are the blocks of small segments
SMALL_SEGMENT, LARGE_SEGMENT = 2 * MIB, 20 * MIB
OWN_SEGMENT, ROUND_SEGMENT = 10 * MIB, 2 * MIB  # from so large on a block begins a segment of its size, rounded up

Pool = tuple[str, bool]
"""A stream, and whether its blocks are small."""


class Block(NamedTuple):
    """A part of a segment."""

    pool: Pool
    segment: int
    start: int
    size: int


class Allocator:
    """Blocks of one GPU; `expandable` as torch's `expandable_segments`: one that grows, for each stream and size.

    `allocated` and `reserved` are bytes now, as torch counts them; `peak_allocated` and `peak_reserved` their highest.
    """

    def __init__(self, *, expandable: bool = False) -> None:
        self.expandable, self.allocated, self.reserved, self.peak_allocated, self.peak_reserved = expandable, 0, 0, 0, 0
        self._free: dict[Pool, list[tuple[int, int, int]]] = {}  # size, segment, start; the smallest first
        self._sizes: dict[tuple[int, int], int] = {}  # of free blocks, by segment and start
        self._starts: dict[tuple[int, int], int] = {}  # of free blocks, by segment and end
        self._ends: list[int] = []  # of segments
        self._growing: dict[Pool, int] = {}  # the expandable segment

    def allocate(self, nbytes: int, stream: str = "") -> Block:
        """A block for a tensor of a stream."""
        size = max(ROUND, -(-nbytes // ROUND) * ROUND)
        pool = stream, size <= SMALL
        free = self._free.setdefault(pool, [])
        place = bisect_left(free, (size, 0, 0))
        if place < len(free):
            found, segment, start = free[place]
            if self.expandable and start + found == self._ends[segment] and place + 1 < len(free):
                found, segment, start = free[place + 1]  # what can grow counts as larger than any other
            block = self._take(Block(pool, segment, start, found))
        else:
            block = self._grow(pool, size)
        rest = block.size - size
        if rest >= ROUND and (pool[1] or self.expandable or rest > SMALL):
            self._put(Block(pool, block.segment, block.start + size, rest))
            block = block._replace(size=size)
        self.allocated += block.size
        self.peak_allocated = max(self.peak_allocated, self.allocated)
        return block

    def free(self, block: Block) -> None:
        """Gives a block back; it merges with free neighbours."""
        self.allocated -= block.size
        self._put(block)

    def _grow(self, pool: Pool, size: int) -> Block:
        """A free block of a new segment; or at the end of one that grows by what its free end lacks, in whole steps."""
        step = SMALL_SEGMENT if pool[1] else LARGE_SEGMENT
        if not self.expandable:
            size = step if size < OWN_SEGMENT else -(-size // ROUND_SEGMENT) * ROUND_SEGMENT
        segment = self._growing.get(pool) if self.expandable else None
        if segment is None:
            segment = self._growing[pool] = len(self._ends)
            self._ends.append(0)
        start = end = self._ends[segment]
        if (before := self._starts.get((segment, end))) is not None:
            start = self._take(Block(pool, segment, before, end - before)).start
        if self.expandable:
            size = end - start + -(-(size - (end - start)) // step) * step
        self._ends[segment] = start + size
        self.reserved += start + size - end
        self.peak_reserved = max(self.peak_reserved, self.reserved)
        return Block(pool, segment, start, size)

    def _put(self, block: Block) -> None:
        pool, segment, start, size = block
        if (before := self._starts.get((segment, start))) is not None:
            start, size = before, size + self._take(Block(pool, segment, before, start - before)).size
        if (after := self._sizes.get((segment, start + size))) is not None:
            size += self._take(Block(pool, segment, start + size, after)).size
        self._sizes[segment, start], self._starts[segment, start + size] = size, start
        insort(self._free.setdefault(pool, []), (size, segment, start))

    def _take(self, block: Block) -> Block:
        pool, segment, start, size = block
        del self._sizes[segment, start], self._starts[segment, start + size]
        free = self._free[pool]
        del free[bisect_left(free, (size, segment, start))]
        return block
