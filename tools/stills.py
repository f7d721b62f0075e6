"""Pictures of players and figures, for stored notebooks, slides and the README: always the same size and theme."""

import io
import math
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import plotly.graph_objects as go
from headless import chromium
from PIL import Image
from plotly.offline import get_plotlyjs

from zerolab.figures import chart
from zerolab.player.page import page
from zerolab.recording.recording import Recording

# About as wide as GitHub shows a picture: a wider one would be scaled down, and its letters blurred.
# The same everywhere, for stored stills are compared.
WIDTH = 960
COLOURS = 24  # of a small picture
APART = 32  # between two of them: the palette's own are farther apart
# The page's own policy forbids foreign styles; setting one from a script it allows.
HIDE_TEXT = """
document.querySelectorAll(".zl-head, .zl-caption, .zl-source").forEach((part) => { part.style.display = "none"; });
"""
# The colours of the legends that are in the picture.
KEYS = """
[...document.querySelectorAll(".zl-key path[fill]")].filter((path) => path.getClientRects().length)
  .map((path) => path.getAttribute("fill")).filter((fill) => /^#[0-9a-f]{6}$/.test(fill))
"""


def moment(recording: Recording) -> int:
    """The event that a still shows unless told otherwise, counted from 0 as the player does.

    Found by its meaning, not by its time: halfway through rank 0's reductions of the last step, where gradients are
    whole on some ranks and shards on others.
    """
    events = sorted((e.t_end, e.rank, e.seq, e) for rank in recording.ranks for e in rank.events)
    places = {(rank, seq): place for place, (_, rank, seq, _) in enumerate(events)}
    own = [e for _, rank, _, e in events if rank == 0 and e.kind == "collective" and e.parent is None]
    last = max((e.step for e in own), default=0)
    # A run without reductions (one forward, or a loop of one's own) shows its middle collective instead.
    # While gradients are reduced, parameters, gradients and optimizer state all differ between the stages.
    telling = [e for e in own if e.step == last and e.phase == "reduce"] or own
    if not telling:
        return max(0, len(events) // 2)
    chosen = telling[len(telling) // 2]
    return places[chosen.rank, chosen.seq]


def still(recording: Recording, event: int | None = None, *, small: bool = False) -> bytes:
    """A PNG of the player at `event` (see `moment` for None), 960 pixels wide, taken in a real browser.

    A `small` one has a third of the bytes: who holds what and a bar of memory a rank, in fewer colours.
    Raises ImportError without playwright, and RuntimeError without a Chromium.
    """
    shown = moment(recording) if event is None else event
    with tempfile.TemporaryDirectory() as folder, chromium() as browser:
        file = Path(folder, "player.html")
        file.write_text(page(recording), encoding="utf-8")
        with browser.new_page(viewport={"width": WIDTH, "height": 900}) as tab:
            tab.goto(f"{file.as_uri()}#still&event={shown + 1}{'&view=story' if small else ''}")
            if small:
                tab.evaluate(HIDE_TEXT)
            shot = tab.locator(".zl-player").screenshot(animations="disabled")
            keys = tab.evaluate(KEYS)
    return in_few_colours(shot, keys, *((COLOURS, APART) if small else ()))


def figure_still(data: object) -> bytes:
    """A PNG of a figure, 960 pixels wide, on white with dark text; `data` is what a notebook's output has of it."""
    figure = go.Figure(data).update_layout(paper_bgcolor="#ffffff", font={"color": chart.INK})
    figure.update_annotations(font={"color": chart.INK})
    style = f"body {{ margin: 0; --jp-content-font-color1: {chart.INK}; --jp-content-font-color2: #5d6675 }}"
    head = f"<!doctype html><meta charset='utf-8'><style>{style}</style><script>{get_plotlyjs()}</script>"
    with tempfile.TemporaryDirectory() as folder, chromium() as browser:
        file = Path(folder, "figure.html")
        file.write_text(head + chart.html(figure), encoding="utf-8")
        with browser.new_page(viewport={"width": chart.WIDTH, "height": chart.HEIGHT + 60}) as tab:
            tab.goto(file.as_uri())
            tab.locator(".main-svg").first.wait_for()  # plotly draws after the page has loaded
            return in_few_colours(tab.locator(".plotly-graph-div").screenshot(animations="disabled"))


def in_few_colours(shot: bytes, keys: Sequence[str] = (), colours: int = 96, apart: int = 12) -> bytes:
    """A screenshot as a PNG of few colours, none of them mixed, with those of the legends (`keys`) as they are.

    Smoothed letters have thousands, so it takes a third of the bytes. Two colours are at least `apart`, of the 441
    between black and white.
    """
    target, picture = io.BytesIO(), Image.open(io.BytesIO(shot)).convert("RGB")
    palette = Image.new("P", (1, 1))
    palette.putpalette([part for colour in _chosen(picture, keys, apart)[:colours] for part in colour])
    picture.quantize(palette=palette, dither=Image.Dither.NONE).save(target, "PNG", optimize=True)
    return target.getvalue()


def _chosen(picture: Image.Image, keys: Sequence[str], apart: int) -> list[tuple[int, ...]]:
    """The legends' colours, however close; then those of the picture's areas as they are, then its most frequent ones.

    Those close to one that is there already are letters' edges, and are left out.
    """
    pixels = np.asarray(picture).astype(np.int64) @ np.array([1 << 16, 1 << 8, 1])
    middle = pixels[1:-1, 1:-1]
    solid = np.all([middle == pixels[y : y - 2 or None, x : x - 2 or None] for y in range(3) for x in range(3)], axis=0)
    chosen = [tuple(bytes.fromhex(key[1:])) for key in dict.fromkeys(keys)]
    for part in (middle[solid], pixels):
        numbers, counts = np.unique(part, return_counts=True)
        for number in numbers[np.argsort(-counts, kind="stable")].tolist():
            colour = (number >> 16, number >> 8 & 255, number & 255)
            if all(math.dist(colour, other) >= apart for other in chosen):
                chosen.append(colour)
    return chosen
