"""A widget that loses nothing of what the kernel says, however late a busy browser is with it."""

import sys
from pathlib import Path
from typing import Any, ClassVar

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

    When a cell runs again and makes another, the one that it made before ends: a notebook is saved with all that live.
    """

    _esm = Path(__file__).with_name("widget.mjs").read_text(encoding="utf-8")
    _told = traitlets.Instance(Told).tag(sync=True, **ipywidgets.widget_serialization)
    _made: ClassVar[dict[str, tuple[str, list["Shell"]]]] = {}  # by cell: in which run of it, and what

    def __init__(self, told: Told) -> None:
        super().__init__(_told=told)
        cell, run = _running()
        last, made = self._made.get(cell, (run, []))
        if last != run:
            for shell in made:
                shell.close()
            made = []
        if cell:
            self._made[cell] = run, [*made, self]

    def close(self) -> None:
        """Ends the widget, and with it what the browser was told."""
        if self.comm is not None:
            self._told.close()
        super().close()


def _running() -> tuple[str, str]:
    """The cell that the notebook runs, and the message that asked for it; empty where no notebook says."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    asked: dict[str, Any] = getattr(shell, "get_parent", dict)()
    return str(asked.get("metadata", {}).get("cellId", "")), str(asked.get("header", {}).get("msg_id", ""))
