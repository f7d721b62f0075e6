"""A tensor's fingerprint: a few numbers that add up over its pieces, so that whole and sharded ones can be compared.

Of each element a hash of (name of the parameter, its index in the whole tensor) gives sixteen signs. The fingerprint is

    numel      elements
    exact      the sum, mod 2^64, of a hash of (the same, the element's bits): equal if and only if the bits are
    squares    the sum of squares
    coarse     elements that bf16 can hold as they are, zeros left out
    signed     sixteen sums, each with other signs

All are sums over elements, so those of shards add up to that of the whole. `signed` is linear, too: the difference of
two is the `signed` of the difference. The mean of its squares estimates the squared length of that difference
(Johnson and Lindenstrauss; Achlioptas 2003 for signs), with a standard deviation of a third of it for sixteen.
"""

import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

VERSION = 2  # of the files
BATCH = "a tensor of the batch"
SIGNS = 16
WORD = 1 << 64


def folder_of(out: str | os.PathLike[str]) -> Path:
    """Where the fingerprints of a recording lie, one file of each rank."""
    path = Path(out)
    return path.with_name(f"{path.name}.fingerprints")


@dataclass(frozen=True)
class Print:
    """A fingerprint, of a piece or of a whole tensor."""

    numel: int
    exact: int
    squares: float
    coarse: int
    signed: tuple[float, ...]
    dtype: str

    def __add__(self, other: Self) -> "Print":
        """That of two pieces together."""
        signed = tuple(a + b for a, b in zip(self.signed, other.signed, strict=True))
        exact = (self.exact + other.exact) % WORD
        squares, coarse = self.squares + other.squares, self.coarse + other.coarse
        return Print(self.numel + other.numel, exact, squares, coarse, signed, self.dtype)

    @property
    def size(self) -> float:
        """The length of the tensor as a vector."""
        return math.sqrt(self.squares)

    @property
    def is_finite(self) -> bool:
        """Whether no element is inf or NaN."""
        return math.isfinite(self.squares)

    def as_list(self) -> list[Any]:
        """For JSON."""
        signed = [float(f"{each:.12g}") for each in self.signed]  # more digits than any rounding that is asked for
        return [self.numel, self.exact, self.squares, self.coarse, signed, self.dtype]

    @classmethod
    def of_list(cls, values: list[Any]) -> "Print":
        """From JSON. Raises TypeError or ValueError if it is none."""
        numel, exact, squares, coarse, signed, dtype = values
        if len(signed) != SIGNS:
            raise ValueError(f"a fingerprint with {len(signed)} signed sums, not {SIGNS}")
        return cls(int(numel), int(exact), float(squares), int(coarse), tuple(map(float, signed)), str(dtype))
