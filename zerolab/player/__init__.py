"""The animation of a recording: a widget in a notebook, and the same thing as a standalone page.

`payload(recording)` is what both are drawn from, `page(recording)` the page, `Player(recording)` the widget. Only the
widget needs anywidget, so it is imported on first use.
"""

from typing import TYPE_CHECKING, Any

from zerolab.player.difference import first_difference
from zerolab.player.page import frame, page
from zerolab.player.payload import describe, payload

if TYPE_CHECKING:
    from zerolab.player.widget import Player

__all__ = ["Player", "describe", "first_difference", "frame", "page", "payload"]


def __getattr__(name: str) -> Any:
    """`Player`, imported when first asked for, so that a page can be written without anywidget; ImportError without."""
    if name != "Player":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from zerolab.player.widget import Player
    except ImportError as error:
        raise ImportError(
            f"The player in a notebook needs anywidget ({error}): pip install 'zerolab[lab]', "
            "or write a page with recording.to_html('run.html')."
        ) from error
    return Player
