"""torch's FSDP2 (`fully_shard`) behind the same step, and HSDP: sharded within one half, replicated in the other.

FSDP2 shards each parameter along its first dimension: a rank has some rows of each, where our flats give it an Nth of a
unit. What a rank owns can therefore differ between ranks; `holdings` gives the rows that are really there.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from zerolab.engines.holdings import Holding
from zerolab.engines.native import Native
from zerolab.engines.optimizer_state import Owned, Piece, local


class FSDP2(Native):
    """Parameters, gradients and optimizer state sharded by rows; a unit is whole while it is used.

    Args:
        reshard_after_forward: release a unit after its forward; a number keeps it sharded over so many ranks instead.
            None releases every unit but the root.
        mp_policy: torch's dtypes for parameters, reductions and outputs; None follows `precision`.
        offload: keep the shards and their update on the CPU (torch's `CPUOffloadPolicy`).
    """

    stage = "fsdp2"
    precisions = ("fp32", "bf16", "fp16")
    cannot = ("scalars", "strides", "containers")
    instead: ClassVar = {
        "release_after_forward": "reshard_after_forward=",
        "reduce_dtype": "mp_policy=MixedPrecisionPolicy(reduce_dtype=...)",
    }

    def __init__(
        self,
        *arguments: Any,
        reshard_after_forward: bool | int | None = None,
        mp_policy: MixedPrecisionPolicy | None = None,
        offload: bool = False,
        **others: Any,
    ) -> None:
        self._reshard_after_forward, self._mp_policy, self._offload = reshard_after_forward, mp_policy, offload
        super().__init__(*arguments, **others)

    def mesh(self, device: str) -> DeviceMesh:
        """The ranks among which a parameter is sharded."""
        return init_device_mesh(device, (self.world_size,), mesh_dim_names=("shard",))

    def _wrap(self, model: nn.Module) -> nn.Module:
        device = next(model.parameters()).device.type
        options: dict[str, Any] = {
            "mesh": self.mesh(device),
            "reshard_after_forward": self._reshard_after_forward,
            "mp_policy": self._mp_policy or MixedPrecisionPolicy(param_dtype=self._dtype),
            # Pinned memory is for transfers to an accelerator.
            "offload_policy": CPUOffloadPolicy(pin_memory=device != "cpu") if self._offload else OffloadPolicy(),
        }
        names = [name for name, _ in model.named_parameters()]  # fully_shard replaces the parameters, in this order
        for module in [*map(model.get_submodule, self.units), model]:
            fully_shard(module, **options)
        sharded = {id(parameter): name for name, parameter in zip(names, model.parameters(), strict=True)}
        self._fsdp_params = {sharded[id(param.sharded_param)]: param for param in _fsdp_params(model)}
        return model

    @contextmanager
    def _no_sync(self) -> Iterator[None]:
        # Until the last micro-batch, every rank accumulates whole gradients.
        self.model.set_requires_gradient_sync(False)
        try:
            yield
        finally:
            self.model.set_requires_gradient_sync(True)

    @torch.no_grad()
    def _load(self, state: dict[str, torch.Tensor]) -> None:
        for key, mine in self.module.state_dict().items():
            value = state[key]
            if isinstance(mine, DTensor):
                # The mesh's backend sends the pieces, so the whole must be on its device, offloaded or not.
                place = torch.device(mine.device_mesh.device_type)
                mine.copy_(distribute_tensor(value.to(place), mine.device_mesh, mine.placements).to(mine.device))
            else:
                mine.copy_(value)

    def _owned(self) -> Iterator[Owned]:
        """This rank's rows of each parameter, perhaps none."""
        for name, param in self._fsdp_params.items():
            if param.sharded_param.requires_grad:
                start, numel = _rows(param)
                yield Owned(param.sharded_param, [Piece(name, 0, start, numel)])

    def _held_parameters(self) -> Iterator[Holding]:
        """This rank's rows of parameters and gradients, and what is whole at the moment."""
        for name, param in self._fsdp_params.items():
            start, numel = _rows(param)
            yield self._held("parameters", name, param._sharded_param_data, start, numel)
            yield from self._whole(name, param)
            if param.sharded_param.grad is not None:
                yield self._held("gradients", name, local(param.sharded_param.grad), start, numel)

    def _whole(self, name: str, param: Any) -> Iterator[Holding]:
        """The gathered parameter, what a smaller group keeps of it until backward, and its gradient before reducing."""
        numel = self._slots[name][1].shape.numel()
        for gathered in param.all_gather_outputs:
            if gathered.untyped_storage().size():
                yield self._held("parameters", name, gathered, 0, numel)
        kept = getattr(param, "_sharded_post_forward_param_data", None)  # with a number for `reshard_after_forward`
        if kept is not None:
            start = param.post_forward_mesh_info.shard_mesh_rank * kept.numel()
            yield self._held("parameters", name, kept, start, max(0, min(kept.numel(), numel - start)))
        parameter = getattr(param, "_unsharded_param", None)  # from the first gather on
        if parameter is not None and parameter.grad is not None:
            yield self._held("gradients", name, parameter.grad)
        if param.unsharded_accumulated_grad is not None:
            yield self._held("gradients", name, param.unsharded_accumulated_grad)


class HSDP(FSDP2):
    """FSDP2 on a mesh of 2 x N/2: each half has the whole model, sharded, and the halves all-reduce their gradients."""

    stage = "hsdp"

    def mesh(self, device: str) -> DeviceMesh:
        """Two replicas of N/2 shards.

        Raises:
            ValueError: an odd number of ranks.
        """
        if self.world_size % 2:
            raise ValueError(
                f"hsdp needs two halves of equal size, and {self.world_size} ranks have none: take an even N"
            )
        return init_device_mesh(device, (2, self.world_size // 2), mesh_dim_names=("replicate", "shard"))


def _rows(param: Any) -> tuple[int, int]:
    """The first element of a parameter that this rank has, and how many it has; the last rank may have fewer."""
    return param.mesh_info.shard_mesh_rank * param.padded_sharded_param_size.numel(), param.sharded_size.numel()


def _fsdp_params(model: nn.Module) -> Iterator[Any]:
    """FSDP2's own record of every parameter; torch 2.11 keeps one group of them per module, later versions a list."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            state: Any = module._get_fsdp_state()
            groups = getattr(state, "_fsdp_param_groups", None)
            for group in [state._fsdp_param_group] if groups is None else groups:
                yield from group.fsdp_params if group is not None else ()
