"""torch's FSDP1 (`FullyShardedDataParallel`) behind the same step: a unit is one flat parameter, as in our engines."""

import warnings
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import ExitStack, contextmanager
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
from torch.distributed.fsdp._common_utils import HandleTrainingState, TrainingState
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler
from torch.distributed.fsdp.wrap import CustomPolicy

from zerolab.engines.holdings import Holding
from zerolab.engines.native import Native
from zerolab.engines.optimizer_state import Owned, Piece, pieces_within
from zerolab.engines.precision import INIT_SCALE

# What every wrapper adds to the names below it; checkpoints must not contain it.
_WRAPPER = "_fsdp_wrapped_module."


@contextmanager
def _one_rank_may_shard_nothing() -> Iterator[None]:
    """Within it FSDP1 does not warn of that."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*`NO_SHARD`")
        yield


class FSDP1(Native):
    """Parameters, gradients and optimizer state sharded; a wrapped module is whole while it is used.

    A flat is updated as one: of a parameter that took no part in a step, beside others that did, the gradient is 0, so
    that momentum and weight decay move it, where one process leaves it alone.

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
    in_turn = True
    precisions = ("fp32", "bf16", "fp16")
    cannot = ("scalars", "integers", "containers", "ties", "repeats")
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
            # By default one optimizer entry per flat; parameter groups need the parameters one by one.
            "use_orig_params": bool(others.get("param_groups")),
        }
        self._auto_wrap_policy = auto_wrap_policy
        super().__init__(*arguments, **others)

    @_one_rank_may_shard_nothing()
    def _wrap(self, model: nn.Module) -> nn.Module:
        # The same units as in our engines, so that pictures can be compared.
        units = {model.get_submodule(unit) for unit in self.units}
        # A flat of FSDP1 has one requires_grad: with frozen and trained parameters in it, they must be kept apart.
        self._options["use_orig_params"] |= len({parameter.requires_grad for parameter in model.parameters()}) > 1
        device = next(model.parameters()).device
        # FSDP1's shards are plain tensors: its own scaler tells the other ranks of an overflow.
        self.scaler = ShardedGradScaler(device.type, init_scale=INIT_SCALE, enabled=self.precision == "fp16")
        wrapped = FullyShardedDataParallel(
            model,
            auto_wrap_policy=self._auto_wrap_policy or CustomPolicy(lambda module: module in units),
            mixed_precision=MixedPrecision(param_dtype=self._dtype, reduce_dtype=self._dtype) if self._dtype else None,
            device_id=device,
            **self._options,
        )
        self._flat_params = list(flat_params(wrapped))
        return wrapped

    def _trained_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        for name, parameter in self.model.named_parameters():
            if parameter.requires_grad:
                yield name.replace(_WRAPPER, ""), parameter

    def clip_grad_norm_(self, max_norm: float) -> torch.Tensor:
        """Scales the gradients so that their norm, over all ranks, is at most `max_norm`; returns the norm before."""
        self._end_forwards()
        return self.model.clip_grad_norm_(max_norm)  # type: ignore[no-any-return]  # the wrapper's, typed as any module

    def zero_grad(self) -> None:
        """Drops the gradients since the last step, those of micro-batches too."""
        super().zero_grad()
        for _, handle in self._flat_params:  # before they are reduced, they lie in none of the optimizer's parameters
            handle.flat_param.grad = None

    def _no_sync(self, until: ExitStack) -> None:
        if self.model.training_state != TrainingState.IDLE:  # torch refuses to begin after a forward that raised
            self._end_forwards()
        super()._no_sync(until)

    def _update(self) -> None:
        if self._turn.updates:
            self._end_forwards()
        super()._update()

    def _end_forwards(self) -> None:
        """Releases what a forward without a backward, or one that raised, left whole: the next would use old weights.

        Raises:
            RuntimeError: a backward has raised; what it has brought of the gradients cannot be told apart.
        """
        for _, handle in self._flat_params if self.model._is_root else ():  # from the first forward on
            if handle._training_state not in (HandleTrainingState.IDLE, HandleTrainingState.FORWARD):
                raise RuntimeError(
                    "a backward has failed, and FSDP1 does not go on from there: make a new engine, and load what "
                    "engine.save wrote last"
                )
            handle._training_state = HandleTrainingState.IDLE
            gathered = getattr(handle.flat_param, "_full_param_padded", None)  # one rank has none
            if gathered is not None and gathered.untyped_storage().size():  # else a reshard would undo `p.data = ...`
                handle.reshard(True)
                handle.post_reshard()
        for module in FullyShardedDataParallel.fsdp_modules(self.model):
            module.training_state = TrainingState.IDLE

    @_one_rank_may_shard_nothing()
    def _whole_model(self) -> Iterable[tuple[str, torch.Tensor]]:
        self._end_forwards()
        return list(self.model.state_dict().items())  # the wrapper's: gathered, by the module's own keys

    @_one_rank_may_shard_nothing()
    def _load(self, state: dict[str, torch.Tensor]) -> None:
        self.model.load_state_dict(state)

    def _owned(self) -> Iterator[Owned]:
        """This rank's shard of each flat parameter, or of the parameters in it."""
        for prefix, handle in self._flat_params:
            yield from (owned for owned in owned_of(prefix, handle) if owned.key.requires_grad)

    def _held_parameters(self, names: Collection[str]) -> Iterator[Holding]:
        """This rank's shard of each flat parameter and its gradient, and what is whole at the moment."""
        for prefix, handle in self._flat_params:
            if not any(prefix + fqn in names for fqn in handle.flat_param._fqns):  # frozen ones are a flat of their own
                continue
            flat, shard, mine = handle.flat_param, _shard(handle), _own_pieces(prefix, handle)
            everything = pieces_within(_laid_out(prefix, flat), 0, sum(flat._numels_with_padding))
            yield from self._held("parameters", shard, mine)
            # On release FSDP1 keeps the storage object and frees its bytes, as our own engines do.
            gathered = getattr(flat, "_full_param_padded", None)
            if gathered is not None and gathered.untyped_storage().size():
                yield from self._held("parameters", gathered, everything)
            # While it is collected, while it accumulates, and when it is ready; as a backward ends two are the same.
            gradients = (flat.grad, getattr(flat, "_saved_grad_shard", None), getattr(flat, "_cpu_grad", None))
            for gradient in {id(each): each for each in gradients if each is not None}.values():
                yield from self._held("gradients", gradient, mine if gradient.numel() == shard.numel() else everything)


def flat_params(model: nn.Module) -> Iterator[tuple[str, Any]]:
    """What handles FSDP1's flat parameters, each with the prefix of the names of the parameters in it."""
    for name, module in model.named_modules():
        if isinstance(module, FullyShardedDataParallel) and module._handle is not None:
            yield f"{name}.".replace(_WRAPPER, "").removeprefix("."), module._handle


def owned_of(prefix: str, handle: Any) -> Iterator[Owned]:
    """What an optimizer may update of a flat parameter: this rank's shard, or those of the parameters in it."""
    flat = handle.flat_param
    if flat._params is None:  # without use_orig_params the optimizer knows the flat alone
        yield Owned(flat, _own_pieces(prefix, handle))
        return
    for fqn, parameter, info in zip(flat._fqns, flat._params, flat._shard_param_infos, strict=False):
        yield Owned(parameter, [Piece(prefix + fqn, 0, info.intra_param_start_idx or 0, info.numel_in_shard or 0)])


def _own_pieces(prefix: str, handle: Any) -> list[Piece]:
    """The pieces in this rank's shard of a flat parameter; an empty one where the shard is all padding."""
    flat, numel = handle.flat_param, _shard(handle).numel()
    # One rank alone has everything, and no padding.
    first = 0 if numel == flat._unpadded_unsharded_size.numel() else handle.rank * numel
    return pieces_within(_laid_out(prefix, flat), first, first + numel) or [Piece(prefix + flat._fqns[0], 0, 0, 0)]


def _shard(handle: Any) -> torch.Tensor:
    """This rank's shard of a flat parameter, which has a name of its own from the first forward on."""
    shard: torch.Tensor = getattr(handle.flat_param, "_local_shard", handle.flat_param.data)
    return shard


def _laid_out(prefix: str, flat: Any) -> Iterator[tuple[str, int]]:
    """Name and number of elements of what lies in a flat parameter, in order; the name of padding is ""."""
    fqns = iter(flat._fqns)
    for numel, is_padding in zip(flat._numels_with_padding, flat._is_padding_mask, strict=True):
        yield "" if is_padding else prefix + next(fqns), numel
