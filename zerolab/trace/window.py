"""The steps of a training that are recorded: from the forward that begins the first to the end of the last.

A step is what ends with an update, even one that a scaler leaves out: updates without a backward between them (Muon for
the matrices, AdamW for the rest) end the same one. Before the first recorded step and after the last nothing is watched
but the optimizers, once a step.
"""

import threading
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, Self
from weakref import WeakSet

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook

from zerolab.recording.dispatch import beside_compiler
from zerolab.recording.events import RankRecording
from zerolab.recording.passes import BACKWARD, BACKWARD_IN, in_backward, may_train
from zerolab.recording.patches import replace
from zerolab.recording.recorder import Recorder
from zerolab.recording.updates import hearing_updates


class Window:
    """Records steps `first` to `last` of whatever trains within it; `finished` gets the rank's recording, once.

    It gets None if the training ended before `first` did. `steps` counts those that are over so far.
    """

    def __init__(
        self, first: int, last: int, finished: Callable[[RankRecording | None], None], *, times_only: bool = False
    ) -> None:
        self.first, self.last, self.steps = first, last, 0
        self._finished, self._times_only = finished, times_only
        self._recorder: Recorder | None = None
        self._is_over = False
        self._ending = threading.Lock()
        self._gradients = False  # whether there was a backward since the last update
        self._optimizers: WeakSet[torch.optim.Optimizer] = WeakSet()
        self._watching, self._looking = ExitStack(), ExitStack()

    def __enter__(self) -> Self:
        self._watching.enter_context(beside_compiler())
        self._watching.enter_context(hearing_updates(after=self._updated))
        self._watching.enter_context(replace(BACKWARD_IN, BACKWARD, self._differentiate))
        self._watching.enter_context(replace(torch.amp.GradScaler, "step", self._stepped))
        self._look()
        return self

    def __exit__(self, *failure: object) -> None:
        self._end(*failure)

    def so_far(self) -> RankRecording | None:
        """What was recorded so far, from any thread; None before the first step and after the last.

        A recording that is just ending is waited for: who asks may end the process, and `finished` has yet to get it.
        """
        with self._ending:
            return self._recorder.so_far() if self._recorder is not None else None

    def _updated(self, optimizer: Any, args: Any, keywords: Any) -> None:
        self._optimizers.add(optimizer)
        self._count()

    def _stepped(self, original: Callable[..., Any], *args: Any, **keywords: Any) -> Any:
        result = original(*args, **keywords)
        self._count()  # unless it has updated: it has found an overflow, and the step is over all the same
        return result

    def _count(self) -> None:
        if self._gradients:
            self.steps, self._gradients = self.steps + 1, False
            self._look()

    def _look(self) -> None:
        """Has forwards looked at from the one on that begins the first step, to the one after the last."""
        # In place before the recorder's own hook, and so called before it: that last forward is not recorded.
        if self.steps == self.first - 1:
            self._looking.callback(register_module_forward_pre_hook(self._before_forward).remove)

    def _before_forward(self, module: nn.Module, inputs: Any) -> None:
        if torch.compiler.is_compiling() or (self._recorder is not None and self.steps < self.last):
            return
        if not may_train(module):
            return  # an evaluation between two steps, or a loss
        if self.steps == self.last:
            self._end()
        elif self.steps == self.first - 1:
            self._start().passes.forward_begins(module, inputs)

    def _start(self) -> Recorder:
        self._recorder = recorder = Recorder(times_only=self._times_only)
        recorder.__enter__()
        recorder.ownership.optimizers.add(self._optimizers)
        return recorder

    def _differentiate(self, original: Callable[..., Any], *args: Any, **keywords: Any) -> Any:
        if not self._is_over and not in_backward():
            # A loop without modules, or one that calls its model in a compiled function: nobody saw a forward.
            if self.steps == self.last:
                self._end()
            elif self.steps >= self.first - 1:
                (self._recorder or self._start()).passes.backward_begins()
            self._gradients = True
        return original(*args, **keywords)

    def _end(self, *failure: Any) -> None:
        if self._is_over:
            return
        self._is_over = True
        self._looking.close()
        self._watching.close()
        with self._ending:
            recorder, self._recorder = self._recorder, None
            if recorder is not None:
                recorder.__exit__(*(failure or (None, None, None)))
            mine = recorder.finish() if recorder is not None else None
            has_steps = mine is not None and (mine.info.steps or not mine.complete)
            self._finished(mine if has_steps else None)
