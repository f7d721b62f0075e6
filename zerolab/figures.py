"""plotly figures over theory and measurements, in the player's words and colours.

Every figure is the same each time it is made from the same data: traces and the element that holds them have fixed
ids, and axes are fixed, so that nothing jumps. Sizes are bytes with GB = 1e9, seconds are seconds. Needs
`pip install zerolab[lab]`.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from zerolab import theory

COLOURS = {
    "parameters": "#6d4f3b",
    "gradients": "#b7957a",
    "optimizer_state": "#dfcebb",
    "communication": "#7f6a9e",
    "computing": "#aeb4bd",
}
"""The colours of the player's light theme (player/palette.js), one a category; a test compares the two."""

STAGE_COLOURS = {"ddp": "#5b6270", "zero1": "#0072b2", "zero2": "#e69f00", "zero3": "#009e73"}
"""A stage's line; each also has a dash and a mark of its own, so that none is told by colour alone."""

DASHES = {"ddp": "solid", "zero1": "dash", "zero2": "dashdot", "zero3": "dot"}
MARKS = {"ddp": "circle", "zero1": "square", "zero2": "diamond", "zero3": "cross"}
PATTERNS = {"parameters": "", "gradients": "/", "optimizer_state": ".", "communication": "\\", "computing": ""}
FONT = {"family": "system-ui, -apple-system, 'Segoe UI', Roboto, Arial, sans-serif", "size": 13, "color": "#1d2430"}
BANDWIDTHS = (0.1e9, 0.3e9, 1e9, 3e9, 10e9, 30e9, 100e9, 300e9)  # bytes a second, from office network to NVLink


def stages(rows: Iterable[Mapping[str, Any]]) -> go.Figure:
    """Bytes of state a rank, stage by stage: what was measured, and beside it, paler, the formula.

    Args:
        rows: the rows of `compare(...)` or `simulate(...)`, or that object's `.rows`. ValueError if there is none.
    """
    every = list(rows)
    if not every:
        raise ValueError("there are no rows to draw: give the rows of compare(...), one a stage")
    figure = go.Figure()
    for said, opacity, offset in (("measured", 1.0, 0), ("formula", 0.5, 1)):
        for category in theory.STATE_CATEGORIES:
            figure.add_bar(
                name=f"{_words(category)}, {said}",
                x=[row["stage"] for row in every],
                y=[row["state" if said == "measured" else "formula"][category] for row in every],
                offsetgroup=str(offset),
                opacity=opacity,
                marker=_marker(category),
                hovertemplate="%{x}: %{y:,} bytes",
            )
    ranks = every[0]["world_size"]
    figure.update_layout(barmode="stack", yaxis_title="bytes a rank at the update")
    return _finished(
        figure, "stages", f"State a rank on {ranks} rank{'s' * (ranks > 1)}: measured, and beside it the formula"
    )


def memory_against_ranks(
    num_params: float, precision: str = "fp32", sizes: Sequence[int] = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
) -> go.Figure:
    """Bytes of state a rank by the formula against the number of ranks, a line a stage; both axes are logarithmic.

    `num_params` counts elements. Source: `theory.state_bytes`, which raises ValueError for what cannot be.
    """
    figure = go.Figure()
    for stage in theory.STAGES:
        total = [sum(theory.state_bytes(stage, num_params, size, precision).values()) for size in sizes]
        figure.add_scatter(
            name=stage, x=list(sizes), y=[value / 1e9 for value in total], mode="lines+markers", **_line(stage)
        )
    figure.update_xaxes(type="log", title="ranks", tickvals=list(sizes))
    figure.update_yaxes(type="log", title="GB a rank")
    return _finished(
        figure, "memory", f"State of {num_params:,.0f} parameters in {precision} against the number of ranks"
    )


def traffic_against_bandwidth(
    num_params: float, world_size: int, compute_seconds: float, precision: str = "fp32"
) -> go.Figure:
    """What a step takes at the bandwidth that a slider chooses: computing, and on top of it sending, nothing hidden.

    Args:
        num_params: elements of the model.
        world_size: ranks.
        compute_seconds: what a step computes without any communication, in seconds; ValueError unless positive.
        precision: "fp32" or "bf16".

    A step sends `theory.traffic_bytes`; at bandwidth B that takes bytes / B seconds, latency left out. Overlap would
    hide some of it: this is the upper end.
    """
    if compute_seconds <= 0:
        raise ValueError(f"compute_seconds is {compute_seconds!r}: give the seconds that a step computes, above 0")
    sent = {stage: theory.traffic_bytes(stage, num_params, world_size, precision) for stage in theory.STAGES}
    figure = go.Figure()
    start = BANDWIDTHS.index(10e9)
    seconds = [[size / bandwidth for size in sent.values()] for bandwidth in BANDWIDTHS]
    text = [f"sends {size / 1e9:.2f} GB" for size in sent.values()]
    computing = [compute_seconds] * len(sent)
    figure.add_bar(name="computing", x=list(sent), y=computing, marker=_marker("computing"))
    figure.add_bar(
        name="communication",
        x=list(sent),
        y=seconds[start],
        text=text,
        marker=_marker("communication"),
        textposition="outside",
    )
    steps = [
        {"label": f"{bandwidth / 1e9:g}", "method": "restyle", "args": [{"y": [computing, values]}]}
        for bandwidth, values in zip(BANDWIDTHS, seconds, strict=True)
    ]
    slider = {
        "active": start,
        "steps": steps,
        "currentvalue": {"prefix": "GB a second between ranks: "},
        "pad": {"t": 40},
    }
    figure.update_layout(barmode="stack", sliders=[slider])
    # At the slowest network the bars end beyond the axis: a scale for all would leave nothing to see at the others.
    figure.update_yaxes(title="seconds a step", range=[0, compute_seconds + 1.15 * max(seconds[start - 1])])
    return _finished(
        figure, "traffic", f"A step of {num_params:,.0f} parameters on {world_size} ranks against bandwidth"
    )


def html(figure: go.Figure) -> str:
    """A figure as HTML for a page that already has plotly.js; the same text every time, because its ids are fixed."""
    name = (figure.layout.meta or {}).get("name", "figure")
    return str(figure.to_html(full_html=False, include_plotlyjs=False, div_id=f"zerolab-{name}"))


def _finished(figure: go.Figure, name: str, title: str) -> go.Figure:
    """The figure in the player's type, on white, every trace with an id that is the same each time."""
    for number, trace in enumerate(figure.data):
        trace.uid = f"zerolab-{name}-{number}"
    figure.update_layout(template="plotly_white", font=FONT, title={"text": title, "font": {"size": 15}}, height=420)
    figure.update_layout(margin={"l": 70, "r": 20, "t": 50, "b": 50}, meta={"name": name}, uirevision=name)
    return figure


def _marker(category: str) -> dict[str, Any]:
    """A category's colour and pattern."""
    pattern = {"shape": PATTERNS[category], "fgcolor": "#1d2430", "fgopacity": 0.3, "size": 6, "solidity": 0.2}
    return {"color": COLOURS[category], "pattern": pattern, "line": {"color": "#ffffff", "width": 1}}


def _line(stage: str) -> dict[str, Any]:
    """A stage's colour, dash and mark."""
    colour = STAGE_COLOURS[stage]
    return {
        "line": {"color": colour, "dash": DASHES[stage]},
        "marker": {"color": colour, "symbol": MARKS[stage], "size": 8},
    }


def _words(category: str) -> str:
    return category.replace("_", " ")
