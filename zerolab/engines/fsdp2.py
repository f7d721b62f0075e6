"""torch's FSDP2 (`fully_shard`) behind the same step, and HSDP: sharded within one half, replicated in the other.

FSDP2 shards each parameter along its first dimension: a rank has some rows of each, where our flats give it an Nth of a
unit. What a rank owns can therefore differ between ranks; `holdings` gives the rows that are really there.
"""

from collections.abc import Collection, Iterator
from contextlib import ExitStack
from typing import Any, ClassVar

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard

from zerolab.engines.holdings import Holding
from zerolab.engines.native import Native
from zerolab.engines.optimizer_state import Owned, Piece, local


class FSDP2(Native):
    """Parameters, gradients and optimizer state sharded by rows; a unit is whole while it is used.

    In a step all ranks must have gradients of the same parameters of a unit. FSDP2 lays end to end what a rank has, and
    adds it to what the others have. Where that is of other parameters, they are trained with each other's gradients,
    and nobody says so; where it is of another size, a rank crashes or hangs.

    Args:
        reshard_after_forward: release a unit after its forward; a number keeps it sharded over so many ranks instead.
            None releases every unit but the root.
        mp_policy: torch's dtypes for parameters, reductions and outputs; None follows `precision`.
        offload: keep the shards and their update on the CPU (torch's `CPUOffloadPolicy`).
    """

    stage = "fsdp2"
    precisions = ("fp32", "bf16", "fp16")
    cannot = ("scalars", "strides", "containers", "ties", "dtypes of a unit")
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
        self._fsdp_params = {sharded[id(param.sharded_param)]: param for param in fsdp_params(model)}
        return model

    def _no_sync(self, until: ExitStack) -> None:
        # Until the last micro-batch, every rank accumulates whole gradients.
        self.model.set_requires_gradient_sync(False)
        until.callback(self.model.set_requires_gradient_sync, True)

    def _update(self) -> None:
        if self._turn.updates:
            if self.model._get_fsdp_state()._state_ctx.post_backward_final_callback_queued:
                raise RuntimeError(
                    "a backward has failed, and FSDP2 does not reduce what the next one brings: call "
                    "engine.zero_grad() where the failure is caught, then forward and backward again"
                )
            self._end_passes()
        super()._update()

    def _end_passes(self) -> None:
        """Ends what a pass that raised has left, as torch ends a backward; leaves nothing whole, as old weights."""
        state = self.model._get_fsdp_state()
        if state._is_root:  # from the first forward on
            state._root_post_backward_final_callback()
        for module in self.model.modules():
            if isinstance(module, FSDPModule):
                module.reshard()  # the root, after a forward without a backward

    def zero_grad(self) -> None:
        """Drops the gradients since the last step, those of micro-batches and of a backward that failed too."""
        for param in self._fsdp_params.values():
            param.sharded_param.grad = param.unsharded_accumulated_grad = None
            if (gathered := getattr(param, "_unsharded_param", None)) is not None:
                gathered.grad = None
        self._end_passes()

    @torch.no_grad()
    def _load(self, state: dict[str, torch.Tensor]) -> None:
        entries = self.module.state_dict(keep_vars=True)  # for this FSDP2 gives up what a forward has left whole
        params = {id(param.sharded_param): param for param in self._fsdp_params.values()}
        for key, entry in entries.items():  # of a tied parameter the last key counts
            value = state[key]
            if (param := params.get(id(entry))) is not None:
                start, numel = _rows(param)
                local(entry).view(-1).copy_(value.reshape(-1)[start : start + numel])
            else:
                entry.copy_(value)

    def _owned(self) -> Iterator[Owned]:
        """This rank's rows of each parameter, perhaps none."""
        for name, param in self._fsdp_params.items():
            if param.sharded_param.requires_grad:
                yield Owned(param.sharded_param, [Piece(name, 0, *_rows(param))])

    def _held_parameters(self, names: Collection[str]) -> Iterator[Holding]:
        """This rank's rows of parameters and gradients, and what is whole at the moment."""
        for name, param in self._fsdp_params.items():
            if name not in names:
                continue
            numel = self._slots[name][1].shape.numel()
            rows, everything = [Piece(name, 0, *_rows(param))], [Piece(name, 0, 0, numel)]
            yield from self._held("parameters", param._sharded_param_data, rows)
            for gathered in param.all_gather_outputs:
                if gathered.untyped_storage().size():
                    yield from self._held("parameters", gathered, everything)
            # What a smaller group keeps until backward, with a number for `reshard_after_forward`.
            if (kept := getattr(param, "_sharded_post_forward_param_data", None)) is not None:
                start = param.post_forward_mesh_info.shard_mesh_rank * kept.numel()
                pieces = [Piece(name, 0, start, max(0, min(kept.numel(), numel - start)))]
                yield from self._held("parameters", kept, pieces)
            gathered = getattr(param, "_unsharded_param", None)  # from the first gather on
            yield from self._held("gradients", getattr(gathered, "grad", None), everything)
            yield from self._held("gradients", param.unsharded_accumulated_grad, everything)
            yield from self._held("gradients", local(param.sharded_param.grad), rows)


class HSDP(FSDP2):
    """FSDP2 on a mesh of 2 x N/2: each half has the whole model, sharded, and the halves all-reduce their gradients."""

    stage = "hsdp"

    def mesh(self, device: str) -> DeviceMesh:
        """Two replicas of N/2 shards; raises ValueError for an odd number of ranks."""
        ranks = self.world_size
        if ranks % 2:
            raise ValueError(f"hsdp needs two halves of equal size, and {ranks} ranks have none: take an even N")
        return init_device_mesh(device, (2, ranks // 2), mesh_dim_names=("replicate", "shard"))


def _rows(param: Any) -> tuple[int, int]:
    """The first element of a parameter that this rank has, and how many it has; the last rank may have fewer."""
    return param.mesh_info.shard_mesh_rank * param.padded_sharded_param_size.numel(), param.sharded_size.numel()


def fsdp_params(model: nn.Module) -> Iterator[Any]:
    """FSDP2's own record of every parameter; torch 2.11 keeps one group of them per module, later versions a list."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            state: Any = module._get_fsdp_state()
            groups = getattr(state, "_fsdp_param_groups", None)
            for group in [state._fsdp_param_group] if groups is None else groups:
                yield from group.fsdp_params if group is not None else ()
