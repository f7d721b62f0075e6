"""Pieces of SVG that the drawings share: an image of its own, words, boxes, and a rank's number on its colour."""

from html import escape

from zerolab.figures.chart import FONT, INK
from zerolab.player.payload import readable
from zerolab.player.strip import ON_DARK, RANK_COLOURS
from zerolab.runtime import variables

# What is white in a drawing takes the page's paper, and what is dark its ink: JupyterLab's, VS Code's, or another's.
_PAPER = "var(--jp-layout-color0, var(--vscode-editor-background, #fff))"
_OF_THE_PAGE = (
    f".zl-drawing svg {{ max-width: 100%; height: auto }} .zl-drawing svg > rect {{ fill: none }} "
    f'.zl-drawing [stroke="#fff"] {{ stroke: {_PAPER} }} '
    f'.zl-drawing [stroke="{INK}"] {{ stroke: currentColor }} .zl-drawing g {{ fill: currentColor !important }}'
)


class Picture:
    """Shown in a notebook, it is the drawing that `svg` gives, in the page's theme; its text is its `repr`."""

    def svg(self) -> str:
        """The drawing, on white."""
        raise NotImplementedError

    def html(self) -> str:
        """The drawing as a piece of a page, in its ink and on its paper."""
        return f'<div class="zl-drawing"><style>{_OF_THE_PAGE}</style>{self.svg()}</div>'

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        shown = {"text/plain": repr(self), "image/svg+xml": self.svg()}
        return shown if variables.static() else {**shown, "text/html": self.html()}


def drawing(told: str, drawn: list[str], width: int, height: int) -> str:
    """An image of its own, on white, read aloud as `told`."""
    style = f"font: 13px {FONT['family']}; fill: {INK}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="-1 -4 {width + 2} {height + 4}" width="{width}" '
        f'height="{height}" role="img" aria-label="{escape(readable(told))}"><rect x="-1" y="-4" width="{width + 2}" '
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
    return f'<text x="{x:g}" y="{y:g}"{look}>{escape(readable(words))}</text>'


def colour(rank: int) -> str:
    """A rank's colour."""
    return RANK_COLOURS[rank % len(RANK_COLOURS)]
