"""The player as a widget in a notebook."""

import json
from dataclasses import fields
from functools import cached_property
from typing import TYPE_CHECKING, Any

import ipywidgets
import traitlets
from IPython import get_ipython

from zerolab.player.bundle import script, style
from zerolab.player.page import frame
from zerolab.player.payload import pair_payload, payload
from zerolab.player.shell import Code, Shell, packed
from zerolab.recording.events import Event
from zerolab.runtime import variables

if TYPE_CHECKING:
    from zerolab.recording.recording import Recording

FIELDS = [field.name for field in fields(Event) if field.name not in ("seq", "source")]


def _plain(recording: "Recording", index: int, event: Event) -> dict[str, Any]:
    """One event as a notebook reads it."""
    # Plain values, not Event: a notebook prints them, sends them on, and keeps them when the recording is gone.
    plain = {"index": index, **{name: getattr(event, name) for name in FIELDS}, "source": None}
    if event.source and event.source.id in recording.sources:
        plain["source"] = f"{recording.sources[event.source.id].label}:{event.source.line}"
    return plain


class Replay(ipywidgets.Widget):  # type: ignore[misc]  # ipywidgets has no types
    """A recording and the place in it, both ways."""

    payload = traitlets.Dict().tag(sync=True, to_json=lambda content, _: packed(json.dumps(content)))
    walk = traitlets.Int(0).tag(sync=True)  # the chapter at which the guided walk opens, from 1; 0 for no walk
    event = traitlets.Int(-1).tag(sync=True)  # -1: the browser opens where there is something to see
    # Written by the browser alone, a few times a second at most, or playing would flood the kernel.
    state = traitlets.Dict().tag(sync=True)


class Player(Shell):
    """Replays a recording in the notebook: the same code that `to_html` writes into a page.

    `event` is the current event, counted from 0 in the order in which events ended over all ranks; it follows what
    happens in the browser, and setting it moves the player. `current` is that event as one of `events`, empty before a
    browser has drawn it: `player.observe(function, "current")` lets a notebook react to it. With a recording `other`,
    both are shown side by side, and `event` counts the events of the first. With `walk` it opens with the guided walk.

    With ZEROLAB_PLAYER=iframe the player is shown as a page in an iframe, which still works in an exported notebook,
    where no kernel answers.
    """

    event = traitlets.Int(-1)  # as in Replay, and so is the next
    walk = traitlets.Int(0)
    # Not sent: the kernel has the events already, so only the event's number crosses from the browser.
    current = traitlets.Dict()

    def __init__(
        self, recording: "Recording", other: "Recording | None" = None, event: int = -1, *, walk: bool = False
    ) -> None:
        # Kept for `events` and for the frame, which may be asked for later.
        self._recording, self._other = recording, other
        # Sent once; from there on only numbers of events cross between kernel and browser.
        content = payload(recording) if other is None else pair_payload(recording, other)
        self._title = str(content["title"])
        super().__init__(Replay(payload=content, event=event, walk=int(walk)), Code.of(script, style))
        for name in ("event", "walk"):
            traitlets.link((self._told, name), (self, name))
        # Once by hand: an `event` given at the start is no change, so `observe` is not called for it.
        self._follow()
        self.observe(self._follow, "event")
        if get_ipython() is None:  # a script, in which nothing draws it
            print("a player shows in a notebook; recording.to_html('run.html') writes it as a page")

    def _follow(self, *_: object) -> None:
        """Keeps `current` at `event`."""
        self.current = self.events[self.event] if 0 <= self.event < len(self.events) else {}

    @cached_property
    def events(self) -> list[dict[str, Any]]:
        """Every event as plain values, in the player's order: by end, and a rank's own in the order of writing.

        Sizes are elements and bytes, times nanoseconds; `source` is a label such as `zerolab/engines/zero3.py:72`.
        """
        every = [event for rank in self._recording.ranks for event in rank.events]
        # The same key as in events.js; a difference would make `goto` show another event than the one that was meant.
        ordered = sorted(every, key=lambda event: (event.t_end, event.rank, event.seq))
        return [_plain(self._recording, index, event) for index, event in enumerate(ordered)]

    def state(self) -> dict[str, Any]:
        """What the panes showed last, as the browser reported it; empty before a browser has drawn the player."""
        return dict(self._told.state)

    def goto(self, event: int) -> None:
        """Shows the moment just after event `event`, counted from 0; ValueError beyond the recording's events."""
        # Refused here with a sentence; the browser would silently go to the nearest event there is.
        events = len(self.events)
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
        # Read at every display, so that one notebook can show a player live and export it afterwards.
        if variables.player_in_a_frame():
            opens = f"event={self.event + 1}" * (self.event >= 0), f"walk={self.walk}" * (self.walk > 0)
            shown = frame(self._recording, self._other, "&".join(filter(None, opens)))
            return {"text/plain": repr(self), "text/html": shown}, {}
        bundle = super()._repr_mimebundle_()
        # anywidget may give None, where it has nothing to show; the text is shown all the same.
        data, metadata = bundle or ({}, {})
        return {**data, "text/plain": repr(self)}, metadata
