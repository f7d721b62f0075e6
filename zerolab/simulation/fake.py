"""One rank of a world that is not there: tensors without memory, torch's fake process group, a clock that costs drive.

The engines run as they are. What only values could tell is not asked: ranks that are derived from one cannot differ,
and a parameter without values is what a simulation wants.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FakeWork

from zerolab.engines import checks, collectives, usage
from zerolab.recording import ledger, log, recorder
from zerolab.recording.patches import intercept, replace
from zerolab.recording.recorder import Recorder
from zerolab.simulation.costs import Meter
from zerolab.simulation.shapes import FUSED, ON_GPUS, Shapes


class FakeRecorder(Recorder):
    """The recorder, which here looks away from what else lives in this process."""

    def _count_what_exists(self, engine_classes: tuple[type, ...]) -> None:
        """Nothing of the simulated rank exists before the recording."""


@contextmanager
def world(world_size: int, *, on_gpu: bool = True) -> Iterator[Shapes]:
    """Makes this process rank 0 of a group that does not exist, and all tensors made here shapes without memory.

    What torch does otherwise on a GPU than on the CPU is done as there, if it is `on_gpu`.

    Raises:
        RuntimeError: this process belongs to a process group already.
    """
    if dist.is_initialized():
        raise RuntimeError("this process is in a process group already: simulate from the notebook, not on its ranks")
    from torch.testing._internal.distributed.fake_pg import FakeStore

    shapes = Shapes()  # made outside of itself: what it gives the group to send is a real, empty tensor
    with ExitStack() as stack:
        # torch puts "[rank0]: " before all errors of the process from here on, and once more with each world.
        stack.callback(setattr, sys, "excepthook", sys.excepthook)
        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=world_size)
        stack.callback(dist.destroy_process_group)
        stack.enter_context(intercept(checks, "check_same_on_all_ranks", _alike))
        stack.enter_context(intercept(checks, "check_has_values", _without_values))
        stack.enter_context(intercept(usage, "nobody_brought", _nor_did_they))
        for kernel in (*FUSED, *(ON_GPUS if on_gpu else ())):
            stack.enter_context(replace(*kernel))
        stack.enter_context(shapes)  # below the recorder, which comes later and so sees each operation first
        yield shapes


@contextmanager
def timed(shapes: Shapes, meter: Meter) -> Iterator[None]:
    """Within it everything takes the time that the meter says, and a recorder that is started reads that time."""
    clock = meter.clock
    ready: WeakKeyDictionary[Any, float] = WeakKeyDictionary()
    waiting: list[Any] = []

    def start(original: Callable[..., None], exchange: Any, *args: Any) -> None:
        original(exchange, *args)
        ready[exchange] = clock.communicated  # it was started last

    def wait(original: Callable[..., None], exchange: Any) -> None:
        clock.wait(ready.pop(exchange, 0.0))
        waiting.append(exchange)  # the works within it are waited for with it, not each once more
        try:
            original(exchange)
        finally:
            waiting.pop()

    def wait_work(original: Callable[..., Any], work: Any, *args: Any) -> Any:
        if not waiting:  # a collective outside of the engines' own: asked for and waited for at once
            clock.wait(clock.communicated)
        return original(work, *args)

    with ExitStack() as stack:
        stack.enter_context(replace(collectives.Exchange, "__init__", start))
        stack.enter_context(replace(collectives.Exchange, "wait", wait))
        stack.enter_context(replace(dist.Work, "wait", wait_work))
        # Its own `wait` hides the one that is replaced, here and by the recorder; inside, C++ still finds it.
        stack.enter_context(replace(FakeWork, "wait", lambda _, work, *args: dist.Work.wait(work, *args)))
        for module in (ledger, log, recorder):
            stack.enter_context(replace(module, "monotonic_ns", lambda _: clock.now()))
        shapes.meter = meter
        stack.callback(setattr, shapes, "meter", None)
        yield


def _alike(original: Callable[..., None], values: Sequence[object], what: str) -> None:
    """Ranks that are derived from one cannot differ."""


def _nor_did_they(_original: Callable[..., bool], _number: torch.Tensor) -> bool:
    """What this rank has no gradient for, no other has."""
    return True


def _without_values(original: Callable[..., None], name: str, parameter: torch.Tensor) -> None:
    """A simulated rank's parameters never have any."""
