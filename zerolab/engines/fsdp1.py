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
from torch.distributed.fsdp.wrap import CustomPolicy

from zerolab.engines.flat import Holding
from zerolab.engines.native import Native
from zerolab.engines.optimizer_state import Owned, Piece
from zerolab.engines.partition import ParamGroups

# What every wrapper adds to the names below it; checkpoints must not carry it.
_WRAPPER = "_fsdp_wrapped_module."


class FSDP1(Native):
    """Parameters, gradients and optimizer state sharded; a wrapped module is whole while it is used.

    Args:
        sharding_strategy: "FULL_SHARD", or "SHARD_GRAD_OP", which keeps the parameters whole from forward to backward.
        auto_wrap_policy: torch's choice of what to wrap, such as `partial(size_based_auto_wrap_policy,
            min_num_params=10_000)`; None wraps the units.
        backward_prefetch: gather the next unit before ("BACKWARD_PRE") or after ("BACKWARD_POST") the backward of the
            one at hand, or only when it is needed (None).
        offload: keep the shards and their update on the CPU (torch's `CPUOffload`); needs an accelerator.

    Raises:
        ValueError: an unknown strategy or prefetch, or `offload` without an accelerator.
    """

    stage = "fsdp1"
    precisions = ("fp32", "bf16")
    cannot = ("scalars", "containers")
    instead: ClassVar = {
        "prefetch": "backward_prefetch=",
        "release_after_forward": 'sharding_strategy="SHARD_GRAD_OP"',
    }

    def __init__(
        self,
        model: nn.Module,
        optimizer_cls: type,
        *,
        units: list[str] | None = None,
        param_groups: ParamGroups = (),
        precision: str = "fp32",
        sharding_strategy: str = "FULL_SHARD",
        auto_wrap_policy: Callable[..., Any] | None = None,
        backward_prefetch: str | None = "BACKWARD_PRE",
        offload: bool = False,
        **optimizer_keywords: Any,
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
            # None is a choice as well: gather only when the unit is needed.
            "backward_prefetch": BackwardPrefetch[backward_prefetch] if backward_prefetch else None,
            "cpu_offload": CPUOffload(offload_params=offload),
        }
        self._auto_wrap_policy = auto_wrap_policy
        # One optimizer entry a flat, as FSDP1 was made for; groups need the parameters one by one.
        self._options["use_orig_params"] = bool(param_groups)
        super().__init__(
            model, optimizer_cls, units=units, param_groups=param_groups, precision=precision, **optimizer_keywords
        )

    def _wrap(self, model: nn.Module) -> nn.Module:
        # The same units as our engines, or the pictures could not be laid side by side.
        units = {model.get_submodule(unit) for unit in self.units}
        # FSDP1 wants one answer to requires_grad for a flat, unless it keeps the parameters apart.
        trainable = [parameter.requires_grad for parameter in model.parameters()]
        self._options["use_orig_params"] |= len(set(trainable)) > 1  # a flat of frozen and trained ones needs it
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
        # On every rank, because our checkpoints are whole on every rank.
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

    def owned(self) -> Iterator[Owned]:
        """This rank's part of each flat parameter, or of the parameters in it."""
        for prefix, flat in self._flat_params():
            if flat._params is None:  # without use_orig_params the optimizer knows the flat alone
                yield Owned(flat, [piece for piece in _cover(prefix, flat, self._span(flat)) if piece.numel])
                continue
            for fqn, parameter, info in zip(flat._fqns, flat._params, flat._shard_param_infos, strict=False):
                if parameter.requires_grad:
                    start, numel = info.intra_param_start_idx or 0, info.numel_in_shard or 0
                    yield Owned(parameter, [Piece(prefix + fqn, 0, start, numel)])

    def holdings(self) -> Iterator[Holding]:
        """This rank's part of each flat parameter, its gradient and state, and what is whole just now."""
        for prefix, flat in self._flat_params():
            yield from self._of_flat(prefix, flat)

    def _flat_params(self) -> Iterator[tuple[str, Any]]:
        """FSDP1's flat parameters, each with what stands before the names of the parameters in it."""
        for name, module in self.model.named_modules():
            if isinstance(module, FullyShardedDataParallel) and module._handle is not None:
                prefix = f"{name}.".replace(_WRAPPER, "").removeprefix(".").replace("_fsdp_wrapped_module", "")
                yield prefix, module._handle.flat_param

    def _span(self, flat: Any) -> tuple[int, int]:
        """The elements of a flat parameter that this rank owns; one rank alone has all, and no padding."""
        numel = _shard(flat).numel()
        start = 0 if numel == flat._unpadded_unsharded_size.numel() else self.rank * numel
        return start, start + numel

    def _of_flat(self, prefix: str, flat: Any) -> Iterator[Holding]:
        """The pieces of one flat parameter that are here: `prefix` stands before the names of its parameters."""
        shard = _shard(flat)
        # What is whole may be padded at its end: a span without an end covers it.
        here, everywhere = self._span(flat), (0, 10**18)
        yield from self._pieces("parameters", prefix, flat, shard, here)
        # It keeps its storage's object and frees the bytes, as our own release does.
        gathered = getattr(flat, "_full_param_padded", None)
        if gathered is not None and gathered.untyped_storage().size():
            yield from self._pieces("parameters", prefix, flat, gathered, everywhere)
        # Once each: while a backward ends two of the names mean the same tensor.
        for gradient in {id(g): g for g in _gradients(flat)}.values():
            is_shard = gradient.numel() == shard.numel()
            yield from self._pieces("gradients", prefix, flat, gradient, here if is_shard else everywhere)
        for key, state in self.optimizer.state.items():
            if key is flat:
                for value in state.values():
                    if isinstance(value, torch.Tensor):
                        whole = value.numel() == shard.numel()
                        yield from self._pieces("optimizer_state", prefix, flat, value, here if whole else (0, 0))
        yield from self._of_parameters(prefix, flat)

    def _of_parameters(self, prefix: str, flat: Any) -> Iterator[Holding]:
        """The optimizer's state where it updates the parameters one by one (`use_orig_params`)."""
        for fqn, parameter, info in zip(flat._fqns, flat._params or (), flat._shard_param_infos, strict=False):
            state = self.optimizer.state.get(parameter, {})
            start, numel = info.intra_param_start_idx or 0, info.numel_in_shard or 0
            yield from self._held_state(prefix + fqn, state, numel, start)

    def _pieces(
        self, category: str, prefix: str, flat: Any, tensor: torch.Tensor, span: tuple[int, int]
    ) -> Iterator[Holding]:
        """The parameters of a flat that `tensor` covers, which holds the elements `span` of it."""
        for name, _, start, numel in _cover(prefix, flat, span):
            yield self._held(category, name, tensor, start, numel)


def _shard(flat: Any) -> torch.Tensor:
    """This rank's part of a flat parameter; it has a name of its own from the first forward on."""
    shard: torch.Tensor = getattr(flat, "_local_shard", flat.data)
    return shard


def _cover(prefix: str, flat: Any, span: tuple[int, int]) -> Iterator[Piece]:
    """Where the parameters of a flat lie in its elements `span`; those outside with no elements."""
    begin = 0
    fqns = iter(flat._fqns)
    for numel, is_padding in zip(flat._numels_with_padding, flat._is_padding_mask, strict=True):
        start, stop = max(begin, span[0]), min(begin + numel, span[1])
        if not is_padding:
            yield Piece(prefix + next(fqns), max(start - span[0], 0), max(start - begin, 0), max(stop - start, 0))
        begin += numel


def _gradients(flat: Any) -> Iterator[torch.Tensor]:
    """Where FSDP1 keeps a flat's gradient: while it is collected, while it adds up, and when it is ready."""
    for gradient in (flat.grad, getattr(flat, "_saved_grad_shard", None), getattr(flat, "_cpu_grad", None)):
        if gradient is not None:
            yield gradient
