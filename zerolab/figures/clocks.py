"""Two clocks of a rank, one for what it computes and one for what it sends, beside each other."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from zerolab.figures.chart import GRID, INK, Chart, finished, marker
from zerolab.figures.plots import slider
from zerolab.recording.events import Event, Interval, merge_spans
from zerolab.recording.recording import Recording

LANES = ("sending", "computing")  # from below


def two_clocks(runs: Mapping[str, Recording], title: str = "The last step of rank 0, in two clocks") -> Chart:
    """When rank 0 computes, when it is blocked by a wait, and when its collectives are under way, in the last step.

    `runs` are recordings by what the slider calls them; it stands at the first. Raises ValueError if there are none, or
    if one has no training step.

    Times are milliseconds since the step began, on the clock of the recording: a simulation's are its cost model's.
    """
    if not runs:
        raise ValueError("there is nothing to draw: give recordings by name, such as {'1.25 GB/s': recording}")
    bars = {name: _bars(name, run) for name, run in runs.items()}
    blocked = {"color": "rgba(0,0,0,0)", "line": {"color": GRID, "width": 1}}
    blocked["pattern"] = {"shape": "/", "fgcolor": INK, "fgopacity": 0.35, "size": 7, "solidity": 0.2}
    looks = {"computing": marker("computing"), "blocked": blocked, "sending": marker("communication")}
    lanes = {kind: "sending" if kind == "sending" else "computing" for kind in looks}
    shown: dict[str, dict[str, list[Any]]] = {}
    for name, of in bars.items():
        base, x = ([of[kind][edge] for kind in looks] for edge in (0, 1))
        shown[name] = {"base": base, "x": x, "y": [[lanes[kind]] * len(of[kind][0]) for kind in looks]}
    figure = go.Figure()
    for number, (kind, look) in enumerate(looks.items()):
        first = {key: values[number] for key, values in next(iter(shown.values())).items()}
        figure.add_bar(name=kind, marker=look, orientation="h", width=0.6, hovertemplate="%{x:.2f} ms", **first)
    longest = max(sum(of["whole"][1]) for of in bars.values())
    figure.update_xaxes(title="ms since the step began", range=[0, 1.02 * longest])
    figure.update_yaxes(categoryorder="array", categoryarray=LANES)
    figure.update_layout(barmode="overlay", sliders=[slider(shown, 0, "")])
    told = [f"{name} {sum(of['blocked'][1]):.1f} ms" for name, of in bars.items()]
    notice = "Hatched: it stands still until what it needs has come."
    return finished(figure, "clocks", title, f"Blocked: {', '.join(told)}.", notice=notice)


def _bars(name: str, run: Recording) -> dict[str, tuple[list[float], list[float]]]:
    """Where the bars of each kind begin and how long they are, in ms."""
    events = [event for event in run.ranks[0].events if event.kind in ("module", "collective", "wait", "optimizer")]
    step = max((event.step for event in events), default=0)
    last = [event for event in events if event.step == step]
    if step == 0:
        raise ValueError(f"the recording {name!r} has no training step: record a loop that updates parameters")
    start = min(event.interval[0] for event in last)
    end = max(event.interval[1] for event in last)
    blocked = _merged(last, "wait")
    edges = [start, *(edge for interval in blocked for edge in interval), end]
    computing = [(a, b) for a, b in zip(edges[::2], edges[1::2], strict=True) if a < b]
    sending = _merged(last, "collective")
    kinds = {"computing": computing, "blocked": blocked, "sending": sending, "whole": [(start, end)]}
    return {
        kind: ([(a - start) / 1e6 for a, _ in found], [(b - a) / 1e6 for a, b in found])
        for kind, found in kinds.items()
    }


def _merged(events: Iterable[Event], kind: str) -> Sequence[Interval]:
    """The time that events of a kind take, without overlaps, in order."""
    intervals = (event.interval for event in events if event.kind == kind)
    return merge_spans((start, end) for start, end in intervals if start < end)
