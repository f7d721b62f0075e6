"""The training step that all stages share.

A stage answers four questions, and its file holds the answers: what a rank owns (`own`), which collective brings a
flat's gradients together (`reduce`), which part of the mean gradient stays (`keep`), and how the updated parameters
reach the other ranks (`publish`). Everything else is here and the same for all of them: a flat's reduction starts as
soon as its last gradient exists, while autograd goes on, with one exchange in flight; and a plain torch optimizer
updates what the rank owns.
"""

import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.hooks import RemovableHandle

from zerolab.engines import checkpoint
from zerolab.engines.arguments import Explained
from zerolab.engines.buffers import start_from_rank_0
from zerolab.engines.checks import (
    check_dtype,
    check_optimizer,
    check_options,
    check_parameters,
    check_same_layouts,
    check_same_on_all_ranks,
    check_switches,
    check_unchanged,
    rows,
)
from zerolab.engines.collectives import Exchange
from zerolab.engines.flat import Flat, Holding
from zerolab.engines.graph import call_last, parameters_behind
from zerolab.engines.hooks import Hook
from zerolab.engines.norm import norm_over_ranks
from zerolab.engines.partition import FlatLayout, ParamGroups, Slot, partition
from zerolab.engines.precision import cast_floating, compute_dtype
from zerolab.engines.taken import OwnUpdate
from zerolab.observers import Observer, tell, tell_made, tell_updated, then

LossFunction = Callable[[Any, Any], torch.Tensor]


class Engine(Explained, checkpoint.Saved):
    """Trains `model` on all ranks of the default process group; subclasses say what is sharded.

    All ranks start from rank 0's parameters and buffers; from then on buffers stay local, as in FSDP. A parameter that
    gets no gradient on any rank in a step is left alone, optimizer state and all; where some have one, the others'
    counts as zero. Gradients are means over ranks: later batches may be uneven, and then a rank with few rows weighs as
    much as one with many; the first one is compared, and must be even. Between steps weights may be written, the same
    on every rank, which is not compared: masters take them over.

    Args:
        model: the module, the same on every rank. It is used as it is and stays at `engine.model`.
        optimizer_cls: an element-wise torch optimizer's class; it updates flats, so whole-matrix ones are refused.
        units: names of the modules that travel as one; None finds the blocks (`partition.find_units`).
        param_groups: pairs of a test (of a parameter's name and the parameter) and optimizer keywords; the first test
            that holds claims the parameter, the rest take `optimizer_keywords`.
        precision: "fp32", or "bf16" for bf16 parameters, gradients and activations over fp32 masters; buffers stay.
        reduce_dtype: what gradients are added up in, over micro-batches and over ranks; None for the precision's own.
        overlap: start a flat's reduction while autograd goes on; off, autograd waits for it.
        offload: the optimizer updates a copy in main memory, and its state and step stay there.
        **optimizer_keywords: for the optimizer, such as `lr=1e-3`.

    Raises:
        TypeError: `model` is no module, `optimizer_cls` no optimizer class, or a keyword is unknown to it.
        ValueError: nothing to train, an optimizer that needs whole tensors, or ranks whose models differ.
    """

    stage: ClassVar[str]
    reduces_every_backward: ClassVar[bool] = False  # True where accumulation has only a shard to add up in

    @then(tell_made)
    def __init__(
        self,
        model: nn.Module,
        optimizer_cls: type,
        *,
        units: list[str] | None = None,
        param_groups: ParamGroups = (),
        precision: str = "fp32",
        reduce_dtype: torch.dtype | None = None,
        overlap: bool = True,
        offload: bool = False,
        **optimizer_keywords: Any,
    ) -> None:
        # What one rank alone may refuse comes before the first exchange, or the others would wait for it.
        check_optimizer(optimizer_cls, optimizer_keywords)
        check_parameters(model)
        check_options(optimizer_cls, units, param_groups, reduce_dtype)
        check_switches(overlap=overlap, offload=offload)
        self.model, self.rank, self.world_size = model, dist.get_rank(), dist.get_world_size()
        self.precision, self.reduce_dtype, self.overlap, self.offload = precision, reduce_dtype, overlap, offload
        self._dtype = compute_dtype(precision)
        check_dtype(model, self._dtype)
        layouts = partition(model, self.world_size, units, param_groups)
        check_same_layouts(layouts)
        start_from_rank_0(model)
        parameters = dict(model.named_parameters())
        self.flats = [self._place(layout, [parameters[slot.name] for slot in layout.slots]) for layout in layouts]
        self.trainable = [flat for flat in self.flats if not flat.layout.frozen]
        if not self.trainable:
            raise ValueError(f"all {len(parameters)} parameters of {type(model).__name__} are frozen: nothing to train")
        self.optimizer = optimizer_cls(self._groups(param_groups), **optimizer_keywords)
        self._in_flight: tuple[Flat, torch.Tensor, Exchange] | None = None
        self._to_reduce: list[Flat] = []
        self._accumulating = self._reduced = False
        self.optimizer.zero_grad = partial(Engine.zero_grad, weakref.proxy(self))  # type: ignore[method-assign]
        self._own_update = OwnUpdate(self)
        # A hook and not a wrapper: `engine.model` stays the module that the learner wrote, under its own names.
        model.register_forward_pre_hook(Hook.of(self, Engine._prepare_inputs), with_kwargs=True)
        self._rows_compared = False
        self._watch()

    # What a stage decides.

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
        self.backward(loss)
        self.step()
        tell(Observer.trained, loss)
        return loss.detach()

    def backward(self, loss: torch.Tensor) -> None:
        """Runs autograd; when it returns, this rank's part of the mean gradient is in place.

        If it raises, the gradients of the step are dropped, those of its earlier micro-batches too.

        Raises:
            RuntimeError: a second backward before `step()`, outside `accumulate()`; a loss that needs no gradient, or
                one through reentrant checkpointing or a parameter that was frozen when the engine was made.
        """
        if self._reduced:
            raise RuntimeError("a second backward() before step(): wrap all but the last one in engine.accumulate()")
        for flat in self.trainable:
            flat.take_back()
        # Known before autograd begins, or no flat could tell which of its gradients is the last.
        reached = parameters_behind(loss)
        check_unchanged(self.model, self.flats, reached)
        self._await_gradients(reached)
        try:
            loss.backward()
            for flat in self.trainable:  # a function of the graph may give None instead of a gradient
                flat.awaited.clear()
            while self._to_reduce:  # what no gradient came for, because another rank may have one
                self._start_reduction(self._to_reduce.pop(0))
            self._finish_reduction()
            for flat in self.trainable:
                flat.leave_taken()
        except BaseException:  # Ctrl-C too
            self._drop_gradients()
            raise
        self._reduced = not self._accumulating

    @then(tell_updated)
    def step(self) -> None:
        """Updates what this rank owns, clears the gradients, and brings the updates to all ranks.

        Raises:
            RuntimeError: no backward has brought the mean gradients.
        """
        if self._accumulating:  # so that `training_step` serves for micro-batches, too
            return
        if not self._reduced:
            raise RuntimeError("step() without gradients: call backward() first, and the last one outside accumulate()")
        tell(Observer.updating)
        for flat in self.trainable:
            flat.begin_update(self.optimizer)
        with self._own_update:
            self.optimizer.step()
        for flat in self.trainable:
            flat.finish_update()
        self._reduced = False  # before anything is sent: a failed exchange leaves no gradients to use again
        self.publish()

    @contextmanager
    def accumulate(self) -> Iterator[None]:
        """Within it gradients add up and nothing is updated: for all micro-batches of a step but the last.

        They are sums over micro-batches: divide each loss by their number to get the mean.
        """
        self._accumulating = True
        try:
            yield
        finally:
            self._accumulating = False

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drops the gradients since the last step, those of micro-batches too; `engine.optimizer.zero_grad()` does so.

        Every rank calls it: what other ranks brought lies in this one's shards.
        """
        if self.reduces_every_backward and any(flat.mean is not None for flat in self.trainable):
            check_same_on_all_ranks(["zero_grad"], "what to do with the gradients")
        self._drop_gradients()
        self._reduced = False

    def clip_grad_norm_(self, max_norm: float) -> torch.Tensor:
        """Scales the gradients so that their norm, over all ranks, is at most `max_norm`; returns the norm before.

        Between `backward` and `step`. One all_reduce of a single number where gradients are sharded.
        """
        if not max_norm > 0:
            raise ValueError(f"max_norm is {max_norm!r}: give a norm above 0")
        if not self._reduced:
            raise RuntimeError("no gradients to clip: call backward() first, and the last one outside accumulate()")
        means = [flat.mean for flat in self.trainable if flat.mean is not None]
        norm = norm_over_ranks(means, is_sharded=any(flat.is_sharded for flat in self.trainable))
        for mean in means:
            mean.mul_((max_norm / (norm + 1e-6)).clamp(max=1.0))
        return norm

    def _watch(self) -> None:
        """Hears of each gradient as soon as autograd has finished it."""
        engine = weakref.proxy(self)  # no garbage collector sees these hooks: they must not keep the engine
        self._hooks: list[tuple[nn.Parameter, RemovableHandle]] = []
        for number, flat in enumerate(self.trainable):
            for slot, parameter in flat.members():
                hook = partial(Engine._on_gradient, engine, number, slot)
                self._hooks.append((parameter, parameter.register_post_accumulate_grad_hook(hook)))

    def _await_gradients(self, parameters: set[int]) -> None:
        """Every rank will reduce in this order, whichever gradients it gets and when."""
        for flat in self.flats:
            flat.awaited = {slot for slot, parameter in flat.members() if id(parameter) in parameters}
            if flat.layout.frozen and flat.awaited:
                name = flat.awaited.pop().name
                raise RuntimeError(f"{name!r} was frozen when the engine was made: make a new engine to train it")
        for parameter, handle in self._hooks:  # the model's own hooks may still change the gradient
            call_last(parameter, handle)
        # Backward brings the last units first; a unit that is early waits for its turn, or ranks would disagree.
        self._to_reduce = [flat for flat in self.trainable[::-1] if self._reduces_now() or flat.widens_gradients]

    def _on_gradient(self, number: int, slot: Slot, parameter: torch.Tensor) -> None:
        flat = self.trainable[number]
        if slot not in flat.awaited:
            parameter.grad = None
            raise RuntimeError(
                f"{slot.name!r} got a gradient that engine.backward() does not await: call engine.backward(loss), not "
                "loss.backward(), and no backward within backward; freeze what the loss of another model passes through"
            )
        flat.awaited.discard(slot)
        if flat.has_half_its_gradients:
            self._at_half(flat)
        self._reduce_what_is_ready()

    def _at_half(self, flat: Flat) -> None:
        """The exchange of the flat before has had half a flat's time: it makes room for the rest of this one."""
        self._finish_reduction()

    def _reduce_what_is_ready(self) -> None:
        while self._to_reduce and self._is_ready(self._to_reduce[0]):
            self._start_reduction(self._to_reduce.pop(0))

    def _is_ready(self, flat: Flat) -> bool:
        return not flat.awaited

    def _drop_gradients(self) -> None:
        if self._in_flight is not None:
            self._in_flight[-1].wait()  # until then nothing of it may be freed
        self._in_flight, self._to_reduce = None, []
        for flat in self.trainable:
            flat.drop_gradients()

    def _reduces_now(self) -> bool:
        return not self._accumulating or self.reduces_every_backward

    def _start_reduction(self, flat: Flat) -> None:
        self._finish_reduction()  # one exchange in flight: its buffers are all that overlap costs
        gradient = flat.lay_out_gradients()
        if not self._reduces_now():  # autograd would add up the micro-batches in its own dtype
            return
        self._in_flight = flat, gradient, self.reduce(flat, gradient)
        if not self.overlap:
            self._finish_reduction()

    def _finish_reduction(self) -> None:
        if self._in_flight is not None:
            flat, gradient, exchange = self._in_flight
            self._in_flight = None
            exchange.wait()
            flat.usage.learn(gradient)
            self.keep(flat, gradient)

    # Placing, saving and showing what is held.

    def _place(self, layout: FlatLayout, parameters: list[nn.Parameter]) -> Flat:
        flat = Flat(layout, parameters, self.rank)
        wanted = self.reduce_dtype or self._dtype or layout.dtype
        # In a real type a complex gradient would lose its imaginary part: there it says how precise both parts are.
        flat.gradient_dtype = torch.promote_types(layout.dtype, wanted) if layout.dtype.is_complex else wanted
        dist.broadcast(flat.whole, src=0)
        exact = flat.whole
        flat.whole = exact.to(self._dtype) if self._dtype and layout.dtype.is_floating_point else exact
        flat.show()
        for parameter in parameters:
            parameter.grad = None  # a gradient from before would count in the first step
        flat.shard = self.own(flat)
        flat.make_owned(exact, self._dtype, offload=self.offload)
        return flat

    def _groups(self, param_groups: ParamGroups) -> list[dict[str, Any]]:
        """The optimizer's groups: the flats that each claims, and last those that none does."""
        groups: list[dict[str, Any]] = [{**keywords, "params": []} for _, keywords in param_groups] + [{"params": []}]
        for flat in self.trainable:
            groups[-1 if flat.layout.group is None else flat.layout.group]["params"].append(flat.owned)
        return [group for group in groups if group["params"]]

    def __reduce__(self) -> Any:
        """Refuses to be copied or sent, and with it the model, whose hooks lead here."""
        raise TypeError("an engine's model cannot be copied or pickled: load engine.state_dict() into another module")

    def holdings(self) -> Iterator[Holding]:
        """What this rank holds of the model's state right now; several holdings may lie in one storage."""
        for flat in self.flats:
            yield from flat.holdings(self.optimizer.state)

    def _prepare_inputs(self, module: nn.Module, inputs: Any, keywords: dict[str, Any]) -> tuple[Any, Any] | None:
        """Compares the first batch: the ranks must bring as many rows each, or their mean is not the batch's."""
        if not self._rows_compared and torch.is_grad_enabled():  # an evaluation may differ, or be rank 0's alone
            check_same_on_all_ranks([rows(inputs, keywords)], "the numbers of rows in the first batch")
            self._rows_compared = True
        return None if self._dtype is None else cast_floating((inputs, keywords), self._dtype)
