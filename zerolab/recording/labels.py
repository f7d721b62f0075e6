"""Which module another system works for: FSDP2 says so in what it tells the profiler, `FSDP::all_gather (layers.0)`."""

import re
from collections.abc import Callable
from contextlib import ExitStack
from functools import lru_cache
from typing import Any

from torch.autograd.profiler import record_function

from zerolab.engines.partition import ROOT
from zerolab.recording.patches import replace

_LABEL = re.compile(r"FSDP::(?:all_gather|post_backward_reduce)(?: \((?P<module>[^)]+)\))?")


@lru_cache(maxsize=1024)  # a step has a hundred labels, the same in each
def module_of(label: str) -> str | None:
    """The module that a label names as the one that something is sent for; None for all other labels."""
    found = _LABEL.fullmatch(label)
    return (found["module"] or ROOT) if found else None


class Labels:
    """Follows the labels that are open; `unit` is the module of the innermost that names one, else None."""

    def __init__(self) -> None:
        self._open: list[str | None] = []

    @property
    def unit(self) -> str | None:
        """The module that a collective which starts now is for."""
        return self._open[-1] if self._open else None

    def install(self, stack: ExitStack) -> None:
        """Follows them until `stack` is closed."""
        stack.enter_context(replace(record_function, "__enter__", self._enter))
        stack.enter_context(replace(record_function, "__exit__", self._exit))

    def _enter(self, original: Callable[..., Any], label: Any) -> Any:
        inner = module_of(label.name)
        self._open.append(inner or (self._open[-1] if self._open else None))
        return original(label)

    def _exit(self, original: Callable[..., Any], label: Any, *failure: Any) -> Any:
        if self._open:  # it may have been opened before the recording
            self._open.pop()
        return original(label, *failure)
