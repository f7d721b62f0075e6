"""A backward that the loop runs by `loss.backward()` itself, taken as `engine.backward(loss)` takes one.

Nobody announces it: it is noticed when it brings the first gradient, or under ZeRO-3 when it comes to the first unit.
autograd is asked then which parameters it will bring gradients for, and to say when it is done, as torch's DDP and
FSDP2 ask it. If it fails, it says nothing: what it has brought is dropped by whatever comes next.
"""

import weakref
from functools import partial
from typing import TYPE_CHECKING

from zerolab.engines.graph import call_at_end, parameters_to_come, running_backward
from zerolab.engines.reduction import NONE, Reduction

if TYPE_CHECKING:
    from zerolab.engines.loop import Loop


class OwnBackward:
    """Has an engine begin and end a backward that it did not run.

    Args:
        engine: of whose parameters the gradients are.
        reduction: what brings them together.
    """

    def __init__(self, engine: "Loop", reduction: Reduction) -> None:
        self._engine = weakref.proxy(engine)  # the model's hooks lead here, and must not keep the engine
        self._reduction = reduction
        self._passed_by = -1

    def begin(self) -> None:
        """Called by a hook within a backward that nobody has announced: takes it, if it is one of the engine's.

        Raises:
            RuntimeError: the engine could not take it, as `engine.backward` could not.
        """
        if running_backward() == self._passed_by:
            return
        ours = [parameter for flat in self._engine.flats for parameter in flat.parameters]
        each_once = {id(parameter): parameter for parameter in [*ours, *self._engine.model.parameters()]}
        reached = parameters_to_come(each_once.values())
        if not reached:  # torch.autograd.grad, which returns the gradients instead of leaving them in `.grad`
            self._passed_by = running_backward()
            return
        self._engine.refuse_second_backward()
        try:
            self._engine.begin_backward(reached)
            self._reduction.notice()
            call_at_end(partial(OwnBackward._end, self))
        except BaseException:
            self._reduction.drop()
            raise

    def _end(self) -> None:
        try:
            self._engine.end_backward()
        except BaseException:  # Ctrl-C too
            self._reduction.drop()
            raise

    def prepare(self, *_: object) -> None:
        """Called before a forward: the backward after it begins with a gradient that the engine's hook has already."""
        if running_backward() != -1:  # a recomputation
            return
        if self._reduction.backward != NONE:  # it has failed
            self._reduction.drop()
        self._reduction.come_last()
