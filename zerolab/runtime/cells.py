"""The text of notebook cells, for the ranks: what Jupyter keeps in this process only."""

import linecache
import sys
from typing import Any

from zerolab.recording import sources

Cell = tuple[str, str, str]
"""File name as code objects carry it, label such as `cell [3]`, text."""


class Cells:
    """The cells that this kernel has run; remembers which of them the ranks know already."""

    def __init__(self) -> None:
        self._known: dict[str, int] = {}

    def news(self) -> list[Cell]:
        """The cells that were run since the last call; none outside a notebook."""
        counts: dict[str, int] = getattr(getattr(_shell(), "compile", None), "_filename_map", {})
        fresh = [(name, count) for name, count in list(counts.items()) if self._known.get(name) != count]
        self._known.update(fresh)
        sources.LABELS.update((name, f"cell [{count}]") for name, count in fresh)
        return [(name, sources.LABELS[name], "".join(linecache.getlines(name))) for name, _ in fresh]


def _shell() -> Any:
    interactive = sys.modules.get("IPython")
    return interactive.get_ipython() if interactive is not None else None
