"""Other systems behind the same step: what they share, torch's DistributedDataParallel and ZeroRedundancyOptimizer.

These engines are not the lesson but what it is measured against: each runs somebody else's code, as its users run it,
and only says where in it the model's state lies (`holdings`). FSDP is in `fsdp1.py` and `fsdp2.py`, DeepSpeed in
`deepspeed.py`. Left out of the engines' interface: `optimizer_state_dict`, `save` and `load`; each system has its own.
"""

import inspect
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any, ClassVar, NamedTuple

import torch
import torch.distributed as dist
from torch import nn

from zerolab.engines.checks import check_optimizer, check_same_on_all_ranks, check_state
from zerolab.engines.engine import LossFunction
from zerolab.engines.flat import Holding
from zerolab.engines.partition import ROOT, FlatLayout, ParamGroups, find_units, partition
from zerolab.engines.precision import compute_dtype


class Unit(NamedTuple):
    """A flat's plan without its tensors: another system lays them out in its own way."""

    layout: FlatLayout


class Place(NamedTuple):
    """Where a parameter would lie in the flats of our own engines: pictures and figures speak of those."""

    flat: str
    start: int
    numel: int


class Native:
    """Trains `model` on all ranks of the default process group with another system; subclasses say which.

    All ranks start from rank 0's parameters, buffers stay local, gradients are means over ranks: as in `Engine`.
    `engine.model` is what to call in a loop of one's own; some systems put a wrapper around `engine.module`.

    Args:
        model: the module, the same on every rank.
        optimizer_cls: an element-wise torch optimizer's class.
        units: names of the modules that travel as one; None finds the blocks (`partition.find_units`).
        param_groups: pairs of a test (of a parameter's name and the parameter) and optimizer keywords.
        precision: "fp32", or "bf16" where the system keeps fp32 master weights.
        **optimizer_keywords: for the optimizer, such as `lr=1e-3`.

    Raises:
        TypeError: `model` is no module, `optimizer_cls` no optimizer class, or a keyword is unknown to it.
        ValueError: nothing to train, a precision that the system lacks, or ranks whose models differ.
    """

    stage: ClassVar[str]
    precisions: ClassVar[tuple[str, ...]] = ("fp32",)
    module: nn.Module

    def __init__(
        self,
        model: nn.Module,
        optimizer_cls: type,
        *,
        units: list[str] | None = None,
        param_groups: ParamGroups = (),
        precision: str = "fp32",
        **optimizer_keywords: Any,
    ) -> None:
        check_optimizer(optimizer_cls, optimizer_keywords)
        self.rank, self.world_size, self.precision = dist.get_rank(), dist.get_world_size(), precision
        self._dtype = compute_dtype(precision)
        if precision not in self.precisions:
            raise ValueError(f"{self.stage} has no {precision} with fp32 masters: choose {', '.join(self.precisions)}")
        layouts = partition(model, self.world_size, units)
        check_same_on_all_ranks([layout.numel for layout in layouts], "the numbers of parameters in the model's units")
        if all(layout.frozen for layout in layouts):
            raise ValueError(f"all parameters of {type(model).__name__} are frozen: nothing to train")
        self.flats = [Unit(layout) for layout in layouts]
        self.units = [unit for unit in (find_units(model) if units is None else units) if unit != ROOT]
        self._places = {
            slot.name: Place(layout.name, slot.start, slot.shape.numel()) for layout in layouts for slot in layout.slots
        }
        self._shapes = {key: value.shape for key, value in model.state_dict().items()}
        self._accumulating = False
        for parameter in model.parameters():
            dist.broadcast(parameter.detach(), src=0)
        self.module = model
        self.model: Any = self._wrap(model)
        self.optimizer: Any = self._make_optimizer(optimizer_cls, param_groups, optimizer_keywords)

    # What a system decides.

    def _wrap(self, model: nn.Module) -> nn.Module:
        """Hands the module to the system; returns what is called in its place."""
        raise NotImplementedError

    def holdings(self) -> Iterator[Holding]:
        """What this rank holds of the model's state right now, read from the system's own tensors."""
        raise NotImplementedError

    def _no_sync(self) -> AbstractContextManager[Any]:
        """Within it the system reduces no gradient."""
        raise NotImplementedError

    def _make_optimizer(self, optimizer_cls: type, param_groups: ParamGroups, keywords: dict[str, Any]) -> Any:
        return optimizer_cls(self._groups(param_groups), **keywords)

    # The step.

    def training_step(self, inputs: Any, targets: Any, loss_fn: LossFunction) -> torch.Tensor:
        """One step on this rank's batch: forward, backward, communicate, update. Returns this rank's loss, detached."""
        loss = loss_fn(self.model(inputs), targets)
        self.backward(loss)
        self.step()
        return loss.detach()

    def backward(self, loss: torch.Tensor) -> None:
        """Runs autograd; the system communicates meanwhile."""
        loss.backward()

    def step(self) -> None:
        """Updates what this rank owns, and clears the gradients; does neither within `accumulate`."""
        self._update()

    def _update(self) -> None:
        if not self._accumulating:
            self.optimizer.step()
            self.optimizer.zero_grad()

    @contextmanager
    def accumulate(self) -> Iterator[None]:
        """Within it gradients add up and nothing is updated: for all micro-batches of a step but the last.

        Forward and backward both belong inside. The gradients are sums over micro-batches.
        """
        self._accumulating = True
        try:
            with self._no_sync():
                yield
        finally:
            self._accumulating = False

    def clip_grad_norm_(self, max_norm: float) -> torch.Tensor:
        """Scales the gradients so that their norm, over all ranks, is at most `max_norm`; returns the norm before."""
        return nn.utils.clip_grad_norm_(self.module.parameters(), max_norm)

    def state_dict(self) -> dict[str, torch.Tensor]:
        """The whole model on every rank: the module's own keys -> tensors (copies). Collective: all ranks call it."""
        return {key: value.detach().clone() for key, value in self.module.state_dict().items()}

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        """Takes the whole model from `state`, as `state_dict` gives it; every rank passes the same.

        Raises:
            ValueError: a key is missing or unknown, or a tensor has another shape.
        """
        check_state(state, self._shapes)
        self._load(state)

    def _load(self, state: dict[str, torch.Tensor]) -> None:
        self.module.load_state_dict(state)

    # For the systems' own files.

    def _trained(self) -> Iterable[tuple[str, nn.Parameter]]:
        """What the optimizer updates, by name."""
        return ((name, parameter) for name, parameter in self.module.named_parameters() if parameter.requires_grad)

    def _groups(self, param_groups: ParamGroups) -> list[dict[str, Any]]:
        """The optimizer's groups: the parameters that each claims, and last those that none does."""
        groups: list[dict[str, Any]] = [{**keywords, "params": []} for _, keywords in param_groups] + [{"params": []}]
        for name, parameter in self._trained():
            claims = (number for number, (selects, _) in enumerate(param_groups) if selects(name, parameter))
            groups[next(claims, -1)]["params"].append(parameter)
        return [group for group in groups if group["params"]]

    def _held(self, category: str, name: str, tensor: torch.Tensor, start: int = 0, numel: int = -1) -> Holding:
        """A holding of the parameter `name` from its element `start` on; `numel` where the tensor has padding."""
        flat, first, _ = self._places[name]
        first += start
        return Holding(category, flat, (first, first + (tensor.numel() if numel < 0 else numel)), tensor)

    def _held_state(self, name: str, state: Mapping[str, Any], numel: int, start: int = 0) -> Iterator[Holding]:
        """The optimizer's entries for `numel` elements of the parameter `name`; a step counter covers no elements."""
        for value in state.values():
            if isinstance(value, torch.Tensor):
                counted = value.dim() > 0 and value.numel() == numel
                yield self._held("optimizer_state", name, value, start, numel if counted else 0)


class TorchDDP(Native):
    """torch's DistributedDataParallel: everything on every rank, gradients averaged bucket by bucket.

    Args:
        find_unused_parameters: as in torch; needed where some parameter takes no part in a step.
        gradient_as_bucket_view: as in torch; off, as there, every gradient exists twice, once in its bucket.
        bucket_cap_mb: as in torch.
    """

    stage = "torch-ddp"

    def __init__(
        self,
        *arguments: Any,
        find_unused_parameters: bool = False,
        gradient_as_bucket_view: bool = False,
        bucket_cap_mb: float | None = None,
        **keywords: Any,
    ) -> None:
        self._options: dict[str, Any] = {
            "find_unused_parameters": find_unused_parameters,
            "gradient_as_bucket_view": gradient_as_bucket_view,
            "bucket_cap_mb": bucket_cap_mb,
        }
        super().__init__(*arguments, **keywords)

    def _wrap(self, model: nn.Module) -> nn.Module:
        wrapper = nn.parallel.DistributedDataParallel
        # The engine has sent rank 0's parameters already; buffers stay local, as in FSDP.
        renamed = "forward_sync_buffers" in inspect.signature(wrapper).parameters  # torch 2.13's name for it
        local_buffers: dict[str, Any] = {"forward_sync_buffers" if renamed else "broadcast_buffers": False}
        return wrapper(model, init_sync=False, **local_buffers, **self._options)

    def _no_sync(self) -> AbstractContextManager[Any]:
        return self.model.no_sync()  # type: ignore[no-any-return]  # torch has no annotation there

    def holdings(self) -> Iterator[Holding]:
        """Parameters and gradients whole, and the state of what this rank updates."""
        for name, parameter in self.module.named_parameters():
            yield self._held("parameters", name, parameter)
            if parameter.grad is not None:
                yield self._held("gradients", name, parameter.grad)
            yield from self._held_state(name, self._state().get(parameter, {}), parameter.numel())

    def _state(self) -> Mapping[Any, dict[str, Any]]:
        return self.optimizer.state  # type: ignore[no-any-return]  # an optimizer of any system


class TorchZero1(TorchDDP):
    """DistributedDataParallel with torch's ZeroRedundancyOptimizer: each rank updates some whole parameters.

    Args:
        parameters_as_bucket_view: as in torch.
    """

    stage = "torch-zero1"

    def __init__(self, *arguments: Any, parameters_as_bucket_view: bool = False, **keywords: Any) -> None:
        self._parameters_as_bucket_view = parameters_as_bucket_view
        super().__init__(*arguments, **keywords)

    def _make_optimizer(self, optimizer_cls: type, param_groups: ParamGroups, keywords: dict[str, Any]) -> Any:
        from torch.distributed.optim import ZeroRedundancyOptimizer

        return ZeroRedundancyOptimizer(
            self._groups(param_groups),
            optimizer_cls,
            parameters_as_bucket_view=self._parameters_as_bucket_view,
            **keywords,
        )

    def _state(self) -> Mapping[Any, dict[str, Any]]:
        return self.optimizer.optim.state  # type: ignore[no-any-return]  # the local optimizer, over this rank's part
