"""Where the ranks' shards are cut: a flat number by number, and the matrices of a recorded unit."""

from collections.abc import Sequence

from torch import nn

from zerolab.engines.partition import FlatLayout, partition
from zerolab.figures.chart import INK, NEUTRAL
from zerolab.figures.drawing import Picture, box, colour, digit, drawing, text
from zerolab.recording.events import Spans, count

MOST = 200  # numbers that are drawn
CELL, GAP = 18, 36  # pixels of a number, and between two matrices
ACROSS = 48  # numbers in a row of the strip
LINE = 66  # of a row of the strip, with what is written above and below it
TOP, BETWEEN = 24, 74  # above the matrices, and between them and the strip
DENSE = 1.6  # numbers of a matrix to a pixel, each way, where it is drawn without its numbers


class FlatPicture(Picture):
    """Shown in a notebook, it is the drawing of a module of few parameters in one flat; its text says who owns what.

    Raises ValueError as `partition`, for more than 200 numbers, and for parameters of several dtypes.
    """

    def __init__(self, model: nn.Module, world_size: int) -> None:
        layouts = partition(model, world_size, units=[])
        self.layout: FlatLayout = layouts[0]
        if len(layouts) > 1 or self.layout.padded > MOST:
            numbers = sum(layout.padded for layout in layouts)
            raise ValueError(
                f"the picture has room for one flat of {MOST} numbers, and this model has {len(layouts)} of "
                f"{numbers:,}: give a smaller one, such as nn.Linear(6, 4)"
            )

    def __repr__(self) -> str:
        ranks = count(self.layout.world_size, "rank")
        return f"a flat of {self.layout.numel} numbers on {ranks}: {'; '.join(self._shares())}"

    def _shares(self) -> list[str]:
        """What each rank owns: of each parameter the numbers, counted in its own rows."""
        said = []
        for rank in range(self.layout.world_size):
            first, last = self.layout.span(rank)
            own = [(slot.name, min(last, slot.stop) - max(first, slot.start)) for slot in self.layout.slots]
            own.append(("padding", last - max(first, self.layout.numel)))
            parts = [f"{numbers} of {name}" for name, numbers in own if numbers > 0]
            said.append(f"rank {rank} owns {' and '.join(parts)}")
        return said

    def svg(self) -> str:
        """The drawing, on white."""
        drawn, x, lowest = [], 0, 0
        for slot in self.layout.slots:
            rows = slot.shape[0] if len(slot.shape) > 1 else 1
            columns = slot.shape.numel() // rows
            drawn.append(text(x, 14, f"{slot.name}: {rows} x {columns}"))
            for number in range(rows * columns):
                place = (x + number % columns * CELL, TOP + number // columns * CELL)
                drawn.append(self._cell(slot.start + number, *place))
            x += max(columns * CELL, 9 * len(slot.name) + 40) + GAP
            lowest = max(lowest, TOP + rows * CELL)
        strip = lowest + BETWEEN
        drawn.append(text(0, strip - 30, f"the flat: end to end, cut in {self.layout.world_size} equal shards"))
        for slot in self.layout.slots:
            x_of, y_of = _on_strip(slot.start, strip)
            mark = f'<path d="M{x_of} {y_of - 22}v22" stroke="{INK}"/>'
            drawn.append(mark + text(x_of + 5, y_of - 8, slot.name))
        drawn += [self._cell(number, *_on_strip(number, strip)) for number in range(self.layout.padded)]
        for rank in range(self.layout.world_size):
            x_of, y_of = _on_strip(self.layout.span(rank)[0], strip)
            if self.layout.shard_numel > 2:
                drawn.append(text(x_of, y_of + CELL + 16, f"rank {rank}"))
        width = max(x, min(self.layout.padded, ACROSS) * CELL) + 2
        return drawing(repr(self), drawn, width, strip + -(-self.layout.padded // ACROSS) * LINE)

    def _cell(self, number: int, x: int, y: int) -> str:
        """One number of the flat in its owner's colour; padding is empty, and its frame broken."""
        if number >= self.layout.numel:
            return box(x, y, CELL, CELL, f'fill="none" stroke="{NEUTRAL}" stroke-dasharray="3 3"')
        rank = number // self.layout.shard_numel
        return box(x, y, CELL, CELL, f'fill="{colour(rank)}" stroke="#fff"') + digit(x + CELL / 2, y + 13, rank)


class ShardPicture(Picture):
    """Which numbers of a unit's matrices each rank owns, as a recording has it. Shown in a notebook, it is the drawing.

    The parameters of the module `unit` are the unit, in their order; `spans` are of each rank the ranges of the unit's
    flat that it owns, as `Event.spans` of its optimizer state.

    Raises ValueError for a span that is not within the unit.
    """

    def __init__(self, unit: nn.Module, spans: Sequence[Spans]) -> None:
        self.shapes = {name: parameter.shape for name, parameter in unit.named_parameters()}
        self.spans = spans
        self.numel = sum(shape.numel() for shape in self.shapes.values())
        for rank, owned in enumerate(spans):
            if owned and max(stop for _, stop in owned) > -(-self.numel // len(spans)) * len(spans):
                raise ValueError(
                    f"rank {rank} owns numbers up to {max(stop for _, stop in owned):,}, and the unit has "
                    f"{self.numel:,}: give the module that the spans are of"
                )

    def __repr__(self) -> str:
        said = []
        for rank, owned in enumerate(self.spans):
            count = sum(min(stop, self.numel) - min(start, self.numel) for start, stop in owned)
            said.append(f"rank {rank} owns {count:,} in {len(owned)} piece{'s' * (len(owned) != 1)}")
        return f"{len(self.shapes)} parameters of {self.numel:,} numbers: {'; '.join(said)}"

    def svg(self) -> str:
        """The drawing, on white: matrices only, for vectors would be hairs."""
        drawn, x, lowest, start = [], 0, 0, 0
        for name, shape in self.shapes.items():
            if len(shape) > 1:
                rows, columns = shape[0], shape.numel() // shape[0]
                width = max(round(columns / DENSE), 7 * len(name))
                drawn += [text(x, 14, name), text(x, 30, f"{rows} x {columns}")]
                drawn += self._pieces(start, rows, columns, x)
                x, lowest = x + width + GAP, max(lowest, round(TOP + 16 + rows / DENSE))
            start += shape.numel()
        for rank in range(len(self.spans)):
            drawn.append(text(86 * rank + 20, lowest + 30, f"rank {rank}"))
            drawn.append(box(86 * rank, lowest + 18, 14, 14, colour(rank)))
        return drawing(repr(self), drawn, max(x, 86 * len(self.spans)), lowest + 40)

    def _pieces(self, first: int, rows: int, columns: int, x: int) -> list[str]:
        """One matrix: what each rank owns of it, whole rows as a block and the rest of a row as a line."""
        drawn = []
        for rank, owned in enumerate(self.spans):
            for start, stop in owned:
                at, end = max(start - first, 0), min(stop - first, rows * columns)
                while at < end:
                    row, column = divmod(at, columns)
                    down = max(1, (end - at) // columns) if column == 0 else 1
                    across = columns if column == 0 and end - at >= columns else min(columns - column, end - at)
                    left, top = x + column / DENSE, TOP + 16 + row / DENSE
                    drawn.append(box(left, top, across / DENSE, down / DENSE, colour(rank)))
                    if down / DENSE >= 13:
                        drawn.append(digit(left + across / DENSE / 2, top + down / DENSE / 2 + 4, rank))
                    at += down * across
        return drawn


def _on_strip(number: int, strip: int) -> tuple[int, int]:
    """Where a number of the flat is drawn."""
    return number % ACROSS * CELL, strip + number // ACROSS * LINE
