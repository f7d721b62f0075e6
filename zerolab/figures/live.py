"""A plotly figure in a panel, which changes in place."""

from pathlib import Path

import ipywidgets
import plotly.graph_objects as go
import traitlets
from plotly.offline import get_plotlyjs

from zerolab.player.shell import Code, Shell


class Drawn(ipywidgets.Widget):  # type: ignore[misc]  # ipywidgets has no types
    """A figure, whole in every message."""

    figure = traitlets.Instance(go.Figure).tag(sync=True, to_json=lambda figure, _: figure.to_json())


class LiveFigure(Shell):
    """A figure in a panel; `figure` is the one that is shown, and another is drawn in its place.

    plotly's own FigureWidget is 5 MB of code that anywidget must have ready in two seconds: on a busy machine its bars
    never moved.
    """

    def __init__(self, figure: go.Figure) -> None:
        super().__init__(Drawn(figure=figure), Code.of(_script, str))

    @property
    def figure(self) -> go.Figure:
        """The figure that is shown."""
        return self._told.figure

    @figure.setter
    def figure(self, figure: go.Figure) -> None:
        self._told.figure = figure


def _script() -> str:
    """plotly, which is no ES module, and the code that draws with it, as one."""
    drawing = Path(__file__).with_name("live.mjs").read_text(encoding="utf-8")
    return f"const module = {{ exports: {{}} }};\n{get_plotlyjs()}\n{drawing}"
