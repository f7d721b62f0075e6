"""What all plotly figures share: the player's type and colours, fixed ids, and how a notebook shows and stores them."""

from typing import Any

import plotly.graph_objects as go

from zerolab.runtime import variables

COLOURS = {
    "parameters": "#6d4f3b",
    "gradients": "#b7957a",
    "optimizer_state": "#dfcebb",
    "communication": "#7f6a9e",
    "activations": "#b5c4b1",
    "computing": "#aeb4bd",
    "formula": "#c2185b",
    "limit": "#5d6675",
}
"""The colours of the player's light theme (player/palette.js), one for each meaning; a test compares the two."""

STAGE_COLOURS = {"ddp": "#868d99", "zero1": "#9490bf", "zero2": "#8a7fd8", "zero3": "#7c66f0"}
"""A stage's colour, the stronger the more it divides, and no rank's.

Each also has a dash and a marker of its own, to be readable without colour.
"""

DASHES = {"ddp": "solid", "zero1": "dash", "zero2": "dashdot", "zero3": "dot"}
MARKS = {"ddp": "circle", "zero1": "square", "zero2": "diamond", "zero3": "cross"}
PATTERNS = {"gradients": "/", "optimizer_state": ".", "communication": "\\"}  # the others are plain, as in the player
# A figure in a notebook does not know the theme and cannot follow it, so all that plotly draws must be readable on
# white and on JupyterLab's #111. This grey has a contrast of 4.3 to 1 on the one and 4.4 to 1 on the other.
NEUTRAL = "#737b88"
GRID = "rgba(128,136,150,0.28)"
INK = "#1d2430"
# Text in a span can take its colour from the page around it. A figure that JupyterLab opens again is at first a picture
# that it took of it, in which nothing is known of the page.
STRONG = f"var(--jp-content-font-color1, var(--vscode-editor-foreground, {NEUTRAL}))"
QUIET = f"var(--jp-content-font-color2, var(--vscode-descriptionForeground, {NEUTRAL}))"
FONT = {"family": "system-ui, -apple-system, 'Segoe UI', Roboto, Arial, sans-serif", "size": 13, "color": NEUTRAL}
CLEAR = "rgba(0,0,0,0)"
# plotly's buttons appear over the end of the title: only those that leave room for it, and nothing behind them.
BUTTONS = ["zoom", "pan", "select", "lasso", "zoomin", "zoomout", "autoscale"]
MODEBAR = {"bgcolor": CLEAR, "color": NEUTRAL, "remove": BUTTONS}
WIDTH, HEIGHT = 960, 420  # pixels; stills have the player's width
PANEL_WIDTH = 860  # two columns of sliders: what JupyterLab leaves beside its file browser on a screen of 1280 pixels
PLOTLY = "application/vnd.plotly.v1+json"  # JupyterLab, Notebook 7 and VS Code draw it themselves


class Chart(go.Figure):  # type: ignore[misc]  # plotly has no types
    """A plotly figure whose text is its caption, the same on every machine.

    A front end draws it from its data, without a network. With ZEROLAB_STATIC=1, in tests and stored notebooks, it is
    only the caption, unless ZEROLAB_STILLS=1 keeps the data for the tool that takes its picture.
    """

    # plotly's own representations load a script from the network and have random ids.
    _ipython_display_ = None
    _repr_html_ = None

    def __repr__(self) -> str:
        meta = self.layout.meta or {}
        return f"figure: {meta.get('caption') or self.layout.title.text}"

    def _repr_mimebundle_(self, *_: object, **__: object) -> dict[str, Any]:
        shown: dict[str, Any] = {"text/plain": repr(self)}
        if variables.stills() or not variables.static():
            shown[PLOTLY] = self.to_plotly_json()
        return shown


def finished(
    figure: go.Figure, name: str, title: str, caption: str = "", *, notice: str = "", above: int = 64
) -> Chart:
    """The figure in the player's type, on a transparent background, with ids that are the same every time.

    `name` is the id of its element, after `zerolab-`; `caption` its text after `title`; `notice` what to look at, drawn
    below the title; `above` the pixels above the plot.
    """
    # Without ids of ours plotly makes random ones, and the same figure would be a different text every time.
    for number, trace in enumerate(figure.data):
        trace.uid = f"zerolab-{name}-{number}"
    clear = {"paper_bgcolor": CLEAR, "plot_bgcolor": CLEAR, "modebar": MODEBAR}
    figure.update_layout(template="plotly_white", font=FONT, title=heading(title, notice), height=HEIGHT, **clear)
    for update in (figure.update_xaxes, figure.update_yaxes):
        update(gridcolor=GRID, zerolinecolor=GRID, linecolor=GRID, title_font_size=13)
    caption = f"{title}. {caption}" if caption else title
    figure.update_layout(
        margin={"l": 70, "r": 20, "t": above, "b": 50}, meta={"name": name, "caption": caption}, uirevision=name
    )
    return Chart(figure)


def heading(title: str, notice: str = "") -> dict[str, Any]:
    """A title at the left edge of the figure, and below it, smaller, what to notice; in the page's own colour."""
    # One text of two lines: in a narrow figure plotly's own subtitle covers the title.
    below = f"<br><span style='font-size:12.5px;color:{QUIET}'>{notice}</span>" if notice else ""
    text = f"<span style='color:{STRONG}'>{title}</span>{below}"
    return {"text": text, "font": {"size": 15}, "x": 0.01, "xanchor": "left", "y": 0.95, "yanchor": "top"}


def marker(category: str) -> dict[str, Any]:
    """A category's colour and pattern."""
    shape = PATTERNS.get(category, "")
    pattern = {"shape": shape, "fgcolor": INK, "fgopacity": 0.3, "size": 6, "solidity": 0.2}
    # The edges are grey: white ones would glare in the dark theme.
    return {"color": COLOURS[category], "pattern": pattern, "line": {"color": GRID, "width": 1}}


def line(stage: str) -> dict[str, Any]:
    """A stage's colour, dash and mark."""
    marker = {"color": STAGE_COLOURS[stage], "symbol": MARKS[stage], "size": 8}
    return {"line": {"color": STAGE_COLOURS[stage], "dash": DASHES[stage]}, "marker": marker}


def words(category: str) -> str:
    """A category in words."""
    return category.replace("_", " ")


def rounded(value: float) -> str:
    """A number for a caption: three digits, or all digits of a large one, "1,120" instead of "1.12e+03"."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def html(figure: go.Figure) -> str:
    """A figure as HTML for a page that already has plotly.js; the same text every time."""
    name = (figure.layout.meta or {}).get("name", "figure")
    return str(figure.to_html(full_html=False, include_plotlyjs=False, div_id=f"zerolab-{name}"))
