"""Modules and keywords under their names of the first edition: what was written for it still runs, with a warning.

They go with the next edition. `python -W error::FutureWarning` finds code that still uses them.
"""

import sys
from collections.abc import Callable, Sequence
from functools import wraps
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, TypeVar
from warnings import warn

Function = TypeVar("Function", bound=Callable[..., Any])

MOVED = {
    "activations": "theory.activations",
    "chart": "figures.chart",
    "expecting": "lessons.errors",
    "foreign": "theory.systems",
    "lab": "comparison",
    "moments": "theory.moments",
    "panel": "figures.explore",
    "plan_panel": "figures.what_fits",
    "planner": "theory.planner",
    "predictions": "lessons.predictions",
    "preflight": "lessons.preflight",
    "progress": "lessons.progress",
    "published": "simulation.architectures",
    "schemes": "theory.schemes",
    "seconds": "theory.seconds",
    "settings": "theory.configs",
    "shipped": "lessons.deepspeed_runs",
    "waiting": "runtime.waiting",
    "workspace": "lessons.workspace",
}


class Finder:
    """Finds and loads modules by their old names; Python asks it for those that no other finder has found."""

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: object = None) -> ModuleSpec | None:
        """Finds `zerolab.` and an old name."""
        package, _, module = name.rpartition(".")
        return ModuleSpec(name, self) if package == "zerolab" and module in MOVED else None  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> None:
        """Leaves that to Python."""

    def exec_module(self, module: ModuleType) -> None:
        """Warns that the module has a new name; its attributes are those of the module under that."""
        new = f"zerolab.{MOVED[module.__name__.removeprefix('zerolab.')]}"
        sentence = f"{module.__name__} is now {new}; the old name will be removed in the next edition"
        warn(sentence, FutureWarning, stacklevel=2)
        vars(module)["__getattr__"] = lambda name: getattr(import_module(new), name)


def install() -> None:
    """Makes the old names importable."""
    sys.meta_path.append(Finder())


def renamed(**names: str) -> Callable[[Function], Function]:
    """Decorates a function that still takes keywords by their old names: `renamed(old="new")`.

    Raises TypeError, when it is called, for a keyword that is given under both names.
    """

    def decorate(function: Function) -> Function:
        @wraps(function)
        def call(*arguments: Any, **keywords: Any) -> Any:
            for old in names.keys() & keywords.keys():
                new, name = names[old], function.__name__
                if new in keywords:
                    raise TypeError(f"{name}() takes {new}=, and {old}= is its old name: leave {old}= out")
                sentence = f"{old}= of {name} is now {new}=; the old name will be removed in the next edition"
                warn(sentence, FutureWarning, stacklevel=2)
                keywords[new] = keywords.pop(old)
            return function(*arguments, **keywords)

        return call  # type: ignore[return-value]  # the same signature, which `wraps` keeps

    return decorate
