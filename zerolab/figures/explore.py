"""explore(): a panel in a notebook that shows what real ranks did as chosen: beforehand at once, or measured now."""

from typing import Any

import ipywidgets as widgets
import plotly.graph_objects as go

from zerolab import theory
from zerolab.comparison import Comparison, compare
from zerolab.figures import beforehand, chart, plots
from zerolab.figures.live import LiveFigure
from zerolab.figures.what_fits import labelled
from zerolab.models import RECIPES
from zerolab.player.strip import NAMES
from zerolab.player.widget import Player
from zerolab.recording.events import count
from zerolab.recording.recording import Recording

OPTIONS = {
    "overlap": ("reduce while backward goes on", theory.STAGES),
    "prefetch": ("gather the next unit ahead", ("zero3",)),
    "release_after_forward": ("release units after forward", ("zero3",)),
}
"""The engines' options that the panel offers: keyword, words, and the stages that have it. All are on by default."""

STAGES = tuple((NAMES[stage], stage) for stage in theory.STAGES)
"""The stages in the words and the order of the site's page "Try it"."""

STEPS = 4  # of the progress bar: ranks, training, drawing, done


class Explorer(widgets.VBox):  # type: ignore[misc]  # ipywidgets has no types
    """Widgets for stage, ranks, model, precision, steps and the engine's options, and below them player and bars.

    What the package ships a run of is shown at once, with DDP's bars beside it, and says that it was recorded
    beforehand. Run trains as chosen, and says so. A second run is shown beside the first: their bars, and both
    recordings in the player on common axes. `runs` lists all runs made here, the latest last; the last two are shown.
    """

    def __init__(self) -> None:
        self.runs: list[Comparison] = []
        self.stage = widgets.ToggleButtons(options=STAGES, value="zero3")
        self.world_size = widgets.IntSlider(4, 1, 8, description="Ranks (N)")
        self.model = widgets.Dropdown(options=sorted(RECIPES), value=beforehand.MODEL, description="Model")
        self.precision = widgets.Dropdown(options=tuple(theory.BYTES_PER_PARAMETER), description="Precision")
        self.steps = widgets.IntSlider(beforehand.STEPS, 2, 6, description="Steps")
        box: dict[str, Any] = {"indent": False, "layout": {"width": "auto", "margin": "2px 16px"}}
        self.options = {name: widgets.Checkbox(True, description=text, **box) for name, (text, _) in OPTIONS.items()}
        self.button = widgets.Button(description="Run", button_style="primary", icon="play")
        self.progress = widgets.IntProgress(0, 0, STEPS, layout={"width": "160px"})
        self.said = widgets.Label()
        self.bars = LiveFigure(go.Figure())
        self.shown = widgets.VBox()
        self.button.on_click(lambda _: self.run())
        self._offer()
        for widget in (self.world_size, self.steps, self.model, self.precision):
            widget.style.description_width, widget.layout.width = "90px", "420px"  # in two aligned columns
        rows = [
            (labelled("Stage", self.stage),),
            (self.world_size, self.steps),
            (self.model, self.precision),
            tuple(self.options.values()),
        ]
        head = [widgets.HBox(row) for row in rows]
        super().__init__([*head, widgets.HBox([self.button, self.progress, self.said]), self.shown])
        for widget in (self.stage, self.world_size, self.model, self.precision, self.steps, *self.options.values()):
            widget.observe(self._on_change, "value")
        self._answer()

    # Runs in the kernel's main thread, as a cell would: the stop button then stops the ranks, too.
    def run(self) -> None:
        """Trains as chosen and shows the run beside the one before; errors are shown in the panel."""
        self.button.disabled = True
        try:
            self._say(1, f"starting {count(self.world_size.value, 'rank')} ...")
            run = compare(
                [self.stage.value],
                world_size=self.world_size.value,
                model=self.model.value,
                steps=self.steps.value,
                precision=self.precision.value,
                device="cpu",
                progress=lambda text: self._say(2, f"training {text} ..."),
                options=self._chosen(),
            )
            self.runs.append(run)
            self._say(3, "drawing ...")
            self._show()
            self._say(STEPS, f"{self.stage.value}, measured just now; change something and run again to compare.")
        except (RuntimeError, ValueError) as error:
            self._say(0, str(error).splitlines()[0])
        finally:
            self.button.disabled = False

    def _on_change(self, _: object) -> None:
        self._offer()
        self._answer()

    def _answer(self) -> None:
        """Shows the run that was made beforehand of what is chosen, or says that there is none."""
        usual = (beforehand.MODEL, beforehand.PRECISION, beforehand.STEPS)
        is_usual = (self.model.value, self.precision.value, self.steps.value) == usual and all(self._chosen().values())
        found = beforehand.shipped(self.stage.value, self.world_size.value) if is_usual else None
        if found is None:
            self._say(0, "Not recorded beforehand: press Run to measure it on ranks of your own.")
            self._put()
            return
        ddp = beforehand.shipped("ddp", self.world_size.value)
        rows = found.rows if ddp is None or self.stage.value == "ddp" else [*ddp.rows, *found.rows]
        self._draw(rows, list(found.recordings.values()))
        self._say(STEPS, "Recorded beforehand on real ranks. Run measures it on ranks of your own.")

    def _offer(self) -> None:
        """Enables only the options of the chosen stage."""
        for name, (_text, stages) in OPTIONS.items():
            self.options[name].disabled = self.stage.value not in stages

    def _chosen(self) -> dict[str, Any]:
        """The checked options as the engine's keywords; there, prefetch is a number of units."""
        open_to_choice = {name: box.value for name, box in self.options.items() if not box.disabled}
        return {name: int(value) if name == "prefetch" else value for name, value in open_to_choice.items()}

    def _show(self) -> None:
        """The last two runs: bars of measured and formula, and the player on both."""
        last = self.runs[-2:]  # a third beside them would leave none of them room
        recordings = [recording for run in last for recording in run.recordings.values()]
        rows: list[dict[str, Any]] = []
        for number, run in enumerate(last, start=len(self.runs) - len(last) + 1):
            ranks = count(run.rows[0]["world_size"], "rank")
            rows += [{**row, "stage": f"run {number}: {row['stage']}, {ranks}"} for row in run.rows]
        self._draw(rows, recordings)

    def _draw(self, rows: list[dict[str, Any]], recordings: list[Recording]) -> None:
        """Bars of all rows, and the player on the first two recordings."""
        title = chart.heading("State a rank: measured, and beside it the formula")
        self.bars.figure = plots.stages(rows).update_layout(title=title, width=chart.PANEL_WIDTH)
        self._put(self.bars, Player(recordings[0], recordings[1] if len(recordings) > 1 else None))

    def _put(self, *widgets_: widgets.Widget) -> None:
        """Shows these instead of what was shown; the browser forgets a player: its recording is 100 kB and more."""
        before, self.shown.children = self.shown.children, widgets_
        for player in before[1:]:
            player.close()

    def _say(self, stage: int, text: str) -> None:
        self.progress.value, self.said.value = stage, text

    def __repr__(self) -> str:
        """The same text every time."""
        return f"explore: {len(self.runs)} run{'' if len(self.runs) == 1 else 's'}"


def explore() -> Explorer:
    """Shows a panel of what real ranks did under the chosen stage, and measures it anew: for the last line of a cell.

    Needs `pip install zerolab[lab]`.
    """
    return Explorer()
