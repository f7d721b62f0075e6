"""Pieces of SVG that the drawings share: an image of its own, words, boxes, and a rank's number on its colour."""

from html import escape

from zerolab.figures.chart import FONT, INK
from zerolab.player.strip import ON_DARK, RANK_COLOURS


class Picture:
    """Shown in a notebook, it is the drawing that `svg` gives; its text is its `repr`."""

    def svg(self) -> str:
        """The drawing, on white."""
        raise NotImplementedError

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        return {"text/plain": repr(self), "image/svg+xml": self.svg()}


def drawing(told: str, drawn: list[str], width: int, height: int) -> str:
    """An image of its own, on white, read aloud as `told`."""
    style = f"font: 13px {FONT['family']}; fill: {INK}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="-1 -4 {width + 2} {height + 4}" width="{width}" '
        f'height="{height}" role="img" aria-label="{escape(told)}"><rect x="-1" y="-4" width="{width + 2}" '
        f'height="{height + 4}" fill="#fff"/><g style="{escape(style)}">{"".join(drawn)}</g></svg>\n'
    )


def digit(x: float, y: float, rank: int) -> str:
    """A rank's number on its colour, for those to whom colours are alike."""
    ink = "#fff" if rank % len(RANK_COLOURS) in ON_DARK else "#111"
    return f'<text x="{x:g}" y="{y:g}" text-anchor="middle" style="font-size: 12px; fill: {ink}">{rank}</text>'


def box(x: float, y: float, width: float, height: float, look: str) -> str:
    """A rectangle; `look` is the colour that fills it, or its attributes."""
    look = look if "=" in look else f'fill="{look}"'
    return f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" {look}/>'


def text(x: float, y: float, words: str, look: str = "") -> str:
    """Words that begin at a place."""
    return f'<text x="{x:g}" y="{y:g}"{look}>{escape(words)}</text>'


def colour(rank: int) -> str:
    """A rank's colour."""
    return RANK_COLOURS[rank % len(RANK_COLOURS)]
