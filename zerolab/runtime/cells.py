"""Notebook cells on the ranks: their text, the modules that the learner edits alongside them, and `%%ranks` itself."""

import ast
import contextlib
import io
import linecache
import sys
import tokenize
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any, NamedTuple

from zerolab.recording import sources

Cell = tuple[str, str, str]
"""File name as code objects carry it, label such as `cell [3]`, text."""


class News(NamedTuple):
    """What has not been sent to the ranks yet."""

    cells: list[Cell]
    edited: list[str]  # modules of the learner's own whose new version the kernel uses

    def learn(self) -> None:
        """In a rank: gives tracebacks and recordings the text of cells, and drops outdated modules for reimport."""
        for filename, label, text in self.cells:
            linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
            sources.LABELS[filename] = label
        for name in self.edited:  # imported again when the function that follows names it
            sys.modules.pop(name, None)
        if self.edited:
            linecache.checkcache()


class Cells:
    """The cells that this kernel has run, and the learner's modules; remembers what the ranks have been sent."""

    def __init__(self) -> None:
        self._known: dict[str, int] = {}
        self._versions = _own_modules()

    def news(self) -> News:
        """The cells that were run, and the modules that were edited, since the last call; none outside a notebook."""
        # IPython's private table of file names and cell numbers; without it, cells go by their file names.
        counts: dict[str, int] = getattr(getattr(_shell(), "compile", None), "_filename_map", {})
        fresh = [(name, count) for name, count in counts.copy().items() if self._known.get(name) != count]
        self._known.update(fresh)
        sources.LABELS.update((name, f"cell [{count}]") for name, count in fresh)
        return News(
            [(name, sources.LABELS[name], "".join(linecache.getlines(name))) for name, _ in fresh], self._edited()
        )

    def _edited(self) -> list[str]:
        """All of the learner's modules if one has changed: they may refer to each other's old functions."""
        now = _own_modules()
        # A module that is new to the kernel is new to the ranks as well: they import it as it is.
        changed = any(name in self._versions and _differs(self._versions[name], now[name]) for name in now)
        self._versions = now
        return list(now) if changed else []


def _own_modules() -> dict[str, object]:
    """The version of each module that the learner wrote: its spec, which `importlib.reload` makes anew.

    %autoreload may replace single functions instead; while it is on, the version is the file's time of change.
    """
    reloads = _is_autoreload_on()
    versions: dict[str, object] = {}
    for name, module in sys.modules.copy().items():  # in one go: a finalizer may import something meanwhile
        filename = getattr(module, "__file__", None)
        if name != "__main__" and isinstance(filename, str) and sources.is_own(filename):
            versions[name] = _modified(filename) if reloads else getattr(module, "__spec__", None)
    return versions


def _differs(before: object, now: object) -> bool:
    """Specs by identity: a new one equals the old one."""
    return before is not now if isinstance(now, ModuleSpec) else before != now


def _modified(filename: str) -> int:
    with contextlib.suppress(OSError):
        return Path(filename).stat().st_mtime_ns
    return 0


def _is_autoreload_on() -> bool:
    magics = getattr(_shell(), "magics_manager", None)
    registry = getattr(magics, "registry", {})
    reloader = getattr(registry.get("AutoreloadMagics"), "_reloader", None)
    return bool(getattr(reloader, "enabled", False))


def _shell() -> Any:
    interactive = sys.modules.get("IPython")
    return interactive.get_ipython() if interactive is not None else None


def run_cell(cell: str, filename: str) -> None:
    """In a rank: execute a cell in `__main__`; print the value of a last expression, unless a semicolon ends it."""
    namespace = sys.modules["__main__"].__dict__
    body = ast.parse(cell, filename)
    last = body.body[-1] if body.body else None
    if isinstance(last, ast.Expr):
        del body.body[-1]
    exec(compile(body, filename, "exec"), namespace)  # noqa: S102  # running the learner's cell is what it is for
    if isinstance(last, ast.Expr):
        value = eval(compile(ast.Expression(last.value), filename, "eval"), namespace)  # noqa: S307  # as above
        if value is not None and not _ends_with_semicolon(cell):
            print(repr(value))


def _ends_with_semicolon(cell: str) -> bool:
    # By tokens, as IPython does it: a comment may follow, or contain the only semicolon.
    tokens = tokenize.generate_tokens(io.StringIO(cell).readline)
    last = [token for token in tokens if token.string.strip() and token.type != tokenize.COMMENT][-1]
    return last.string == ";"
