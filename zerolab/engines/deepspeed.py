"""DeepSpeed's stages 0 to 3 behind the same step (`pip install -c constraints.txt -e ".[deepspeed]"`).

It runs with its own defaults except for three: no gradient clipping (its default clips at norm 1), buckets no larger
than the largest unit (its default allocates 2 GB), and in stage 3 no persistent parameters (by default all parameters
below 100,000 elements stay whole, which would leave a lesson's model unsharded). `zero_optimization=` restores them.
"""

import logging
import math
import os
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, suppress
from functools import cache, partial, wraps
from importlib import import_module
from itertools import accumulate, chain
from typing import Any, ClassVar
from weakref import proxy

import torch
from torch import nn
from torch.nn import functional

from zerolab.engines.holdings import Holding
from zerolab.engines.loop import norm_over_ranks
from zerolab.engines.native import Native
from zerolab.engines.optimizer_state import Owned, Piece, pieces_within
from zerolab.engines.partition import ParamGroups
from zerolab.engines.precision import INIT_SCALE, cast_floating

Partition = tuple[torch.Tensor, list[torch.Tensor], list[Piece]]
"""Of a parameter group a rank's fp32 partition, its gradient tensors, and the pieces of parameters in it."""


class DeepSpeed0(Native):
    """DeepSpeed stage 0: everything on every rank.

    Args:
        zero_optimization: entries for the section of that name in DeepSpeed's configuration.
    """

    stage = "deepspeed-0"
    number: ClassVar[int] = 0
    cannot: ClassVar[tuple[str, ...]] = ("scalars", "strides", "dtypes")
    instead: ClassVar = {
        "overlap": 'zero_optimization={"overlap_comm": ...}',
        "offload": 'zero_optimization={"offload_optimizer": {"device": "cpu"}}',
        "prefetch": 'zero_optimization={"stage3_prefetch_bucket_size": ...}',
    }

    def __init__(self, *arguments: Any, zero_optimization: dict[str, Any] | None = None, **others: Any) -> None:
        self._zero_optimization = zero_optimization or {}
        super().__init__(*arguments, **others)

    def _wrap(self, model: nn.Module) -> nn.Module:
        device = next(model.parameters()).device.type
        self._deepspeed = import_deepspeed(device)
        self.scaler = torch.amp.GradScaler(device, enabled=False)  # DeepSpeed scales by itself
        # Before it flattens the parameters: its lists have the same objects, without names.
        self._names = {id(parameter): name for name, parameter in model.named_parameters()}
        if (dtype := self._dtype) is not None:
            model.register_forward_pre_hook(
                lambda _, inputs, keywords: cast_floating((inputs, keywords), dtype), with_kwargs=True
            )
        return model  # DeepSpeed takes module and optimizer together, in `_make_optimizer`

    def _make_optimizer(self, optimizer_cls: type, param_groups: ParamGroups, keywords: dict[str, Any]) -> Any:
        if self.precision == "fp16" and not self._deepspeed.accelerator.get_accelerator().is_fp16_supported():
            raise ValueError(f"{self.stage} has no fp16 on this processor, as DeepSpeed finds: use bf16, or a GPU")
        optimizer = optimizer_cls(self._groups(param_groups), **keywords)
        self.model, self._zero, _, _ = self._deepspeed.initialize(
            model=self.module, optimizer=optimizer, config=self._configuration(), dist_init_required=False
        )
        return optimizer

    def _configuration(self) -> dict[str, Any]:
        # A bucket the size of the largest unit, which is what our own engines have in flight: peaks are comparable.
        bucket = max(flat.layout.numel for flat in self.flats)
        bucket += bucket % 2  # DeepSpeed asserts that a bucket begins at a multiple of two elements
        return {
            "train_micro_batch_size_per_gpu": 1,  # required, and not used
            # Clipping is `clip_grad_norm_`'s, as in every engine, so that all loops read the same.
            "gradient_clipping": 0.0,
            "zero_allow_untested_optimizer": True,
            "bf16": {"enabled": self.precision == "bf16"},
            # Its loss is scaled within its own backward and step, from where the loss fits into fp16.
            "fp16": {"enabled": self.precision == "fp16", "initial_scale_power": int(math.log2(INIT_SCALE))},
            "zero_optimization": {
                "stage": self.number,
                "reduce_bucket_size": bucket,
                "allgather_bucket_size": bucket,
                "stage3_prefetch_bucket_size": bucket,
                "stage3_param_persistence_threshold": 0,
                **self._zero_optimization,
            },
        }

    def _differentiate(self, loss: torch.Tensor) -> None:
        # Not loss.backward(): DeepSpeed scales the loss and counts micro-batches here.
        self.model.backward(loss)

    def _update(self) -> None:
        self.model.step()  # within `accumulate` it only counts

    def _no_sync(self, until: ExitStack) -> None:
        # DeepSpeed would count micro-batches as configured; here `accumulate` decides.
        self.model.set_gradient_accumulation_boundary(False)
        until.callback(self.model.set_gradient_accumulation_boundary, True)


class DeepSpeed1(DeepSpeed0):
    """DeepSpeed stage 1: fp32 partitions and optimizer state sharded."""

    stage, number, once = "deepspeed-1", 1, True
    precisions = ("fp32", "bf16", "fp16")

    def _flats(self) -> Iterator[Partition]:
        return partitions(self._zero, self._names, self.rank)

    def _owned(self) -> Iterator[Owned]:
        """This rank's fp32 partitions."""
        return (Owned(master, pieces) for master, _, pieces in self._flats())

    def zero_grad(self) -> None:
        """Raises RuntimeError: the gradients lie in buffers that no call of DeepSpeed's empties."""
        remedy = "call step(), or skip the batch before its backward"
        raise RuntimeError(f"{self.stage} has no call that drops gradients: {remedy}")

    def clip_grad_norm_(self, max_norm: float) -> torch.Tensor:
        """Scales the gradients so that their norm, over all ranks, is at most `max_norm`; returns the norm before."""
        # DeepSpeed clips within its step; a loop clips before the step, as with every engine.
        pieces = [piece for _, gradient, _ in self._flats() for piece in gradient]
        # DeepSpeed divides by the scale within its step; it is 1 but in fp16.
        norm: torch.Tensor = norm_over_ranks(pieces, []) / self._zero.loss_scale
        for piece in pieces:
            piece.mul_((max_norm / (norm + 1e-6)).clamp(max=1.0))
        return norm

    def _whole_model(self) -> Iterable[tuple[str, torch.Tensor]]:
        whole: dict[int, torch.Tensor] = {}
        for parameter in self.module.parameters():
            full = self._deepspeed.utils.safe_get_full_fp32_param(parameter) if parameter.requires_grad else None
            if full is None:
                # Whole anyway, but in stage 3.
                with self._deepspeed.zero.GatheredParameters([parameter], modifier_rank=None):
                    full = parameter.detach().clone()
            whole[id(parameter)] = full
        entries = self.module.state_dict(keep_vars=True)
        return ((key, whole.get(id(entry), entry).view(self._shapes[key])) for key, entry in entries.items())

    @torch.no_grad()
    def _load(self, state: dict[str, torch.Tensor]) -> None:
        for key, entry in self.module.state_dict(keep_vars=True).items():
            with self._deepspeed.zero.GatheredParameters([entry], modifier_rank=0):
                entry.copy_(state[key])
        for master, _, pieces in self._flats():  # DeepSpeed's own setter fails on unevenly sharded parameters
            for name, place, start, numel in pieces:
                master[place : place + numel] = state[name].flatten()[start : start + numel]

    def holdings(self, flats: Collection[str] | None = None) -> Iterator[Holding]:
        """Parameters as the stage keeps them; this rank's partition of gradients, fp32 parameters and their state.

        All of them whatever is asked for: partitions have pieces of many flats.
        """
        yield from self._held_parameters(self._slots)
        for master, gradient, pieces in self._flats():
            yield from self._held("optimizer_state", master, pieces)
            yield from self._held("gradients", master.grad, pieces)
            begins = accumulate((part.numel() for part in gradient), initial=0)
            for part, begin in zip(gradient, begins, strict=False):
                yield from self._held("gradients", part, pieces, begin)
        yield from self._held_state()
        yield from self._buckets()  # last: a gradient in a bucket counts as communication

    def _buckets(self) -> Iterator[Holding]:
        """The buffers through which gradients are sent; DeepSpeed may keep them afterwards."""
        # With overlap there are two buffers, filled in turn.
        for bucket in self._zero.ipg_buckets.values():
            for buffer in bucket.buffer if isinstance(bucket.buffer, list) else [bucket.buffer]:
                if buffer is not None:
                    yield Holding("communication", self.flats[0].layout.name, (0, 0), buffer)


class DeepSpeed2(DeepSpeed1):
    """DeepSpeed stage 2: gradients sharded too."""

    stage, number = "deepspeed-2", 2


class DeepSpeed3(DeepSpeed1):
    """DeepSpeed stage 3: parameters sharded too, one by one."""

    stage, number, in_turn, once = "deepspeed-3", 3, True, False

    def _make_optimizer(self, optimizer_cls: type, param_groups: ParamGroups, keywords: dict[str, Any]) -> Any:
        of_torch = functional.linear
        optimizer = super()._make_optimizer(optimizer_cls, param_groups, keywords)
        # DeepSpeed has replaced it by its own, which rounds in another way, for as long as the process lives. Whatever
        # else trains on this rank keeps torch's.
        self._linear = of_deepspeed = functional.linear
        functional.linear = of_torch
        # Hooks without `self`: a circle would keep the engine's memory after it is gone.
        self.module.register_forward_pre_hook(lambda *_: setattr(functional, "linear", of_deepspeed))
        self.module.register_forward_hook(lambda *_: setattr(functional, "linear", of_torch), always_call=True)
        zero: Any = proxy(self._zero)  # no circle, as above
        drop = type(self._zero).zero_grad

        def zero_grad(*arguments: Any, **keywords: Any) -> None:
            """Drops what DeepSpeed has gathered of the gradients, too, which the optimizer's own would leave."""
            drop(zero, *arguments, **keywords)
            for part in chain.from_iterable(parts or () for parts in zero.averaged_gradients.values()):
                part.zero_()

        optimizer.zero_grad = zero_grad
        return optimizer

    zero_grad = DeepSpeed0.zero_grad  # it has such a call

    def _differentiate(self, loss: torch.Tensor) -> None:
        of_torch, functional.linear = functional.linear, self._linear  # checkpointed modules run forward once more
        try:
            super()._differentiate(loss)
        finally:
            functional.linear = of_torch

    def _held_parameters(self, names: Collection[str]) -> Iterator[Holding]:
        parameter: Any  # to which DeepSpeed has added what it calls ds_
        for parameter in self.module.parameters():
            name = self._names[id(parameter)]
            everything = [Piece(name, 0, 0, parameter.ds_numel)]
            yield from self._held("parameters", parameter.ds_tensor, [Piece(name, 0, *_shard(parameter, self.rank))])
            if parameter.numel() == parameter.ds_numel:  # whole just now, else empty
                yield from self._held("parameters", parameter, everything)
            yield from self._held("gradients", parameter.grad, everything)
        for _, _, pieces in self._flats():
            yield from self._held("gradients", getattr(self._zero, "grad_partitions_flat_buffer", None), pieces)


def partitions(zero: Any, names: Mapping[int, str], rank: int) -> Iterator[Partition]:
    """What a rank updates under stages 1 to 3: of DeepSpeed's optimizer, with the parameters' names by `id`."""
    from deepspeed.runtime.zero.stage3 import DeepSpeedZeroOptimizer_Stage3

    if isinstance(zero, DeepSpeedZeroOptimizer_Stage3):
        for number, master in enumerate(zero.fp32_partitioned_groups_flat):
            group = zero.fp16_groups[number]
            places = accumulate((each.ds_tensor.ds_numel for each in group), initial=0)
            shards = zip(group, places, strict=False)  # the last place is where the padding begins
            pieces = [Piece(names[id(each)], place, *_shard(each, rank)) for each, place in shards]
            yield master, list(zero.averaged_gradients.get(number) or ()), pieces
        return
    for number, master in enumerate(zero.single_partition_of_fp32_groups):
        size = zero.partition_size[number]
        # In DeepSpeed's order: with `round_robin_gradients` it is not the model's.
        group = ((names[id(each)], each.numel()) for each in zero.round_robin_bit16_groups[number])
        pieces = pieces_within(group, rank * size, (rank + 1) * size)
        yield master, list(zero.averaged_gradients.get(number) or ()), pieces


def _shard(parameter: Any, rank: int) -> tuple[int, int]:
    """First element and number of elements of a rank's shard of a parameter in stage 3."""
    size = parameter.ds_tensor.ds_numel
    # Of a small parameter, the last ranks may have nothing but padding.
    start = min(rank * size, parameter.ds_numel)
    return start, min(size, parameter.ds_numel - start)


def import_deepspeed(device: str = "cpu") -> Any:
    """The package, set up for ranks that exist already: nothing is compiled, and all bytes go through torch.

    `device` is that of the first model; DeepSpeed chooses its own once per process, and would prefer a GPU.

    Raises:
        ImportError: it is not installed.
    """
    os.environ.setdefault("DS_BUILD_OPS", "0")
    if device == "cpu":
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
    os.environ.setdefault("DEEPSPEED_LOG_LEVEL", "error")
    try:
        import deepspeed
    except ModuleNotFoundError as error:
        if error.name != "deepspeed":
            raise
        raise ImportError('DeepSpeed is not installed: pip install -c constraints.txt -e ".[deepspeed]"') from None
    # Its banner and warnings, from every rank, would drown what the learner prints.
    logging.getLogger("DeepSpeed").setLevel(logging.ERROR)
    # On a CPU it would compile an all_reduce through shared memory for minutes, which no recorder could see.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    _leave_the_compiler_out()
    for name in ("all_gather_into_tensor", "reduce_scatter_tensor"):  # torch 2.13 has new names for them
        warnings.filterwarnings("ignore", f".*torch.distributed.{name}. is deprecated", FutureWarning)
    return deepspeed


def _leave_the_compiler_out() -> None:
    """Imports DeepSpeed's Muon such that its functions are compiled when they are first called, not as they are made.

    Whatever the optimizer, all stages but 0 import it, and it torch's whole compiler: two seconds on each rank.
    """
    compiler: Any = import_module("deepspeed.runtime.compiler")
    now = compiler.compile
    compiler.compile = lambda: partial(_compiled_when_called, now())
    try:
        with suppress(ImportError):
            import_module("deepspeed.runtime.zero.muon.original_muon")
    finally:
        compiler.compile = now


def _compiled_when_called(compiling: Callable[..., Any], function: Callable[..., Any]) -> Callable[..., Any]:
    compiled = cache(lambda: compiling(function))
    return wraps(function)(lambda *values, **keywords: compiled()(*values, **keywords))  # noqa: PLW0108  (not before)
