"""One rank of a world that does not exist: tensors without memory, torch's fake process group, a cost model's clock.

The engines run unchanged. In torch's fake group they skip the checks that need values: ranks that are derived from a
single one cannot differ.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FakeProcessGroup, FakeWork
from torch.amp import GradScaler
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.utils._python_dispatch import _disable_current_modes

from zerolab.engines import ENGINES
from zerolab.recording.patches import replace
from zerolab.runtime.observers import Call, Observer, watching
from zerolab.simulation.costs import Meter
from zerolab.simulation.shapes import FUSED, ON_GPUS, Shapes

SIMULATED = ("fsdp2", "hsdp")
"""The other systems that run on a fake rank; and muon-rows, which is made of FSDP2."""

FAKE_NCCL = "fake_nccl"
"""A second name of torch's fake group: its engines overlap and pad as over NCCL, and as over gloo under the first."""


@contextmanager
def world(world_size: int, rank: int = 0, *, on_gpu: bool = True) -> Iterator[Shapes]:
    """Makes this process one rank of a group that does not exist; all tensors made here are shapes without memory.

    With `on_gpu`, torch does what it does on a GPU, where that differs. Raises RuntimeError in a process group.
    """
    if dist.is_initialized():
        raise RuntimeError("this process is in a process group already: simulate from the notebook, not on its ranks")
    from torch.testing._internal.distributed.fake_pg import FakeStore, _create_fake_pg

    if FAKE_NCCL not in dist.Backend.backend_list:
        devices = ["cpu", "cuda", "meta"]
        dist.Backend.register_backend(FAKE_NCCL, _create_fake_pg, extended_api=True, devices=devices)
        dist.Backend.default_device_backend_map.pop("meta")  # which a group of the user's would have, too
    shapes = Shapes()  # not made under itself: the empty tensor that it gives the group to send is real
    with ExitStack() as stack:
        # From here on torch puts "[rank0]: " before each error of the process, once more with each world.
        stack.callback(setattr, sys, "excepthook", sys.excepthook)
        backend = FAKE_NCCL if on_gpu else dist.Backend.FAKE
        options = FakeProcessGroup.Options()  # type: ignore[call-arg]  # torch's stub asks for what it does not take
        dist.init_process_group(backend, store=FakeStore(), rank=rank, world_size=world_size, pg_options=options)
        stack.callback(dist.destroy_process_group)
        for kernel in (*FUSED, *(ON_GPUS if on_gpu else ())):
            stack.enter_context(replace(*kernel))
        stack.enter_context(shapes)  # below the recorder, which comes later and so sees each operation first
        yield shapes


class Timed(Observer):
    """Makes collectives take the time that the meter gives them; a recorder with `clock=meter.clock.now` sees it."""

    def __init__(self, meter: Meter) -> None:
        self._clock = meter.clock
        self._ready: WeakKeyDictionary[Call, float] = WeakKeyDictionary()
        self._waits = False  # inside the wait for an exchange: its works need no wait of their own

    def started(self, call: Call, _exchange: Any) -> None:
        """Notes when the collective will be done."""
        self._ready[call] = self._clock.communicated  # it was the last to start

    @contextmanager
    def waiting(self, call: Call) -> Iterator[None]:
        """Advances the clock to that time."""
        self._clock.wait(self._ready.pop(call, 0.0))
        self._waits = True
        try:
            yield
        finally:
            self._waits = False

    def wait(self, original: Callable[..., Any], work: Any, *args: Any) -> Any:
        """Wraps torch's own wait: for a collective that is not ours, started and waited for at once."""
        if not self._waits:
            self._clock.wait(self._clock.communicated)
        return original(work, *args)


@contextmanager
def timed(shapes: Shapes, meter: Meter) -> Iterator[None]:
    """Makes everything within the block take the time that the meter gives it."""
    observer = Timed(meter)
    with ExitStack() as stack:
        stack.enter_context(watching(observer))
        stack.enter_context(replace(dist.Work, "wait", observer.wait))
        # Its own `wait` would hide `Work.wait`, which is replaced here and by the recorder; C++ still finds its own.
        stack.enter_context(replace(FakeWork, "wait", lambda _, work, *args: dist.Work.wait(work, *args)))
        shapes.meter = meter
        stack.callback(setattr, shapes, "meter", None)
        yield


def step_anyway(_: Any, __: GradScaler, optimizer: torch.optim.Optimizer, ___: Any, *args: Any, **keywords: Any) -> Any:
    """In place of the scaler's `_maybe_opt_step`, which asks whether there was an overflow."""
    return optimizer.step(*args, **keywords)


def engine_of(stage: str, gpus_per_node: int) -> type[Any]:
    """The engine's class, to be used where all tensors are shapes; under hsdp each node is a replica."""
    engine = ENGINES[stage]
    if stage not in (*SIMULATED, "muon-rows"):
        return engine
    from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup

    class OnShapes(engine):  # type: ignore[misc,valid-type]  # a base that is chosen while the program runs
        def mesh(self, device: str) -> DeviceMesh:  # what is made on the CPU has no memory here
            with _disable_current_modes():  # a mesh reads its ranks' numbers
                if stage == "hsdp":
                    nodes = self.world_size // gpus_per_node
                    return init_device_mesh("cpu", (nodes, gpus_per_node), mesh_dim_names=("replicate", "shard"))
                mesh: DeviceMesh = super().mesh("cpu")
                return mesh

        def training_step(self, *arguments: Any) -> Any:
            with ExitStack() as stack:
                # FSDP2 refuses to train parameters that were never given memory; here none are.
                stack.enter_context(replace(FSDPParamGroup, "_validate_no_meta_params", lambda *_: None))
                stack.enter_context(replace(GradScaler, "_maybe_opt_step", step_anyway))
                return super().training_step(*arguments)

    OnShapes.__name__ = engine.__name__
    return OnShapes
