"""A picture of the player, for stored notebooks, slides and the README: always the same size and theme."""

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from zerolab.player.browser import chromium as browser
from zerolab.player.browser import in_few_colours
from zerolab.player.page import page

if TYPE_CHECKING:
    from zerolab.recording.recording import Recording

# About as wide as GitHub shows a picture: a wider one would be scaled down, and its letters blurred.
# The same everywhere, for stored stills are compared.
WIDTH = 960
# The page's own policy forbids foreign styles; setting one from a script it allows.
HIDE_TEXT = """
document.querySelectorAll(".zl-head, .zl-caption, .zl-source").forEach((part) => { part.style.display = "none"; });
"""


def moment(recording: "Recording") -> int:
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


def still(
    recording: "Recording",
    path: str | os.PathLike[str],
    event: int | None = None,
    *,
    small: bool = False,
    chromium: str | None = None,
) -> Path:
    """Writes a PNG of the player at `event` (see `moment` for None), 960 pixels wide, taken in a real browser.

    A `small` one has half the bytes: fewer colours, and no source and no sentences, which the text around it replaces.
    Raises ImportError without playwright or Pillow and RuntimeError without a Chromium; `chromium` is the path of one.
    """
    shown = moment(recording) if event is None else event
    options = f"#still&event={shown + 1}"
    with tempfile.TemporaryDirectory() as folder, browser(chromium) as started:
        file = Path(folder, "player.html")
        file.write_text(page(recording), encoding="utf-8")
        tab = started.new_page(viewport={"width": WIDTH, "height": 900})
        tab.goto(file.as_uri() + options)
        if small:
            tab.evaluate(HIDE_TEXT)
        shot = tab.locator(".zl-player").screenshot(animations="disabled")
    Path(path).write_bytes(in_few_colours(shot, 24 if small else 128))
    return Path(path)
