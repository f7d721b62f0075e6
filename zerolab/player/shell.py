"""A widget that loses nothing of what the kernel says, however late a busy browser is with it."""

import gzip
from base64 import b64encode
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import anywidget
import ipywidgets
import traitlets


def packed(text: str) -> str:
    """A text as a browser is sent it, which widget.mjs unpacks; the same for the same text."""
    # As letters, because ipywidgets' own models lose bytes when a notebook is saved.
    return b64encode(gzip.compress(text.encode(), mtime=0)).decode()


class Code(ipywidgets.Widget):  # type: ignore[misc]  # ipywidgets has no types
    """What draws the widgets of a kind, sent once for all of them, and kept once in a saved notebook."""

    script = traitlets.Unicode().tag(sync=True)  # packed: an ES module whose default export is `{ render }`
    style = traitlets.Unicode().tag(sync=True)  # packed CSS

    _sent: ClassVar[dict[object, "Code"]] = {}

    @classmethod
    def of(cls, script: Callable[[], str], style: Callable[[], str]) -> "Code":
        """The code that is there already; or new, for whoever closes all widgets of a notebook closes this one, too."""
        sent = cls._sent.get(script)
        if sent is None or sent.comm is None:
            sent = cls._sent[script] = cls(script=packed(script()), style=packed(style()))
        return sent


class Shell(anywidget.AnyWidget):
    """A view of `told`, a model that says what is drawn; `code` draws it by `render({ model: told, el, unpacked })`.

    anywidget gives a widget two seconds to be ready, and from one that a busy browser had ready later it withholds all
    that the kernel says, for ever. So all that may change is in `told`, a model of ipywidgets' own, which always hears.
    """

    _esm = Path(__file__).with_name("widget.mjs").read_text(encoding="utf-8")
    _told = traitlets.Instance(ipywidgets.Widget).tag(sync=True, **ipywidgets.widget_serialization)
    _code = traitlets.Instance(Code).tag(sync=True, **ipywidgets.widget_serialization)

    def __init__(self, told: ipywidgets.Widget, code: Code) -> None:
        super().__init__(_told=told, _code=code)

    def close(self) -> None:
        """Ends the widget, and with it what the browser was told; the code stays for the others."""
        if self.comm is not None:
            self._told.close()
        super().close()
