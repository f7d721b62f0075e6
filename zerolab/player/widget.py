"""The player as a widget in a notebook."""

import os
from typing import TYPE_CHECKING, Any

import anywidget
import traitlets

from zerolab.player.bundle import script, style
from zerolab.player.page import frame
from zerolab.player.payload import describe, payload

if TYPE_CHECKING:
    from zerolab.recording.recording import Recording

WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"


class Player(anywidget.AnyWidget):
    """Replays a recording in the notebook: the same code that `to_html` writes into a page.

    `event` is the current event, counted from 0 in the order in which events ended over all ranks; it follows what is
    done in the browser, and setting it moves the player. With ZEROLAB_PLAYER=iframe the player is shown as a page in
    an iframe, which lives on in an exported notebook, where no kernel answers.
    """

    _esm = script()
    _css = style()
    payload = traitlets.Dict().tag(sync=True)
    event = traitlets.Int(-1).tag(sync=True)
    _state = traitlets.Dict().tag(sync=True)

    def __init__(self, recording: "Recording", event: int = -1) -> None:
        self._recording = recording
        self._title = describe(recording)
        super().__init__(payload=payload(recording), event=event)

    def state(self) -> dict[str, Any]:
        """What the panes showed last, as the browser told it; empty before a browser has drawn the player."""
        return dict(self._state)

    def goto(self, event: int) -> None:
        """Shows the moment just after event `event`, counted from 0; ValueError beyond the recording's events."""
        events = self.payload["count"]
        if not events:
            raise ValueError(f"goto got event {event}, but this recording has no events to go to.")
        if not 0 <= event < events:
            raise ValueError(f"goto got event {event}, but this recording has {events} events: give 0 to {events - 1}.")
        self.event = event

    def __repr__(self) -> str:
        """The same text on every machine and every run, so that a stored notebook can be compared."""
        return f"player: {self._title}"

    def _repr_mimebundle_(self, **_: object) -> Any:
        """The widget, or an iframe, beside the fixed text."""
        if os.environ.get("ZEROLAB_PLAYER") == "iframe":
            return {"text/plain": repr(self), "text/html": frame(self._recording)}, {}
        bundle = super()._repr_mimebundle_()
        data, metadata = bundle or ({}, {})
        return {**data, "text/plain": repr(self)}, metadata
