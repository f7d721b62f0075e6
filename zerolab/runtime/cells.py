"""What only the kernel knows and the ranks need: the text of notebook cells, and which modules were edited since."""

import contextlib
import linecache
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from zerolab.recording import sources

Cell = tuple[str, str, str]
"""File name as code objects carry it, label such as `cell [3]`, text."""


class News(NamedTuple):
    """What the ranks do not know yet."""

    cells: list[Cell]
    edited: list[str]  # modules of the learner's own whose new version the kernel uses

    def learn(self) -> None:
        """In a rank: make the text of cells known to tracebacks and recordings, and old modules forgotten."""
        for filename, label, text in self.cells:
            linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
            # Two tables: tracebacks look for text, messages for the label.
            sources.LABELS[filename] = label
        for name in self.edited:  # imported afresh when the function that comes now names it
            sys.modules.pop(name, None)
        if self.edited:
            linecache.checkcache()


class Cells:
    """The cells that this kernel has run, and the learner's modules; remembers what the ranks know already."""

    def __init__(self) -> None:
        self._known: dict[str, int] = {}
        self._versions = _own_modules()

    def news(self) -> News:
        """The cells that were run, and the modules that were edited, since the last call; none outside a notebook."""
        # IPython's private table of file names and cell numbers; without it, cells are simply called by their files.
        counts: dict[str, int] = getattr(getattr(_shell(), "compile", None), "_filename_map", {})
        fresh = [(name, count) for name, count in list(counts.items()) if self._known.get(name) != count]
        self._known.update(fresh)
        sources.LABELS.update((name, f"cell [{count}]") for name, count in fresh)
        return News(
            [(name, sources.LABELS[name], "".join(linecache.getlines(name))) for name, _ in fresh], self._edited()
        )

    def _edited(self) -> list[str]:
        """All of the learner's modules if one has changed: they may hold each other's old functions."""
        now = _own_modules()
        # A module that is new to the kernel is new to the ranks as well: they import it as it is.
        changed = any(name in self._versions and _differs(self._versions[name], now[name]) for name in now)
        self._versions = now
        return list(now) if changed else []


def _own_modules() -> dict[str, object]:
    """The version of each module that the learner wrote: as this kernel has loaded it, or as it lies on disk.

    `importlib.reload` gives a module a new spec. %autoreload may exchange single functions instead; while it is on,
    the kernel's version is the file's.
    """
    reloads = _reloads_by_itself()
    versions: dict[str, object] = {}
    for name, module in list(sys.modules.items()):
        filename = getattr(module, "__file__", None)
        if name != "__main__" and isinstance(filename, str) and sources.is_own(filename):
            versions[name] = _modified(filename) if reloads else _spec(module)
    return versions


def _differs(before: object, now: object) -> bool:
    """Specs are told apart by identity: one that was made anew equals the old one."""
    return before is not now if isinstance(now, ModuleSpec) else before != now


def _spec(module: ModuleType) -> object:
    return getattr(module, "__spec__", None)


def _modified(filename: str) -> int:
    with contextlib.suppress(OSError):
        return Path(filename).stat().st_mtime_ns
    return 0


def _reloads_by_itself() -> bool:
    """Whether %autoreload is on in this kernel."""
    magics = getattr(_shell(), "magics_manager", None)
    registry = getattr(magics, "registry", {})
    reloader = getattr(registry.get("AutoreloadMagics"), "_reloader", None)
    return bool(getattr(reloader, "enabled", False))


def _shell() -> Any:
    interactive = sys.modules.get("IPython")
    return interactive.get_ipython() if interactive is not None else None
