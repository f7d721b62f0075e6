"""plotly figures over theory and measurements, in the player's words and colours.

The same data give the same figure every time: traces and elements have fixed ids, and axes are fixed, so that nothing
jumps. Sizes are bytes, with GB = 1e9. Needs `pip install zerolab[lab]`.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import cycle
from math import inf
from numbers import Real
from typing import Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from zerolab import catalog, theory
from zerolab.figures.chart import COLOURS, FONT, GRID, NEUTRAL, Chart, finished, line, marker, rounded, words
from zerolab.names import check_count, stage_names
from zerolab.recording.events import count
from zerolab.recording.host import HostMemory
from zerolab.theory.moments import PARTS
from zerolab.theory.planner import Plan

BANDWIDTHS = (0.1e9, 0.3e9, 1e9, 3e9, 10e9, 30e9, 100e9, 300e9)  # bytes a second, from office network to NVLink
RUN_LINES = ((COLOURS["limit"], "solid"), (COLOURS["communication"], "dash"), (COLOURS["parameters"], "dot"))
PART_COLOURS = {part: "communication" if part == "buffers" else part for part in PARTS}


def stages(rows: Iterable[Mapping[str, Any]]) -> Chart:
    """Bytes of state per rank, stage by stage: measured, and beside it, paler, by formula.

    Args:
        rows: the `.rows` of `compare(...)` or `simulate(...)`, also of several calls together: rows of one stage are
            told apart by ranks, precision or parameters. ValueError if there are none.
    """
    every = list(rows)
    if not every:
        raise ValueError("there are no rows to draw: give the rows of compare(...), one per stage")
    names = _told_apart(every)
    figure = go.Figure()
    for said, opacity, offset in (("measured", 1.0, 0), ("formula", 0.6, 1)):
        for category in theory.STATE_CATEGORIES:
            figure.add_bar(
                name=f"{words(category)}, {said}",
                x=names,
                y=[row["state" if said == "measured" else "formula"][category] for row in every],
                offsetgroup=str(offset),
                opacity=opacity,
                marker=marker(category),
                hovertemplate="%{x}: %{y:,} bytes",
            )
    # "3.5 MB", not "3.5M", which would be read as parameters.
    figure.update_layout(barmode="stack", yaxis={"title": "a rank at the update", "exponentformat": "SI"})
    figure.update_yaxes(ticksuffix="B", rangemode="tozero")
    sums = [(sum(row["state"].values()), sum(row["formula"].values())) for row in every]
    held = ", ".join(f"{name} {measured:,}" for name, (measured, _) in zip(names, sums, strict=True))
    sizes = {row["world_size"] for row in every}
    on = f" on {count(sizes.pop(), 'rank')}" if len(sizes) == 1 else ""
    title = f"State a rank{on}: measured, and beside it the formula"
    alike = all(abs(measured - formula) <= 0.01 * formula for measured, formula in sums)
    notice = "Each pair is as high on both sides: what was measured is the formula and a few bytes of padding."
    return finished(figure, "stages", title, f"Bytes measured: {held}.", notice=notice if alike else "")


def _told_apart(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Each row's stage; where rows share one, also in what the rows differ, and at last a number."""
    names = [row["stage"] for row in rows]
    said = [
        (count(row["world_size"], "rank"), row.get("precision"), f"{row.get('num_params', 0):,} parameters")
        for row in rows
    ]
    for values in zip(*said, strict=True):
        if len(set(names)) < len(rows) and len(set(values)) > 1:
            names = [f"{name}, {value}" for name, value in zip(names, values, strict=True)]
    numbers = [names[: place + 1].count(name) for place, name in enumerate(names)]
    return [f"{name} ({n})" if names.count(name) > 1 else name for name, n in zip(names, numbers, strict=True)]


def wall(
    stages: str | Sequence[str] = theory.STAGES,
    model: str = "7b",
    world_size: int = 8,
    gpu: str = "h100",
    precision: str = "fp32",
) -> Chart:
    """Bytes of state per GPU by formula, stage by stage, below the line of what a card has; a slider for the GPUs.

    `model` and `gpu` are names of the catalog, and `precision` is "fp32", "bf16" or "fp16". The slider stands at the
    one of 1, 2, 4, ..., 1,024 that is nearest to `world_size`.

    Raises ValueError for an unknown name, or a count below 1.
    """
    check_count("world size", world_size)
    chosen = stage_names(stages, theory.STAGES)
    num_params, card = catalog.architecture(model).num_params, catalog.gpu(gpu)
    sizes = [2**power for power in range(11)]
    held = {size: [theory.state_bytes(stage, num_params, size, precision) for stage in chosen] for size in sizes}
    start = min(sizes, key=lambda size: abs(size - world_size))

    def bars(size: int) -> dict[str, list[Any]]:
        """What the three traces show at so many GPUs: bytes in GB, and above the last one their sum."""
        sums = [f"{rounded(sum(state.values()) / 1e9)} GB" for state in held[size]]
        values = [[state[category] / 1e9 for state in held[size]] for category in theory.STATE_CATEGORIES]
        return {"y": values, "text": [[""] * len(chosen), [""] * len(chosen), sums]}

    figure, shown = go.Figure(), bars(start)
    for category, values, text in zip(theory.STATE_CATEGORIES, shown["y"], shown["text"], strict=True):
        look = {"marker": marker(category), "textposition": "outside", "cliponaxis": False, "width": 0.5}
        figure.add_bar(name=words(category), x=chosen, y=values, text=text, hovertemplate="%{x}: %{y:.1f} GB", **look)
    limit = card.memory_bytes / 1e9
    figure.add_hline(limit, line={"color": COLOURS["limit"], "dash": "dash", "width": 2})
    note = {"showarrow": False, "xref": "paper", "x": 1, "xanchor": "right", "yanchor": "bottom"}
    figure.add_annotation(text=f"one {gpu.upper()}: {limit:.1f} GB", y=limit, **note)
    # As high at each number of GPUs, so that only the bars move.
    highest = max(sum(state.values()) for states in held.values() for state in states) / 1e9
    figure.update_yaxes(title="GB a GPU at the update", range=[0, 1.15 * max(highest, limit)])
    figure.update_layout(
        barmode="stack", sliders=[slider({f"{size:,}": bars(size) for size in sizes}, sizes.index(start), "GPUs: ")]
    )
    title = f"State of {num_params:,} parameters in {precision}, against what a card has"
    found = ", ".join(f"{stage} {text}" for stage, text in zip(chosen, shown["text"][-1], strict=True))
    notice = "Activations and buffers come on top. Move the slider: what is not divided does not shrink."
    gpus = f"{start:,} GPU{'s' * (start > 1)}"
    return finished(figure, "wall", title, f"On {gpus}: {found}; one {gpu} has {limit:.1f} GB.", notice=notice)


def slider(shown: Mapping[str, dict[str, Any]], active: int, prefix: str) -> dict[str, Any]:
    """A slider below a figure, at the place `active` of what it shows by its words; `prefix` stands before these."""
    steps = [{"label": label, "method": "restyle", "args": [traces]} for label, traces in shown.items()]
    looks = {"pad": {"t": 40}, "bgcolor": NEUTRAL, "bordercolor": GRID, "tickcolor": NEUTRAL}
    return {"active": active, "steps": steps, "currentvalue": {"prefix": prefix}} | looks


def memory_against_ranks(
    num_params: float, precision: str = "fp32", sizes: Sequence[int] = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
) -> Chart:
    """Bytes of state per rank by formula against the number of ranks, one line per stage; both axes are logarithmic.

    `num_params` counts elements. Source: `theory.state_bytes`. Raises ValueError as that does, or without any `sizes`.
    """
    if not len(sizes):
        raise ValueError("there are no sizes: give numbers of ranks, such as (1, 2, 4, 8)")
    figure = go.Figure()
    for stage in theory.STAGES:
        total = [sum(theory.state_bytes(stage, num_params, size, precision).values()) for size in sizes]
        figure.add_scatter(
            name=stage, x=list(sizes), y=[value / 1e9 for value in total], mode="lines+markers", **line(stage)
        )
    figure.update_xaxes(type="log", title="ranks", tickvals=list(sizes))
    figure.update_yaxes(type="log", title="GB a rank at the update", dtick=1)
    ends = ", ".join(f"{trace.name} {rounded(trace.y[-1])}" for trace in figure.data)
    title = f"State of {num_params:,.0f} parameters in {precision} against the number of ranks"
    notice = "zero1 and zero2 level off at what every rank keeps whole; only zero3 halves with every doubling."
    return finished(figure, "memory", title, f"GB at N = {sizes[-1]:,}: {ends}.", notice=notice)


def traffic_against_bandwidth(
    num_params: float, world_size: int, compute_seconds: float, precision: str = "fp32"
) -> Chart:
    """Seconds of a step at the bandwidth that a slider chooses: computing, and on top of it sending, none of it hidden.

    Args:
        num_params: elements of the model.
        world_size: number of ranks.
        compute_seconds: seconds of a step without any communication; ValueError unless above 0, and finite.
        precision: "fp32", "bf16" or "fp16".

    A step sends `theory.traffic_bytes`, which takes bytes / bandwidth seconds, without latency. Overlap would hide some
    of it: this is the upper bound.
    """
    if not 0 < compute_seconds < inf:
        raise ValueError(f"compute_seconds is {compute_seconds!r}: give the seconds that a step computes, above 0")
    sent = {stage: theory.traffic_bytes(stage, num_params, world_size, precision) for stage in theory.STAGES}
    figure = go.Figure()
    start = BANDWIDTHS.index(10e9)
    seconds = [[size / bandwidth for size in sent.values()] for bandwidth in BANDWIDTHS]
    text = [f"sends {size / 1e9:.2f} GB" for size in sent.values()]
    computing = [compute_seconds] * len(sent)
    figure.add_bar(name="computing", x=list(sent), y=computing, marker=marker("computing"))
    figure.add_bar(
        name="communication",
        x=list(sent),
        y=seconds[start],
        text=text,
        marker=marker("communication"),
        textposition="outside",
    )
    shown = {f"{rate / 1e9:g}": {"y": [computing, values]} for rate, values in zip(BANDWIDTHS, seconds, strict=True)}
    figure.update_layout(barmode="stack", sliders=[slider(shown, start, "GB a second between ranks: ")])
    # On the slowest network the bars exceed the axis: one that holds them would make all others invisible.
    figure.update_yaxes(title="seconds a step", range=[0, compute_seconds + 1.15 * max(seconds[start - 1])])
    waits = ", ".join(f"{stage} {rounded(value)}" for stage, value in zip(sent, seconds[start], strict=True))
    title = f"A step of {num_params:,.0f} parameters on {count(world_size, 'rank')} against bandwidth"
    more = sent["zero3"] / sent["ddp"] if sent["ddp"] else 1.0
    notice = f"zero3 sends {more:.3g} times what ddp sends; what that costs depends on the network."
    caption = f"Seconds of sending at {BANDWIDTHS[start] / 1e9:g} GB a second: {waits}."
    return finished(figure, "traffic", title, caption, notice=notice)


def losses(
    curves: Mapping[str, Sequence[float]], title: str = "Loss after each step", guess: float | None = None
) -> Chart:
    """A line for each run, by its name, of its loss after each step; the losses' axis is logarithmic.

    `guess`, where a reader expects a line to end, is drawn as a ghost at this height.

    Raises ValueError for what has no place on a logarithmic axis: a loss or a guess that is not above 0, or infinite,
    and a guess that is no number; and where there is no loss to draw.
    """
    if not curves or not all(map(len, curves.values())):
        raise ValueError(f"there are no losses to draw in {curves!r:.60}: give each run its loss after each step")
    if guess is not None and not (isinstance(guess, Real) and 0 < guess < inf):
        raise ValueError(f"guess is {guess!r}: the axis is logarithmic, so give a number above 0, such as 1e-6")
    figure = go.Figure()
    for (name, values), (colour, dash) in zip(curves.items(), cycle(RUN_LINES)):
        if wrong := [value for value in values if not 0 < value < inf]:
            raise ValueError(
                f"{name} has a loss of {wrong[0]!r}: the axis is logarithmic, so all must be above 0 and finite"
            )
        steps = list(range(1, len(values) + 1))
        figure.add_scatter(name=name, x=steps, y=list(values), mode="lines", line={"color": colour, "dash": dash})
    if guess is not None:
        ghost = {"color": NEUTRAL, "dash": "dot", "width": 1}
        figure.add_scatter(name="your guess", x=[1, len(values)], y=[guess, guess], mode="lines", line=ghost)
    figure.update_xaxes(title="step", rangemode="tozero")
    drawn = [value for values in curves.values() for value in values]
    powers = {"exponentformat": "power", "dtick": 2} if max(drawn) > 100 * min(drawn) else {}  # else numbers in between
    figure.update_yaxes(type="log", title="loss", **powers)
    return finished(figure, "losses", title, f"A line for each of: {', '.join(curves)}.")


def loading(found: Mapping[str, Sequence[HostMemory]], model_bytes: int) -> Chart:
    """Main memory that ways of loading a model take at their highest moment, over all ranks, in sizes of the model.

    Above each bar stands the most that one rank allocated. `found` is by the name of each way what each rank found by
    `host_memory`, `model_bytes` the bytes of the model's parameters: ValueError unless positive.
    """
    if model_bytes <= 0:
        raise ValueError(f"model_bytes is {model_bytes!r}: give the bytes of the model's parameters, above 0")
    figure, ranks = go.Figure(), len(next(iter(found.values()), ()))
    for rank in range(ranks):
        figure.add_bar(
            name="allocated, a part for each rank",
            legendgroup="allocated",
            showlegend=not rank,
            x=list(found),
            y=[each[rank].allocated / model_bytes for each in found.values()],
            marker=marker("parameters"),
            hovertemplate=f"rank {rank}: %{{y:.2f}} models",
        )
    figure.add_bar(
        name="pages of the mapped file, once",
        x=list(found),
        y=[max(rank.mapped for rank in each) / model_bytes for each in found.values()],
        text=[f"a rank {max(rank.allocated for rank in each) / model_bytes:.2f}" for each in found.values()],
        textposition="outside",
        marker=marker("communication"),
        hovertemplate="%{y:.2f} models",
    )
    figure.add_hline(1, line={"color": COLOURS["limit"], "dash": "dash", "width": 2})
    # As high as if every rank had the model twice: so the figure looks the same on every machine.
    figure.update_yaxes(title=f"sizes of the model, {ranks} ranks together", range=[0, 2.2 * ranks])
    figure.update_layout(barmode="stack")
    notice = (
        "Dashed: the model, once. What is allocated adds up over the ranks of a machine; pages of a file are shared."
    )
    title = "Main memory while a model is loaded, at the highest moment"
    return finished(figure, "loading", title, f"A bar for each of: {', '.join(found)}.", notice=notice)


def plan(found: Plan) -> Chart:
    """What `theory.plan` found: bytes per GPU by stage with a line at its memory, and what the time is spent on.

    The line is in the middle of a fixed axis; every bar has its number above it. GB is 1e9 bytes.
    """
    figure = make_subplots(1, 2, column_widths=[0.62, 0.38], horizontal_spacing=0.1)
    names, memory = list(found.parts), found.usable / 1e9
    for part, colour in PART_COLOURS.items():
        held = [sizes[part] / 1e9 for sizes in found.parts.values()]
        figure.add_bar(
            name=words(part), x=names, y=held, marker=marker(colour), hovertemplate="%{x}: %{y:.1f} GB", row=1, col=1
        )
    # Sending is on top of computing: overlap would hide some of it, but a plan should not rely on that.
    for name, column, colour in (
        ("computing", "compute_seconds", "computing"),
        ("communication", "communication_seconds", "communication"),
    ):
        seconds = [row[column] for row in found]
        bar = {"marker": marker(colour), "hovertemplate": "%{x}: %{y:.3g} s"}
        # Not in the legend, where buffers have the colour of what is sent.
        figure.add_bar(name=name, x=names, y=seconds, row=1, col=2, showlegend=False, **bar)
    figure.add_hline(memory, line={"color": COLOURS["limit"], "dash": "dash", "width": 2}, row=1, col=1)
    for row in found:
        needs = float(row["needs GB"] or 0)
        text = f"{needs:,.1f} GB<br>{'fits' if row['fits'] else 'too much'}"
        place = {"x": row["stage"], "y": 2 * memory, "yanchor": "bottom"}  # above the bars and their patterns
        figure.add_annotation(text=text, showarrow=False, font={**FONT, "size": 11}, row=1, col=1, **place)
    # The memory is always in the middle, so that bars are compared with the same height.
    figure.update_yaxes(
        title=f"GB a GPU (dashed: its {memory:.4g} GB for tensors)", range=[0, 2 * memory], row=1, col=1
    )
    figure.update_yaxes(title="seconds a step", row=1, col=2)
    below = {"orientation": "h", "yanchor": "top", "y": -0.12, "xanchor": "center", "x": 0.5, "traceorder": "normal"}
    figure.update_layout(barmode="stack", legend=below)
    notice = (
        "Left: what ends above the dashed line does not fit. "
        "Right: computing (grey) and sending (violet), as if they never overlapped."
    )
    return finished(figure, "plan", str(found.title), found.answer, notice=notice, above=98)
