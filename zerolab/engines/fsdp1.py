"""torch's FSDP1 (`FullyShardedDataParallel`) behind the same step: a unit is one flat parameter, as in our engines."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any, ClassVar

import torch
from torch import nn
from torch.distributed.fsdp import (
    BackwardPrefetch,
    CPUOffload,
    FullyShardedDataParallel,
    MixedPrecision,
    ShardingStrategy,
)
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler
from torch.distributed.fsdp.wrap import CustomPolicy

from zerolab.engines.holdings import Holding
from zerolab.engines.native import Native
from zerolab.engines.optimizer_state import Owned, Piece, pieces_within
from zerolab.engines.precision import INIT_SCALE

# What every wrapper adds to the names below it; checkpoints must not contain it.
_WRAPPER = "_fsdp_wrapped_module."


class FSDP1(Native):
    """Parameters, gradients and optimizer state sharded; a wrapped module is whole while it is used.

    Args:
        sharding_strategy: "FULL_SHARD", or "SHARD_GRAD_OP", which keeps the parameters whole from forward to backward.
        auto_wrap_policy: torch's choice of what to wrap, such as `partial(size_based_auto_wrap_policy,
            min_num_params=10_000)`; None wraps the units.
        backward_prefetch: gather the next unit before ("BACKWARD_PRE") or after ("BACKWARD_POST") the backward of the
            current one, or only when it is needed (None).
        offload: keep the shards and their update on the CPU (torch's `CPUOffload`); needs an accelerator.

    Raises:
        ValueError: an unknown strategy or prefetch, or `offload` without an accelerator.
    """

    stage = "fsdp1"
    precisions = ("fp32", "bf16", "fp16")
    cannot = ("scalars", "containers")
    instead: ClassVar = {
        "prefetch": "backward_prefetch=",
        "release_after_forward": 'sharding_strategy="SHARD_GRAD_OP"',
    }

    def __init__(
        self,
        *arguments: Any,
        sharding_strategy: str = "FULL_SHARD",
        auto_wrap_policy: Callable[..., Any] | None = None,
        backward_prefetch: str | None = "BACKWARD_PRE",
        offload: bool = False,
        **others: Any,
    ) -> None:
        # HSDP has a class of its own, by FSDP2; NO_SHARD is DDP.
        if sharding_strategy not in ("FULL_SHARD", "SHARD_GRAD_OP"):
            raise ValueError(f"sharding_strategy is {sharding_strategy!r}: choose FULL_SHARD or SHARD_GRAD_OP")
        if backward_prefetch not in (*BackwardPrefetch.__members__, None):
            raise ValueError(f"backward_prefetch is {backward_prefetch!r}: choose BACKWARD_PRE, BACKWARD_POST or None")
        if offload and not torch.cuda.is_available():
            raise ValueError("FSDP1's CPUOffload pins memory for an accelerator, and there is none: leave offload out")
        self._options: dict[str, Any] = {
            "sharding_strategy": ShardingStrategy[sharding_strategy],
            # None is a choice too: gather a unit only when it is needed.
            "backward_prefetch": BackwardPrefetch[backward_prefetch] if backward_prefetch else None,
            "cpu_offload": CPUOffload(offload_params=offload),
        }
        self._auto_wrap_policy = auto_wrap_policy
        # By default one optimizer entry per flat; parameter groups need the parameters one by one.
        self._options["use_orig_params"] = bool(others.get("param_groups"))
        super().__init__(*arguments, **others)

    def _wrap(self, model: nn.Module) -> nn.Module:
        # The same units as in our engines, so that pictures can be compared.
        units = {model.get_submodule(unit) for unit in self.units}
        # A flat of FSDP1 has one requires_grad: with frozen and trained parameters in it, they must be kept apart.
        self._options["use_orig_params"] |= len({parameter.requires_grad for parameter in model.parameters()}) > 1
        mixed = MixedPrecision(param_dtype=self._dtype, reduce_dtype=self._dtype) if self._dtype else None
        with warnings.catch_warnings():  # one rank has nothing to shard, and FSDP1 says so
            warnings.filterwarnings("ignore", "FSDP is switching to use `NO_SHARD`")
            return FullyShardedDataParallel(
                model,
                auto_wrap_policy=self._auto_wrap_policy or CustomPolicy(lambda module: module in units),
                mixed_precision=mixed,
                device_id=next(model.parameters()).device,
                **self._options,
            )

    def _make_scaler(self, device: torch.device) -> torch.amp.GradScaler:
        # FSDP1's shards are plain tensors: its own scaler tells the other ranks of an overflow.
        return ShardedGradScaler(device.type, init_scale=INIT_SCALE, enabled=self.precision == "fp16")

    def _no_sync(self) -> AbstractContextManager[Any]:
        return self.model.no_sync()  # type: ignore[no-any-return]  # torch has no annotation there

    def _trained_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        for name, parameter in self.model.named_parameters():
            if parameter.requires_grad:
                yield name.replace(_WRAPPER, ""), parameter

    def clip_grad_norm_(self, max_norm: float) -> torch.Tensor:
        """Scales the gradients so that their norm, over all ranks, is at most `max_norm`; returns the norm before."""
        return self.model.clip_grad_norm_(max_norm)  # type: ignore[no-any-return]  # the wrapper's, typed as any module

    def state_dict(self) -> dict[str, torch.Tensor]:
        """The whole model on every rank: the module's own keys -> tensors (copies). Collective: all ranks call it."""
        with FullyShardedDataParallel.summon_full_params(self.model, writeback=False):
            entries = self._entries()
            return {key: entries[key].detach().clone() for key in self._shapes}

    @torch.no_grad()
    def _load(self, state: dict[str, torch.Tensor]) -> None:
        with FullyShardedDataParallel.summon_full_params(self.model, writeback=True):
            entries = self._entries()
            for key in self._shapes:
                entries[key].copy_(state[key])

    def _entries(self) -> dict[str, torch.Tensor]:
        """The module's parameters and buffers by their own names, while they are whole."""
        module: nn.Module = self.model
        named = [*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False)]
        return {name.replace(_WRAPPER, ""): tensor for name, tensor in named}

    def _owned(self) -> Iterator[Owned]:
        """This rank's shard of each flat parameter, or of the parameters in it."""
        for prefix, flat in self._flat_params():
            if flat._params is None:  # without use_orig_params the optimizer knows the flat alone
                yield Owned(flat, self._own_pieces(prefix, flat))
                continue
            for fqn, parameter, info in zip(flat._fqns, flat._params, flat._shard_param_infos, strict=False):
                if parameter.requires_grad:
                    start, numel = info.intra_param_start_idx or 0, info.numel_in_shard or 0
                    yield Owned(parameter, [Piece(prefix + fqn, 0, start, numel)])

    def _held_parameters(self) -> Iterator[Holding]:
        """This rank's shard of each flat parameter and its gradient, and what is whole at the moment."""
        for prefix, flat in self._flat_params():
            shard, mine = _shard(flat), self._own_pieces(prefix, flat)
            everything = pieces_within(_laid_out(prefix, flat), 0, sum(flat._numels_with_padding))
            yield from self._held_pieces("parameters", shard, mine)
            # On release FSDP1 keeps the storage object and frees its bytes, as our own engines do.
            gathered = getattr(flat, "_full_param_padded", None)
            if gathered is not None and gathered.untyped_storage().size():
                yield from self._held_pieces("parameters", gathered, everything)
            # By identity: while a backward ends, two of the names refer to the same tensor.
            for gradient in {id(each): each for each in _gradients(flat)}.values():
                is_shard = gradient.numel() == shard.numel()
                yield from self._held_pieces("gradients", gradient, mine if is_shard else everything)

    def _flat_params(self) -> Iterator[tuple[str, Any]]:
        """FSDP1's flat parameters, each with the prefix of the names of the parameters in it."""
        for name, module in self.model.named_modules():
            if isinstance(module, FullyShardedDataParallel) and module._handle is not None:
                prefix = f"{name}.".replace(_WRAPPER, "").removeprefix(".").replace("_fsdp_wrapped_module", "")
                yield prefix, module._handle.flat_param

    def _own_pieces(self, prefix: str, flat: Any) -> list[Piece]:
        """The pieces in this rank's shard of a flat parameter; an empty one where the shard is all padding."""
        numel = _shard(flat).numel()
        # One rank alone has everything, and no padding.
        first = 0 if numel == flat._unpadded_unsharded_size.numel() else self.rank * numel
        return pieces_within(_laid_out(prefix, flat), first, first + numel) or [Piece(prefix + flat._fqns[0], 0, 0, 0)]


def _shard(flat: Any) -> torch.Tensor:
    """This rank's shard of a flat parameter, which has a name of its own from the first forward on."""
    shard: torch.Tensor = getattr(flat, "_local_shard", flat.data)
    return shard


def _laid_out(prefix: str, flat: Any) -> Iterator[tuple[str, int]]:
    """Name and number of elements of what lies in a flat parameter, in order; the name of padding is ""."""
    fqns = iter(flat._fqns)
    for numel, is_padding in zip(flat._numels_with_padding, flat._is_padding_mask, strict=True):
        yield "" if is_padding else prefix + next(fqns), numel


def _gradients(flat: Any) -> Iterator[torch.Tensor]:
    """Where FSDP1 keeps a flat's gradient: while it is collected, while it accumulates, and when it is ready."""
    for gradient in (flat.grad, getattr(flat, "_saved_grad_shard", None), getattr(flat, "_cpu_grad", None)):
        if gradient is not None:
            yield gradient
