"""What the tests of the player share: what a page shows, and recordings with something changed."""

import json
import time
from dataclasses import replace
from functools import lru_cache

from zerolab import Recording
from zerolab.player import payload
from zerolab.player.bundle import script, style
from zerolab.recording.events import Event, RankInfo, RankRecording, RunInfo, Source, SourceLine, UnitInfo

DRAWN = "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done())))"
"""Fulfilled when two frames have begun: what an event or a new size set off is drawn."""


def state(tab):
    """What the player on a page shows."""
    return tab.evaluate("window.zerolabPlayers[0].state()")


def texts(tab, pane):
    """What is written in a pane."""
    return [label["text"] for label in tab.evaluate("window.zerolabPlayers[0].labels()")[pane]]


def until(tab, expression, seconds=20):
    """Waits until an expression is true on a page; playwright's own waiting evaluates text, which the page forbids."""
    end = time.monotonic() + seconds
    while not tab.evaluate(expression):
        assert time.monotonic() < end, expression
        tab.wait_for_timeout(20)


# A notebook's side of a widget: the model that anywidget hands to `render`, which outlives its views.
_NOTEBOOK = """async ([code, css, payload]) => {
  const sheet = document.head.appendChild(document.createElement("style"));
  sheet.textContent = css;
  const url = URL.createObjectURL(new Blob([code], { type: "text/javascript" }));
  const { render } = (await import(url)).default;
  window.heard = new Set();
  window.values = { payload, event: -1, walk: 0, state: {} };
  window.open_view = async () => {
    const model = {
      get: (name) => window.values[name], set: (name, value) => { window.values[name] = value; }, save_changes() {},
      on: (_, callback) => window.heard.add(callback), off: (_, callback) => window.heard.delete(callback),
    };
    const el = document.body.appendChild(document.createElement("div"));
    const close = await render({ model, el, unpacked: async (text) => text });
    return () => { close(); el.remove(); };
  };
}"""


def notebook(tab, recording):
    """Makes an empty page a notebook with a recording: `await window.open_view()` shows it, `window.values` is kept."""
    tab.goto("about:blank")
    tab.evaluate(_NOTEBOOK, [script(), style(), json.dumps(payload(recording))])


def changed(recording, *, ranks=None, units=None, **info):
    """The recording with some of it replaced."""
    return Recording(
        recording.ranks if ranks is None else ranks,
        world_size=recording.world_size,
        info=replace(recording.info, **info),
        units=recording.units if units is None else units,
        sources=recording.sources,
    )


def renamed(recording, old, new):
    """The recording with a unit of another name."""

    def event(one):
        return replace(one, unit=new) if one.unit == old else one

    ranks = [replace(rank, events=tuple(event(one) for one in rank.events)) for rank in recording.ranks]
    units = [replace(unit, name=new) if unit.name == old else unit for unit in recording.units]
    return changed(recording, ranks=ranks, units=units)


def in_order(recording):
    """The events as the player steps through them: by their end, a rank's own in the order they were written."""
    return sorted((event for rank in recording.ranks for event in rank.events), key=lambda e: (e.t_end, e.rank, e.seq))


@lru_cache(maxsize=8)  # several tests show the same one, and its page is written once
def made_up(ranks, units, steps=1, stage="zero3"):
    """A recording that nobody made: gather, compute and release of every unit on every rank, the same every time."""
    names = [f"blocks.{number}" for number in range(units)]
    size = 1024 * ranks
    source = {"engine": Source("zerolab/engines/zero3.py", "def forward(unit):\n    gather(unit)\n    release(unit)\n")}

    def of_rank(rank):
        events = []
        live = {"parameters": 4 * size * units // ranks, "activations": 0, "optimizer_state": 8 * size * units // ranks}

        def write(kind, op, start, length, unit, *, step, line, **more):
            place = len(events)
            at = SourceLine("engine", line)
            times = {"t_start": start + 37 * rank, "t_end": start + 37 * rank + length}
            event = Event(rank, place, **times, step=step, phase="forward" if step else "setup", kind=kind, op=op,
                          unit=unit, live=dict(live), source=at, **more)  # fmt: skip
            events.append(event)

        def hold(start, unit, spans, *, step, line, category="parameters"):
            write("memory", "hold", start, 0, unit, step=step, line=line, category=category, spans=spans, numel=size)

        own = ((1024 * rank, 1024 * (rank + 1)),)
        for place, name in enumerate(names):
            for category in ("parameters", "optimizer_state"):
                hold(1000 * place, name, own, step=0, line=1, category=category)
        for step in range(1, steps + 1):
            for place, name in enumerate(names):
                start = 1_000_000 * step + 9_000 * place
                number = (step - 1) * units + place
                wire = {"numel": size, "logical_bytes": 4 * 1024 * (ranks - 1), "number": number}
                write("collective", "all_gather", start, 3_000, name, step=step, line=2, **wire)
                live["parameters"] += 4 * size
                live["activations"] += 256 * ranks
                hold(start + 3_000, name, ((0, size),), step=step, line=2)
                write("module", "forward", start + 3_000, 5_000, name, step=step, line=2)
                live["parameters"] -= 4 * size
                hold(start + 8_000, name, own, step=step, line=3)
        return RankRecording(rank, ranks, tuple(events), {}, (), RankInfo())

    formula = {"parameters": 4 * 1024 * units, "gradients": 0, "optimizer_state": 8 * 1024 * units}
    info = RunInfo(
        stage=stage, num_params=size * units, optimizer="AdamW", precision="fp32", simulated=True, formula=formula
    )
    flats = [UnitInfo(name, size, size, "float32", ("weight",)) for name in names]
    return Recording(map(of_rank, range(ranks)), world_size=ranks, info=info, units=flats, sources=source)
