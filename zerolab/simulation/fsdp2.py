"""torch's own FSDP2 on a fake rank: it runs on shapes as our engines do, except in two places that ask for values."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.utils._python_dispatch import _disable_current_modes

from zerolab.engines import ENGINES
from zerolab.recording.patches import replace

SIMULATED = ("fsdp2", "hsdp")
"""The other systems that run on a fake rank; and muon-rows, which is made of FSDP2."""


def engine_of(stage: str, gpus_per_node: int) -> type[Any]:
    """The engine's class, to be used where all tensors are shapes; under hsdp each node is a replica."""
    engine = ENGINES[stage]
    return _on_shapes(engine, gpus_per_node) if stage in (*SIMULATED, "muon-rows") else engine


def _on_shapes(engine: type[Any], gpus_per_node: int) -> type[Any]:
    class OnShapes(engine):  # type: ignore[misc]  # a base that is chosen while the program runs
        def mesh(self, device: str) -> DeviceMesh:  # what is made on the CPU has no memory here
            nodes = self.world_size // gpus_per_node
            with _disable_current_modes():  # a mesh reads its ranks' numbers
                if self.stage == "hsdp":
                    return init_device_mesh("cpu", (nodes, gpus_per_node), mesh_dim_names=("replicate", "shard"))
                mesh: DeviceMesh = super().mesh("cpu")
                return mesh

        def training_step(self, *arguments: Any) -> Any:
            with _parameters_may_be_shapes():
                return super().training_step(*arguments)

    OnShapes.__name__ = engine.__name__
    return OnShapes


@contextmanager
def _parameters_may_be_shapes() -> Iterator[None]:
    """FSDP2 refuses to train parameters that were never given memory; here none are."""
    from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup

    with replace(FSDPParamGroup, "_validate_no_meta_params", lambda *_: None):
        yield
