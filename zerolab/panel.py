"""explore(): a panel in a notebook that trains on real ranks what was chosen, and shows what happened."""

from typing import Any

import ipywidgets as widgets
import plotly.graph_objects as go

from zerolab import figures, theory
from zerolab.lab import Comparison, compare
from zerolab.models import RECIPES
from zerolab.player.widget import Player


class Explorer(widgets.VBox):  # type: ignore[misc]  # ipywidgets has no types
    """Stage, number of ranks, model, precision and steps by widget; Run trains and shows player and bars.

    A second run stays beside the first: the bars stand next to each other, and the player shows both recordings on
    common axes. `runs` lists what ran, the latest last; at most two are shown.
    """

    def __init__(self) -> None:
        self.runs: list[Comparison] = []
        self.stage = widgets.ToggleButtons(options=theory.STAGES, value="zero3", description="stage")
        self.ranks = widgets.IntSlider(4, 1, 8, description="ranks")
        self.model = widgets.Dropdown(options=sorted(RECIPES), value="gpt-tiny", description="model")
        self.precision = widgets.Dropdown(options=tuple(theory.BYTES_PER_PARAMETER), description="precision")
        self.steps = widgets.IntSlider(2, 2, 6, description="steps")
        self.button = widgets.Button(description="Run", button_style="primary", icon="play")
        self.progress = widgets.IntProgress(0, 0, 3, layout={"width": "160px"})
        self.said = widgets.Label("Choose, then press Run.")
        self.shown = widgets.VBox()
        self.button.on_click(lambda _: self.run())
        rows = [(self.stage,), (self.ranks, self.steps), (self.model, self.precision)]
        head = [widgets.HBox(row) for row in rows]
        super().__init__([*head, widgets.HBox([self.button, self.progress, self.said]), self.shown])

    def run(self) -> None:
        """Trains what is chosen and shows it beside the run before; what goes wrong is said in the panel."""
        self.button.disabled = True
        try:
            self._say(1, f"{self.stage.value} on {self.ranks.value} ranks: starting them and training ...")
            choice = {"world_size": self.ranks.value, "model": self.model.value, "steps": self.steps.value}
            self.runs.append(compare([self.stage.value], **choice, precision=self.precision.value, device="cpu"))
            self._say(2, "drawing ...")
            self._show()
            self._say(3, str(self.runs[-1].rows[0]["stage"]) + " done; change something and run again to compare.")
        except (RuntimeError, ValueError) as error:
            self._say(0, str(error).splitlines()[0])
        finally:
            self.button.disabled = False

    def _show(self) -> None:
        """The last two runs: bars of measured and formula, and the player on both."""
        last = self.runs[-2:]
        recordings = [recording for run in last for recording in run.recordings.values()]
        rows: list[dict[str, Any]] = []
        for number, run in enumerate(last, start=len(self.runs) - len(last) + 1):
            rows += [{**row, "stage": f"run {number}: {row['stage']}, {row['world_size']} ranks"} for row in run.rows]
        bars = go.FigureWidget(figures.stages(rows))
        bars.layout.title.text = "State a rank: measured, and beside it the formula"
        self.shown.children = (bars, Player(recordings[0], recordings[1] if len(recordings) > 1 else None))

    def _say(self, stage: int, text: str) -> None:
        self.progress.value, self.said.value = stage, text

    def __repr__(self) -> str:
        """The same text every time."""
        return f"explore: {len(self.runs)} run{'' if len(self.runs) == 1 else 's'}"


def explore() -> Explorer:
    """The panel, for the last line of a cell; needs `pip install zerolab[lab]`."""
    return Explorer()
