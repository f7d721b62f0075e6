"""Which boxes of a tensor lie in a piece of a flat: files are read, and sharded checkpoints written, by boxes.

A flat is cut wherever its Nth part ends, often in the middle of a row. What a rank owns of a matrix is then the rest of
a row, rows that are whole, and the beginning of a row: three boxes. FSDP2 cuts between rows, and has one.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

Place = tuple[str | int, ...]
"""Where something lies in a checkpoint's nested dicts and lists; joined by dots it is torch's key."""

Box = tuple[tuple[int, ...], tuple[int, ...]]
"""The indices where it begins, and its lengths, one of each for every dimension."""


def boxes(shape: Sequence[int], start: int, stop: int) -> Iterator[Box]:
    """The boxes that the elements `[start, stop)` of a tensor of this shape fill, in the order of the elements."""
    if start >= stop:
        return
    if not shape:
        yield (), ()
        return
    row = math.prod(shape[1:])
    first, last = -(-start // row), stop // row  # the rows [first, last) are whole
    if first > last:
        yield from _within_a_row(shape, last, start, stop)
        return
    yield from _within_a_row(shape, first - 1, start, first * row)
    if first < last:
        yield (first, *[0] * (len(shape) - 1)), (last - first, *shape[1:])
    yield from _within_a_row(shape, last, last * row, stop)


def _within_a_row(shape: Sequence[int], index: int, start: int, stop: int) -> Iterator[Box]:
    before = index * math.prod(shape[1:])
    for offsets, sizes in boxes(shape[1:], start - before, stop - before):
        yield (index, *offsets), (1, *sizes)


@dataclass(frozen=True)
class Elements:
    """What a rank has of one tensor of the checkpoint, as torch.distributed.checkpoint asks for it: by boxes.

    Attributes:
        shape: of the whole tensor.
        start: where the piece begins, in elements of the whole.
        values: the elements from there on, shape [numel]; a view, so that what is loaded lands where it belongs.
    """

    shape: torch.Size
    start: int
    values: torch.Tensor

    def at(self, offset: Sequence[int]) -> torch.Tensor:
        """The values of the box that begins there: a view."""
        place = 0
        for box in self.__create_chunk_list__():
            if box.offsets == tuple(offset):
                return self.values[place : place + box.sizes.numel()].view(box.sizes)
            place += box.sizes.numel()
        raise KeyError(f"no box of this piece begins at {tuple(offset)}")

    def __create_write_items__(self, key: str, _: object) -> list[Any]:
        """For torch: what is to be written."""
        from torch.distributed.checkpoint.metadata import MetadataIndex, TensorProperties
        from torch.distributed.checkpoint.planner import TensorWriteData, WriteItem, WriteItemType

        properties = TensorProperties.create_from_tensor(self.values)
        return [
            WriteItem(
                MetadataIndex(key, chunk.offsets),
                WriteItemType.SHARD,
                tensor_data=TensorWriteData(chunk=chunk, properties=properties, size=self.shape),
            )
            for chunk in self.__create_chunk_list__()
        ]

    def __create_chunk_list__(self) -> list[Any]:
        """For torch: what is to be read."""
        from torch.distributed.checkpoint.metadata import ChunkStorageMetadata

        found = boxes(self.shape, self.start, self.start + self.values.numel())
        return [ChunkStorageMetadata(torch.Size(offsets), torch.Size(sizes)) for offsets, sizes in found]
