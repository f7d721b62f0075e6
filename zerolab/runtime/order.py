"""Compares what the ranks ask their devices for, before it is handed over, where nothing but the order tells it apart.

NCCL executes the collectives of a group in the order in which each rank asks for them. Ranks that ask for two flats of
one size in different orders add up one with the other, and nobody says a word; with other sizes they wait for ever.
So whoever asks second for collective n compares. Nothing is sent for it: the ranks of one machine write on pages in
memory that all of them share, and what two ranks called alike is the same bytes there.
"""

from collections.abc import Mapping

from zerolab.runtime.board import KEPT, Page, Position

SIZES_MAY_DIFFER = ("all_gather", "reduce_scatter")
"""Of torch's functions of these names that take lists, whose entries may have a size each."""


class Order:
    """What this rank and the others have called in this run."""

    def __init__(self, page: Page, others: Mapping[int, Page]) -> None:
        self._page, self._others = page, others
        self._rank = next(rank for rank in range(len(others) + 1) if rank not in others)
        self.reset()

    def reset(self) -> None:
        """A new run."""
        self._read = dict.fromkeys(self._others, 0)  # how many calls of each other rank have been compared
        # By group and number: who was first.
        self._known: dict[tuple[tuple[int, int], int | None], tuple[int, Position]] = {}

    def check(self, called: Position) -> None:
        """This rank has just entered a collective on its page.

        Raises:
            RuntimeError: another rank has called another one in its place, or calls the other's.
        """
        self._compare(self._rank, called)
        for rank, page in self._others.items():
            if self._page.is_as_far(page):  # nearly always, or the other has not come so far
                continue
            entered = page.count()  # before they are read: what is called meanwhile comes next time
            for theirs in page.history(self._read[rank]):
                self._compare(rank, theirs)
            self._read[rank] = entered

    def _compare(self, rank: int, called: Position) -> None:
        first, known = self._known.setdefault((called.circle, called.number), (rank, called))
        sized = bool(called.travels) or not {known.name, called.name} & {*SIZES_MAY_DIFFER}
        if _what(known, sized=sized) != _what(called, sized=sized):
            raise RuntimeError(
                f"rank {rank} asks for {_described(called)}, and rank {first} for {_described(known)} in its place: "
                "every rank must ask for the same in the same order, since one is taken for the other"
            )
        if len(self._known) > 4 * KEPT:
            del self._known[next(iter(self._known))]


def _described(call: Position) -> str:
    """For example `all_gather #3 with 'blocks.0' (12 elements of 4 bytes)`."""
    travels = f" with {call.travels!r}" if call.travels else ""
    root = f" with rank {call.peer} as its root" if call.peer >= 0 else ""
    size = f" ({call.numel:,} elements of {call.itemsize} bytes)" if call.numel >= 0 else ""
    return f"{call.label}{travels}{root}{size}"


def _what(call: Position, *, sized: bool) -> tuple[object, ...]:
    """What must be the same on all ranks."""
    return call.word, call.travels, call.numel if sized else -1, call.itemsize, call.peer
