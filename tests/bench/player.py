"""The player in a headless browser, beside plotly on the same recording: first draw, updates, and size.

The player is measured in the four ways in which it is used: jumps to any event, stepping from event to event with the
key, dragging the scrubber through the whole run, and playing. Stepping is the dearest: it ends at rest each time, so it
writes the sentences for screen readers and the address, too.

An update is measured from the start of an animation frame, in which it is asked for, to the first task after that
frame: script, layout and paint. It is told in the time that the page's main thread really ran (other processes on a
busy machine do not count; what measuring an empty update takes is taken off), and in time by the clock beside it.
FigureWidget is given what its Python side takes plus the same update by plotly.js; the way between kernel and browser,
which it also needs and the player does not, is left out. plotly's frames are asked for by name, as its slider does; by
the clock they also wait for plotly's own next animation frame, so what the main thread ran is what compares.
"""

import random
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median, quantiles
from time import perf_counter
from typing import Any

import plotly.graph_objects as go
from in_lab import chromium, first_draw_in_lab
from measuring import Figure, interleaved
from plotly.offline import get_plotlyjs
from workloads import short_training

from zerolab import Cluster, Recording
from zerolab.player import page
from zerolab.recording.events import CATEGORIES

STEPS = {2_000: 3, 20_000: 28}  # training steps of gpt-tiny under zero3 on 4 ranks that make about so many events
UPDATE_BUDGET = {2_000: 8.0, 20_000: 16.0}
SIZE_BUDGET = {2_000: 500.0, 20_000: 2_000.0}
FIRST_BUDGET: dict[int, dict[str, float]] = {2_000: {"player": 300.0}, 20_000: {}}  # none is set for 20,000
TICKS = 120
PLAYER = "window.zerolabPlayers[0]"
# How the player is asked for the k-th update of each way, given `place` of TICKS; playing goes on by 60th of a second.
WAYS = {
    "jumps": "{player}.scrub({jumps}[place])",
    "steps": "{player}.step(1)",
    "dragging": "{player}.scrub({player}.model.count * place / {ticks})",
    "playing": "{player}.showTime({player}.clock.time + 1e9 / 60 / {player}.clock.slow)",
}
FRAMES = 100  # plotly keeps every frame whole; more of them only makes it slower

MEASURE = """(place) => new Promise((done, failed) => requestAnimationFrame(() => {
  const start = performance.now();
  const done_with = window.update(place); // plotly says by a promise when it has drawn
  const channel = new MessageChannel();
  channel.port1.onmessage = () => done(performance.now() - start);
  Promise.resolve(done_with).then(() => channel.port2.postMessage(0), failed); // plotly rejects a frame it lacks
}))"""

FIRST_DRAW = """() => new Promise((done) => {
  const old = window.zerolabPlayers[0];
  const payload = old.model.payload;
  const host = old.root.parentElement;
  old.remove();
  requestAnimationFrame(() => {
    const start = performance.now();
    new old.constructor(host, payload, { view: "all", events: true });
    requestAnimationFrame(() => requestAnimationFrame(() => done(performance.now() - start)));
  });
})"""

PLOTLY_PAGE = """<!doctype html><meta charset="utf-8"><div id="plot" style="width:1240px;height:700px"></div>
<script>{plotly}</script><script>
const figure = {figure};
Plotly.newPlot("plot", figure).then(() => {{ window.ready = true; }});
window.update = (place) => {update};
</script>"""


def player(rounds: int) -> Iterator[Figure]:
    """First draw and update at 2,000 and 20,000 events, beside plotly; size of the page; first draw in JupyterLab."""
    with Cluster(world_size=4, device="cpu", timeout=120) as cluster:
        recordings = {events: cluster.record(short_training, "zero3", steps) for events, steps in STEPS.items()}
    for events, recording in recordings.items():
        yield from _measured(events, recording, rounds)
    yield first_draw_in_lab(recordings[2_000], rounds)


def _measured(events: int, recording: Recording, rounds: int) -> list[Figure]:
    """The figures of one recording."""
    said = f"{len(recording.events):,} events"
    budgets = {f"player, {way}": UPDATE_BUDGET[events] for way in WAYS}
    update = Figure(f"player_update_{events}", f"Update of the player, p95 of {TICKS}, {said}", "ms", None, budgets)
    first = Figure(f"player_first_draw_{events}", f"First draw of the player, {said}", "ms", None, FIRST_BUDGET[events])
    size = Figure(f"player_size_{events}", f"The standalone page, {said}", "kB", None, {"player": SIZE_BUDGET[events]})
    size.add("player", len(page(recording).encode()) / 1000)
    # What a notebook would store: its front end has plotly.js already.
    framed = _framed(recording, plotly_figure(recording))
    size.add(f"plotly, {FRAMES} frames, without plotly.js", len(framed.to_json().encode()) / 1000)
    with _pages(recording) as (tabs, python_side):
        jumps = [random.Random(0).randrange(len(recording.events)) for _ in range(TICKS)]
        variants = [*budgets, *(name for name in tabs if name != "player")]

        def measure(variant: str) -> float:
            name, _, way = variant.partition(", ")
            tab = tabs[name]
            tab.bring_to_front()
            if way == "jumps":
                first.add("player", tab.evaluate(FIRST_DRAW))
            if way:
                _begin(tab, way, jumps)
            asked = range(TICKS) if way else [place % FRAMES for place in jumps[:20]]
            busy, clock = updates(tab, list(asked))
            extra = python_side() if variant == "FigureWidget" else 0.0
            update.add(f"{variant}, by the clock", quantiles(clock, n=20)[-1] + extra)
            return quantiles(busy, n=20)[-1] + extra

        for variant, milliseconds in interleaved(variants, rounds, measure):
            update.add(variant, milliseconds)
    return [first, update, size]


def _begin(tab: Any, way: str, jumps: list[int]) -> None:
    """A fresh page, a third into the run, that goes on in one of the WAYS."""
    tab.reload()
    tab.wait_for_timeout(500)  # while it is idle it prepares texts, as it does for a person who looks first
    tab.evaluate(f"void {PLAYER}.goto({PLAYER}.model.count / 3)")
    update = WAYS[way].format(player=PLAYER, jumps=jumps, ticks=TICKS)
    # Without `void` the value would be a function, which playwright would call.
    tab.evaluate(f"void (window.update = (place) => {{ {update}; }})")


def updates(tab: Any, places: list[int]) -> tuple[list[float], list[float]]:
    """For each update what the page's main thread ran, and what the clock said, both in ms."""
    session = tab.context.new_cdp_session(tab)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})

    def ran() -> float:
        metrics = {entry["name"]: entry["value"] for entry in session.send("Performance.getMetrics")["metrics"]}
        return 1000 * float(metrics["TaskDuration"])

    def each(asked: list[int]) -> tuple[list[float], list[float]]:
        busy, clock = [], []
        for place in asked:
            before = ran()
            clock.append(float(tab.evaluate(MEASURE, place)))
            busy.append(ran() - before)
        return busy, clock

    tab.evaluate("window.wanted = window.update; void (window.update = () => {})")
    nothing = median(each([0] * 20)[0])  # what asking and measuring take by themselves
    tab.evaluate("void (window.update = window.wanted)")
    busy, clock = each(places)
    session.send("Performance.disable")
    return [milliseconds - nothing for milliseconds in busy], clock


@contextmanager
def _pages(recording: Recording) -> Iterator[tuple[dict[str, Any], Any]]:
    """The three pages open in one browser, and a function that measures FigureWidget's Python side in ms."""
    figure = plotly_figure(recording)
    shapes = "Plotly.update('plot', {}, {shapes: figure.layout.shapes.map((s) => ({...s, x0: place, x1: place}))})"
    animate = (
        "Plotly.animate('plot', [String(place)], {mode: 'immediate', frame: {duration: 0}, transition: {duration: 0}})"
    )
    framed = _framed(recording, figure)
    with tempfile.TemporaryDirectory() as folder, chromium() as browser:
        texts = {"player": page(recording)}
        for name, what, update in (("FigureWidget", figure, shapes), ("plotly frames", framed, animate)):
            texts[name] = PLOTLY_PAGE.format(plotly=get_plotlyjs(), figure=what.to_json(), update=update)
        tabs = {}
        for name, text in texts.items():
            file = Path(folder, f"{name}.html")
            file.write_text(text, encoding="utf-8")
            tabs[name] = browser.new_page(viewport={"width": 1280, "height": 800})
            tabs[name].goto(file.as_uri() + "#view=all&events")
            if name != "player":
                tabs[name].wait_for_function("window.ready")
        yield tabs, _python_side(figure)


def _python_side(figure: go.Figure) -> Any:
    """What FigureWidget does in the kernel for one tick, in ms."""
    widget = go.FigureWidget(figure)

    def tick() -> float:
        start = perf_counter()
        with widget.batch_update():
            for shape in widget.layout.shapes:
                shape.x0 = shape.x1 = random.random()
        return 1000 * (perf_counter() - start)

    return tick


def plotly_figure(recording: Recording) -> go.Figure:
    """Timeline and memory of every rank as plotly draws them: bars and stacked areas, and a cursor."""
    figure = go.Figure()
    for rank in recording.ranks:
        bars = [e for e in rank.events if e.kind in ("module", "collective", "wait", "optimizer") and e.parent is None]
        figure.add_bar(
            base=[e.t_start for e in bars],
            x=[e.t_end - e.t_start for e in bars],
            y=[rank.rank] * len(bars),
            orientation="h",
        )
        for category in CATEGORIES:
            figure.add_scatter(
                x=[e.t_end for e in rank.events],
                y=[e.live.get(category, 0) for e in rank.events],
                stackgroup=f"rank {rank.rank}",
                yaxis=f"y{rank.rank + 2}",
                line_shape="hv",
                mode="none",
            )
    rows = {f"yaxis{k + 2}": {"domain": [0.12 * k, 0.12 * k + 0.1], "anchor": "x"} for k in range(recording.world_size)}
    figure.update_layout(showlegend=False, yaxis={"domain": [0.55, 1]}, **rows)
    figure.update_layout(shapes=[{"type": "line", "yref": "paper", "x0": 0, "x1": 0, "y0": 0, "y1": 1}])
    return figure


def _framed(recording: Recording, figure: go.Figure) -> go.Figure:
    """The figure with a frame for each of FRAMES moments: the cursor moves."""
    events = recording.events
    times = [events[place * (len(events) - 1) // FRAMES].t_end for place in range(FRAMES)]
    cursor = figure.layout.shapes[0].to_plotly_json()
    framed = go.Figure(figure)  # with `frames` as its argument it would drop them silently: a figure's own go first
    framed.frames = [
        go.Frame(name=str(k), layout={"shapes": [{**cursor, "x0": t, "x1": t}]}) for k, t in enumerate(times)
    ]
    return framed
