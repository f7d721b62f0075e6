"""A flat, number by number: how matrices are laid end to end, and where the ranks' shards are cut."""

from html import escape

from torch import nn

from zerolab.engines.partition import FlatLayout, Slot, partition
from zerolab.figures.chart import FONT, INK, NEUTRAL
from zerolab.player.strip import ON_DARK, RANK_COLOURS

MOST = 200  # numbers that are drawn
CELL, GAP = 18, 36  # pixels of a number, and between two matrices
ACROSS = 48  # numbers in a row of the strip
LINE = 66  # of a row of the strip, with what is written above and below it
TOP, BETWEEN = 24, 74  # above the matrices, and between them and the strip


class FlatPicture:
    """Shown in a notebook, it is the drawing; its text says what each rank owns.

    Args:
        model: a module with few parameters, all in one flat.
        world_size: number of ranks N.

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
        return f"a flat of {self.layout.numel} numbers on {self.layout.world_size} ranks: {'; '.join(self._shares())}"

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        return {"text/plain": repr(self), "image/svg+xml": self.svg()}

    def _shares(self) -> list[str]:
        """What each rank owns: of each parameter the numbers, counted in its own rows."""
        said = []
        for rank in range(self.layout.world_size):
            first, last = self.layout.span(rank)
            parts = [
                f"{min(last, slot.stop) - max(first, slot.start)} of {slot.name}"
                for slot in self.layout.slots
                if max(first, slot.start) < min(last, slot.stop)
            ]
            padding = last - max(first, self.layout.numel)
            parts += [f"{padding} of padding"] if padding > 0 else []
            said.append(f"rank {rank} owns {' and '.join(parts)}")
        return said

    def svg(self) -> str:
        """The drawing, on white."""
        drawn, x, lowest = [], 0, 0
        for slot in self.layout.slots:
            rows, columns = _rows_of(slot)
            drawn.append(_text(x, 14, f"{slot.name}: {rows} x {columns}"))
            for number in range(rows * columns):
                place = (x + number % columns * CELL, TOP + number // columns * CELL)
                drawn.append(self._cell(slot.start + number, *place))
            x += max(columns * CELL, 9 * len(slot.name) + 40) + GAP
            lowest = max(lowest, TOP + rows * CELL)
        strip = lowest + BETWEEN
        drawn.append(_text(0, strip - 30, f"the flat: end to end, cut in {self.layout.world_size} equal shards"))
        for slot in self.layout.slots:
            x_of, y_of = _on_strip(slot.start, strip)
            mark = f'<path d="M{x_of} {y_of - 22}v22" stroke="{INK}"/>'
            drawn.append(mark + _text(x_of + 5, y_of - 8, slot.name))
        drawn += [self._cell(number, *_on_strip(number, strip)) for number in range(self.layout.padded)]
        for rank in range(self.layout.world_size):
            x_of, y_of = _on_strip(self.layout.span(rank)[0], strip)
            if self.layout.shard_numel > 2:
                drawn.append(_text(x_of, y_of + CELL + 16, f"rank {rank}"))
        width = max(x, min(self.layout.padded, ACROSS) * CELL) + 2
        height = strip + -(-self.layout.padded // ACROSS) * LINE
        box = f'width="{width}" height="{height}"'
        style = f"font: 13px {FONT['family']}; fill: {INK}"
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="-1 -4 {width + 2} {height + 4}" {box} role="img" '
            f'aria-label="{escape(repr(self))}"><rect x="-1" y="-4" width="{width + 2}" height="{height + 4}" '
            f'fill="#fff"/><g style="{escape(style)}">{"".join(drawn)}</g></svg>\n'
        )

    def _cell(self, number: int, x: int, y: int) -> str:
        """One number of the flat in its owner's colour; padding is empty, and its frame broken."""
        shape = f'<rect x="{x}" y="{y}" width="{CELL}" height="{CELL}"'
        if number >= self.layout.numel:
            return f'{shape} fill="none" stroke="{NEUTRAL}" stroke-dasharray="3 3"/>'
        rank = number // self.layout.shard_numel
        colour, ink = RANK_COLOURS[rank % len(RANK_COLOURS)], "#fff" if rank % len(RANK_COLOURS) in ON_DARK else "#111"
        digit = (
            f'<text x="{x + CELL / 2}" y="{y + 13}" text-anchor="middle" style="font-size: 12px; fill: {ink}">{rank}'
        )
        return f'{shape} fill="{colour}" stroke="#fff"/>{digit}</text>'


def _rows_of(slot: Slot) -> tuple[int, int]:
    """A parameter as a matrix: its first dimension down, all others across; a vector is a row."""
    if len(slot.shape) < 2:
        return 1, slot.shape.numel()
    return slot.shape[0], slot.shape.numel() // slot.shape[0]


def _on_strip(number: int, strip: int) -> tuple[int, int]:
    """Where a number of the flat is drawn."""
    return number % ACROSS * CELL, strip + number // ACROSS * LINE


def _text(x: int, y: int, words: str) -> str:
    return f'<text x="{x}" y="{y}">{escape(words)}</text>'
