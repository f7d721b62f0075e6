"""A widget that loses nothing of what the kernel says, however late a busy browser is with it."""

from pathlib import Path

import anywidget
import ipywidgets
import traitlets


class Told(ipywidgets.Widget):  # type: ignore[misc]  # ipywidgets has no types
    """What a browser is told of a widget: the code that draws it, and in a subclass what is drawn."""

    script = traitlets.Unicode().tag(sync=True)


class Shell(anywidget.AnyWidget):
    """A view of `told`, drawn by the code in it: an ES module whose default export has `render({ model, el })`.

    anywidget gives a widget two seconds to be ready, and from one that a busy browser had ready later it withholds all
    that the kernel says, for ever. So all that may change is in `told`, a model of ipywidgets' own, which always hears.
    """

    _esm = Path(__file__).with_name("widget.mjs").read_text(encoding="utf-8")
    _told = traitlets.Instance(Told).tag(sync=True, **ipywidgets.widget_serialization)

    def __init__(self, told: Told) -> None:
        super().__init__(_told=told)

    def close(self) -> None:
        """Ends the widget, and with it what the browser was told."""
        if self.comm is not None:
            self._told.close()
        super().close()
