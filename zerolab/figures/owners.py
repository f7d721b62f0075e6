"""How much each rank owns of matrices that stay whole: a row a rank, a box a matrix, and the mean as a line."""

from collections.abc import Sequence

from zerolab.engines.placement import imbalance
from zerolab.figures.chart import INK
from zerolab.figures.drawing import Picture, box, colour, drawing, text
from zerolab.recording.events import count

LEFT, ROW, TALL = 70, 26, 18  # where the boxes begin, pixels of a row, and of a box
WIDE = 520  # pixels of the fullest rank's boxes


class OwnersPicture(Picture):
    """Shown in a notebook, it is the drawing; its text says how much the fullest rank owns.

    `sizes` are elements of each matrix, `owners` the rank of each, as `placement.balanced` gives them.

    Raises ValueError for as many owners as there are not matrices, or for one that is no rank.
    """

    def __init__(self, sizes: Sequence[int], owners: Sequence[int], world_size: int) -> None:
        if len(sizes) != len(owners) or not set(owners) <= set(range(world_size)):
            raise ValueError(
                f"{len(sizes)} matrices have owners {list(owners)} on {world_size} ranks: give each a rank below N"
            )
        self.imbalance = imbalance(sizes, owners, world_size)
        self.owned = [
            [size for size, owner in zip(sizes, owners, strict=True) if owner == rank] for rank in range(world_size)
        ]

    def __repr__(self) -> str:
        matrices, numel = sum(map(len, self.owned)), sum(map(sum, self.owned))
        idle = sum(not sizes for sizes in self.owned)
        return (
            f"{matrices} matrices of {numel:,} elements on {count(len(self.owned), 'rank')}: the fullest owns "
            f"{max(map(sum, self.owned)):,}, {self.imbalance:.2f} times the mean, and {idle} own nothing"
        )

    def svg(self) -> str:
        """The drawing, on white."""
        scale = WIDE / max(1, *map(sum, self.owned))
        drawn = []
        for rank, sizes in enumerate(self.owned):
            x: float = LEFT
            drawn.append(text(0, rank * ROW + 14, f"rank {rank}"))
            for size in sizes:
                look = f'fill="{colour(rank)}" stroke="#fff"'
                drawn.append(box(x, rank * ROW, size * scale, TALL, look))
                x += size * scale
        bottom = len(self.owned) * ROW
        mean = LEFT + sum(map(sum, self.owned)) / len(self.owned) * scale
        drawn.append(f'<path d="M{mean:g} 0v{bottom}" stroke="{INK}" stroke-dasharray="4 3"/>')
        drawn.append(text(LEFT, bottom + 14, "a box is a matrix, as long as it has elements; dashed: the mean"))
        return drawing(repr(self), drawn, LEFT + WIDE, bottom + 20)
