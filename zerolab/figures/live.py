"""A plotly figure as a widget that is complete from its first message on."""

import plotly.graph_objects as go


class LiveFigure(go.FigureWidget):  # type: ignore[misc]  # plotly has no types
    """A figure in a panel, which changes in place.

    plotly's own tells the browser of itself while it is still empty, and sends its bars in a second message; a browser
    that is busy draws it in between, and never again, for its view does not listen for them. This one waits.
    """

    _complete = False

    def __init__(self, figure: go.Figure) -> None:
        super().__init__(figure)
        self._complete = True
        self.open()

    def open(self) -> None:
        """Tells the browser of the figure, once there is something to draw."""
        if self._complete:
            super().open()
