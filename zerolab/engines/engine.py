"""The training step that all stages share.

A stage answers four questions, and its file holds the answers: what a rank owns (`own`), which collective brings a
flat's gradients together (`reduce`), which part of the mean gradient stays (`keep`), and how the updated parameters
reach the other ranks (`publish`). The rest is the same for all of them. Here are the making of an engine and the step,
in which a plain torch optimizer updates what the rank owns; in `reduction` the way of the gradients through a backward,
in `loop` what a training loop may do beside (accumulate, clip, look), and in `flat` the tensors themselves.
"""

import weakref
from collections.abc import Callable, Mapping
from functools import partial
from types import ModuleType
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import nn

from zerolab.engines import replicated
from zerolab.engines.agreement import check_same_layouts, start_from_rank_0
from zerolab.engines.arguments import Explained
from zerolab.engines.born import make_flat
from zerolab.engines.checks import check_dtype, check_optimizer, check_options, check_parameters, check_switches
from zerolab.engines.collectives import Exchange, granule
from zerolab.engines.declared import granule_of
from zerolab.engines.flat import Flat
from zerolab.engines.graph import parameters_behind
from zerolab.engines.loop import Loop, Next
from zerolab.engines.partition import FlatLayout, ParamGroups, Selector, groups_of, partition
from zerolab.engines.precision import Formats, compute_dtype, make_scaler
from zerolab.engines.reduction import Hook, Reduction, Units
from zerolab.engines.scaling import Scaling
from zerolab.engines.taken import OwnUpdate
from zerolab.runtime.observers import tell, tell_made, tell_updated, then

LossFunction = Callable[[Any, Any], torch.Tensor]


class Engine(Explained, Loop):
    """Trains `model` on all ranks of the default process group; subclasses say what is sharded.

    All ranks start from rank 0's parameters and buffers; from then on buffers stay local, as in FSDP. A parameter that
    gets no gradient on any rank in a step is left alone, optimizer state and all; where some have one, the others'
    counts as zero. Gradients are means over ranks: later batches may be uneven, and then a rank with few rows weighs as
    much as one with many; the first one is compared, and must be even. Between steps weights may be written, the same
    on every rank, which is not compared: masters take them over. A forward that writes by its own rows, as
    `F.embedding(max_norm=)` does, is not seen, and trains otherwise than in one process, as under torch's DDP.

    Args:
        model: the module, the same on every rank. It is used as it is and stays at `engine.model`.
        optimizer_cls: an element-wise optimizer's class, torch's or `AdamW8bit`: it updates flats, no whole matrices.
        units: names of the modules that travel as one; None finds the blocks (`partition.find_units`).
        param_groups: pairs of a test (of a parameter's name and the parameter) and optimizer keywords; the first test
            that holds claims the parameter, the rest take `optimizer_keywords`.
        replicate: a test of the same kind, for what stays whole on every rank as in `ddp`: norms, say, or a router.
        precision: "fp32", or "bf16" or "fp16" for such parameters, gradients and activations over fp32 masters; buffers
            stay. In fp16 `training_step` scales the loss by `engine.scaler`; a loop of your own does so by that one or
            any `torch.amp.GradScaler`: `engine.backward(scaler.scale(loss))`, `scaler.step(engine.optimizer)`,
            `scaler.update()`.
        reduce_dtype: what gradients are added up in, over micro-batches and over ranks; None for the precision's own.
        overlap: start a flat's reduction while autograd goes on; off, autograd waits for it.
        offload: the optimizer updates a copy in main memory, and its state and step stay there.
        **optimizer_keywords: for the optimizer, such as `lr=1e-3`.

    Raises:
        TypeError: `model` is no module, `optimizer_cls` no optimizer class, or a keyword is unknown to it.
        ValueError: nothing to train, an optimizer that needs whole tensors, or ranks whose models differ.
    """

    stage: ClassVar[str]
    _units: Units = Units()  # a stage whose units come and go has a residency in its place

    @then(tell_made)
    def __init__(
        self,
        model: nn.Module,
        optimizer_cls: type,
        *,
        units: list[str] | None = None,
        param_groups: ParamGroups = (),
        replicate: Selector | None = None,
        precision: str = "fp32",
        reduce_dtype: torch.dtype | None = None,
        overlap: bool = True,
        offload: bool = False,
        **optimizer_keywords: Any,
    ) -> None:
        # What one rank alone may refuse comes before the first exchange, or the others would wait for it.
        check_optimizer(optimizer_cls, optimizer_keywords)
        check_parameters(model)
        check_options(optimizer_cls, units, param_groups, reduce_dtype, replicate)
        check_switches(overlap=overlap, offload=offload)
        check_dtype(model, compute_dtype(precision))
        self.model = model
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
        self.precision = precision
        self.offload = offload
        multiple = max(granule(model), granule_of(optimizer_cls))  # one that rounds in blocks begins shards with one
        layouts = self.place(partition(model, self.world_size, units, param_groups, replicate, granule=multiple))
        check_same_layouts(layouts)
        start_from_rank_0(model)
        named = dict(model.named_parameters())
        formats = Formats(compute_dtype(precision), reduce_dtype, offload)
        self.flats = [
            make_flat(layout, [named[slot.name] for slot in layout.slots], self.rank, self.rules(layout).own, formats)
            for layout in layouts
        ]
        self.trainable = [flat for flat in self.flats if not flat.layout.frozen]
        self.sharded = [flat for flat in self.trainable if not flat.layout.replicated]
        self._layouts = [flat.layout for flat in self.trainable]
        self.optimizer = self.make_optimizer(optimizer_cls, param_groups, optimizer_keywords)
        self.optimizer.zero_grad = partial(Engine.zero_grad, weakref.proxy(self))  # type: ignore[method-assign]
        self._own_update = OwnUpdate(self)
        self._scaling = Scaling(self, self._own_update)
        self.scaler = make_scaler(precision, self.flats[0].shard.device)
        self._reduction = Reduction(self, self._units, overlap=overlap)
        # Hooks and no wrapper: `engine.model` stays the module that the learner wrote, under its own names.
        model.register_forward_pre_hook(Hook(Engine._prepare_inputs, self), with_kwargs=True)
        self._units.watch(self._reduction)
        self._reduction.watch(model)

    # What a stage decides.

    def place(self, layouts: list[FlatLayout]) -> list[FlatLayout]:
        """The flats with the placement that the stage gives them: N equal shards, if it has nothing else in mind."""
        return layouts

    def make_optimizer(
        self, optimizer_cls: type[torch.optim.Optimizer], param_groups: ParamGroups, keywords: dict[str, Any]
    ) -> torch.optim.Optimizer:
        """What updates the parts that this rank owns."""
        owned = ((flat.layout.group, flat.owned) for flat in self.trainable)
        return optimizer_cls(groups_of(owned, param_groups), **keywords)

    def rules(self, layout: FlatLayout) -> "Engine | ModuleType":
        """Who decides for a flat: the stage; for one that stays whole on every rank, the functions of `replicated`."""
        return replicated if layout.replicated else self

    def own(self, flat: Flat) -> torch.Tensor:
        """The part of the flat's parameters that this rank updates."""
        raise NotImplementedError

    def reduce(self, flat: Flat, gradient: torch.Tensor) -> Exchange:
        """Starts bringing together what the ranks have for the flat's gradient."""
        raise NotImplementedError

    def keep(self, flat: Flat, gradient: torch.Tensor) -> None:
        """Leaves the mean gradient in `flat.mean`, and nothing that the stage does not need."""
        raise NotImplementedError

    def publish(self) -> None:
        """Brings the updated parameters to all ranks."""
        raise NotImplementedError

    # The step.

    def training_step(self, inputs: Any, targets: Any, loss_fn: LossFunction) -> torch.Tensor:
        """One step on this rank's batch: forward, backward, communicate, update. Returns this rank's loss, detached.

        Args:
            inputs: what the model takes; a mapping is passed as keywords, `model(**inputs)`, anything else as it is.
            targets: what `loss_fn` compares the model's outputs with.
            loss_fn: of outputs and targets; its value is the loss, a mean over the batch.
        """
        outputs = self.model(**inputs) if isinstance(inputs, Mapping) else self.model(inputs)
        loss = loss_fn(outputs, targets)
        self.backward(self.scaler.scale(loss))  # the loss itself, but in fp16
        if self.scaler.is_enabled() and self._next is Next.STEP:  # in fp16 it is skipped after an overflow
            self.scaler.step(self.optimizer)
            self.scaler.update()
        else:
            self.step()
        tell(lambda observer: observer.trained(loss))
        return loss.detach()

    def backward(self, loss: torch.Tensor) -> None:
        """Runs autograd; when it returns, this rank's part of the mean gradient is in place.

        A loop may as well call `loss.backward()` itself, where every rank's loss reaches a parameter. If it raises, the
        gradients of the step are dropped, those of its earlier micro-batches too.

        Raises:
            RuntimeError: a second backward before `step()`, outside `accumulate()`; a loss that needs no gradient, or
                one through reentrant checkpointing or a parameter that was frozen when the engine was made.
        """
        self.refuse_second_backward()
        # Known before autograd begins, or no flat could tell which of its gradients is the last.
        self.begin_backward(parameters_behind(loss), loss)
        with self._reduction.dropping():
            loss.backward()
            self.end_backward()

    @then(tell_updated)
    def step(self) -> None:
        """Updates what this rank owns, clears the gradients, and brings the updates to all ranks.

        `engine.optimizer.step()` is the same; called by a scaler that found an overflow, it only clears the gradients.

        Raises:
            RuntimeError: no backward has brought the mean gradients.
        """
        if self._next is Next.ACCUMULATE:  # so that `training_step` serves for micro-batches, too
            return
        if self._next is not Next.STEP:
            raise RuntimeError("step() without gradients: call backward() first, and the last one outside accumulate()")
        tell(lambda observer: observer.updating())
        if self._scaling.must_skip():
            self._reduction.drop()
            self._next = Next.BACKWARD
            return
        for flat in self.trainable:
            flat.begin_update(self.optimizer)
        with self._own_update:  # within it this is torch's own step; elsewhere `optimizer.step()` leads here
            self.optimizer.step()
        for flat in self.trainable:
            flat.finish_update()
        self._next = Next.BACKWARD  # before anything is sent: a failed exchange leaves no gradients to use again
        self.publish()
