"""What happened, as data: a rank is watched from outside, and all ranks are merged into one recording.

The module itself can be called: `with zerolab.recording("run.json", steps=(2, 4)):` records what trains within the
block, as `zerolab.trace.recording` says.
"""

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from importlib import import_module
from types import ModuleType
from typing import Any


class _Callable(ModuleType):
    def __call__(self, *arguments: Any, **keywords: Any) -> AbstractContextManager[Any]:
        from zerolab.trace import recording

        return recording(*arguments, **keywords)

    # cloudpickle sends modules by name, but no subclass of theirs: a function that ranks are to run may name this one.
    def __reduce__(self) -> tuple[Callable[[str], ModuleType], tuple[str]]:
        return import_module, (self.__name__,)


sys.modules[__name__].__class__ = _Callable
