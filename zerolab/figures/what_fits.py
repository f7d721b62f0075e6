"""what_fits(): a panel over the planner in a notebook: sliders, a bar for each stage, a line at the memory."""

import json
from typing import Any

import ipywidgets as widgets

from zerolab import catalog
from zerolab.catalog import GIB
from zerolab.figures import chart, plots
from zerolab.figures.live import LiveFigure
from zerolab.moved import renamed
from zerolab.names import check_known
from zerolab.runtime import variables
from zerolab.theory.activations import CHECKPOINTING
from zerolab.theory.job import KERNELS
from zerolab.theory.planner import Plan, plan

WORLD_SIZES = tuple(2**power for power in range(11))
# GiB as torch reports them, by the GB that cards are sold with: the catalog's, and smaller ones.
CARDS = {8: 7.8, 16: 15.7, 24: 23.64, 32: 31.74, 40: 39.39, 48: 47.45, 80: 79.11, 96: 95, 141: 139.8, 180: 178.35}
MEMORY = {f"{sold} GB card, {gibibytes:g} GiB": gibibytes * GIB for sold, gibibytes in CARDS.items()}
BANDWIDTHS = (1, 3, 10, 12.5, 25, 50, 100, 150, 300, 450, 900)  # GB a second
LINKS = {"its own": 0, **{f"{rate:g}": rate for rate in BANDWIDTHS}}  # 0: the GPU's link, and the network
MOST_ROWS = 32


def labelled(name: str, toggles: Any) -> Any:
    """Toggle buttons beside their name, where ipywidgets itself would break the line."""
    toggles.style.button_width, toggles.layout.width = "80px", "370px"
    # Aligned with the names of the other widgets.
    name_of = widgets.Label(name, layout={"width": "84px", "display": "flex", "justify_content": "flex-end"})
    return widgets.HBox([name_of, toggles])


class Planner(widgets.VBox):  # type: ignore[misc]  # ipywidgets has no types
    """Widgets for the options of `theory.plan`; below them what fits, and settings. `found` is the `Plan` shown."""

    found: Plan

    def __init__(self, model: str = "7b", world_size: int = 8, rows: int = 1) -> None:
        check_known("model", model, catalog.ARCHITECTURES)
        begins = (
            ("world_size", world_size, WORLD_SIZES, f"powers of two up to {WORLD_SIZES[-1]}"),
            ("rows", rows, range(1, MOST_ROWS + 1), f"1 to {MOST_ROWS}"),
        )
        for name, given, known, said in begins:
            if given not in known:
                raise ValueError(f"{name} is {given!r}, and its slider has {said}: theory.plan takes any number")
        self.model = widgets.Dropdown(options=tuple(catalog.ARCHITECTURES), value=model, description="model")
        self.world_size = widgets.SelectionSlider(options=WORLD_SIZES, value=world_size, description="GPUs")
        self.memory = widgets.SelectionSlider(options=MEMORY.items(), value=79.11 * GIB, description="memory")
        self.bandwidth = widgets.SelectionSlider(options=LINKS.items(), value=0, description="GB a second")
        self.precision = widgets.ToggleButtons(options=("bf16", "fp16", "fp32"))
        self.checkpointing = widgets.ToggleButtons(options=CHECKPOINTING)
        self.rows = widgets.IntSlider(rows, 1, MOST_ROWS, description="rows per rank")
        self.kernels = widgets.Dropdown(options=KERNELS, description="kernels")
        self.answer, self.sensitivity = (widgets.HTML() for _ in "12")  # a Label would not wrap these sentences
        self.fsdp2, self.deepspeed, self.lines = (
            widgets.Textarea(disabled=True, rows=10, layout={"width": "98%"}) for _ in "123"
        )
        self._show()
        self.bars = LiveFigure(self._drawn())
        sliders = (self.model, self.world_size, self.memory, self.bandwidth, self.rows, self.kernels)
        for widget in sliders:
            widget.style.description_width, widget.layout.width = "90px", "420px"
        for widget in (*sliders, self.precision, self.checkpointing):
            widget.observe(self._on_change, "value")
        controls = [widgets.HBox(sliders[start : start + 2]) for start in range(0, len(sliders), 2)]
        controls.append(labelled("precision", self.precision))
        controls.append(labelled("checkpoints", self.checkpointing))
        titles = ("with FSDP2", "with DeepSpeed", "checkpointing, before either")
        settings = widgets.Accordion([self.fsdp2, self.deepspeed, self.lines], titles=titles)
        super().__init__([*controls, self.answer, self.sensitivity, self.bars, settings])

    def _on_change(self, _: Any) -> None:
        self._show()
        self.bars.figure = self._drawn()

    def _show(self) -> None:
        """Shows the plan: its answer, what its seconds depend on, and the settings of the first stage that fits."""
        self.found = plan(
            self.model.value,
            self.world_size.value,
            self.memory.value,
            self.bandwidth.value * 1e9 or None,
            self.precision.value,
            rows=self.rows.value,
            checkpointing=self.checkpointing.value,
            kernels=self.kernels.value,
        )
        self.answer.value, self.sensitivity.value = self.found.answer, self.found.sensitivity
        if not self.found.fitting:
            self.fsdp2.value = self.deepspeed.value = self.lines.value = "Nothing fits, so there is nothing to set."
            return
        settings = self.found.settings()
        self.fsdp2.value = settings["fsdp2"] or f"FSDP2 has no {self.found.fitting[0]}."
        self.deepspeed.value = json.dumps(settings["deepspeed"], indent=2)
        self.lines.value = settings["checkpointing"] or "Nothing is checkpointed."

    def _drawn(self) -> Any:
        """The bars of what was found."""
        # By default, both plots would share 700 pixels.
        return plots.plan(self.found).update_layout(width=chart.PANEL_WIDTH)

    def __repr__(self) -> str:
        """The same text every time."""
        return f"planner: {self.found.title}. {self.found.answer}"

    def _repr_mimebundle_(self, **keywords: Any) -> Any:
        """The widget and its text; in stored notebooks (ZEROLAB_STATIC=1), the figure instead."""
        if variables.static():
            return plots.plan(self.found)._repr_mimebundle_() | {"text/plain": repr(self)}
        shown = super()._repr_mimebundle_(**keywords)
        data, metadata = shown if isinstance(shown, tuple) else (shown, {})
        return {**(data or {}), "text/plain": repr(self)}, metadata


@renamed(gpus="world_size", batch="rows")
def what_fits(model: str = "7b", world_size: int = 8, rows: int = 1) -> Planner:
    """Shows a panel with sliders over the planner, for the last line of a cell: which stages fit on which GPUs.

    Needs `pip install zerolab[lab]`.

    Args:
        model: a name of `catalog.ARCHITECTURES`, to begin with.
        world_size: number of GPUs to begin with, a power of two up to 1024.
        rows: sequences per rank, to begin with, up to 32.

    Raises ValueError for what is not on the sliders.
    """
    return Planner(model, world_size, rows)
