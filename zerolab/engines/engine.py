"""The training step that all stages share.

A stage answers four questions, and its file holds the answers: what a rank owns (`own`), which collective brings a
flat's gradients together (`reduce`), which part of the mean gradient stays (`keep`), and how the updated parameters
reach the other ranks (`publish`). Everything else is here and the same for all of them: gradients are collected flat
by flat while autograd works, a flat's reduction starts as soon as its last gradient exists, with one exchange in
flight, and a plain torch optimizer updates what the rank owns.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import nn

from zerolab.engines.checks import check_optimizer, check_same_on_all_ranks, check_state, rows
from zerolab.engines.collectives import Exchange
from zerolab.engines.partition import FlatLayout, Slot, partition

LossFunction = Callable[[Any, Any], torch.Tensor]


@dataclass(frozen=True, slots=True)
class Holding:
    """A piece of model state that this rank holds right now: `span` is `[start, stop)` in elements of the unit's flat."""

    category: str
    unit: str
    span: tuple[int, int]
    tensor: torch.Tensor


class Flat:
    """One flat on this rank: the tensor, the module's parameters as views of it, and what the optimizer updates.

    `whole` has N equal parts, this rank's at `layout.span(rank)`. `gradient` is as large as `whole` while gradients
    are collected, else None. `owned` is the parameter that the optimizer updates; `owned.grad` its mean gradient.
    """

    owned: nn.Parameter

    def __init__(self, layout: FlatLayout, parameters: list[nn.Parameter], rank: int) -> None:
        self.layout, self.parameters, self.rank = layout, parameters, rank
        self.gradient: torch.Tensor | None = None
        self.missing: set[Slot] = set(layout.slots)  # the parameters whose gradient this backward still owes
        self.whole = torch.zeros(layout.padded, dtype=layout.dtype, device=parameters[0].device)
        for slot, parameter in zip(layout.slots, parameters, strict=True):
            self.whole[slot.start : slot.stop] = parameter.detach().reshape(-1)
        self.show()

    def part(self, tensor: torch.Tensor) -> torch.Tensor:
        """This rank's part of a tensor as large as the flat: a view of shape [shard]."""
        start, stop = self.layout.span(self.rank)
        return tensor[start:stop]

    def show(self) -> None:
        """Makes the module's parameters views of the flat."""
        for slot, parameter in zip(self.layout.slots, self.parameters, strict=True):
            parameter.data = self.whole[slot.start : slot.stop].view(slot.shape)

    def collect(self, slot: Slot, gradient: torch.Tensor) -> None:
        """Moves one parameter's finished gradient to its place in the flat's."""
        self.collected()[slot.start : slot.stop].add_(gradient.reshape(-1))
        self.missing.discard(slot)

    def collected(self) -> torch.Tensor:
        """The flat's gradient as collected so far, shape [padded]; zero where nothing has arrived, padding too."""
        if self.gradient is None:
            self.gradient = torch.zeros(self.layout.padded, dtype=self.layout.dtype, device=self.whole.device)
        return self.gradient


class Engine:
    """Trains `model` on all ranks of the default process group; subclasses say what is sharded.

    All ranks start from rank 0's parameters. Buffers stay local, as in FSDP. A parameter that gets no gradient in a
    step counts as gradient zero, as in DDP. Gradients are means over ranks: ranks with uneven batches weigh the same,
    however many rows each has; the first batch is compared, and must be even.

    Args:
        model: the module, the same on every rank. It is used as it is and stays at `engine.model`.
        optimizer_cls: an element-wise torch optimizer's class; it updates flats, so whole-matrix ones are refused.
        units: names of the modules that travel as one; None finds the blocks (`partition.find_units`).
        **optimizer_keywords: for the optimizer, such as `lr=1e-3`.

    Raises:
        TypeError: `model` is no module, `optimizer_cls` no optimizer class, or a keyword is unknown to it.
        ValueError: nothing to train, an optimizer that needs whole tensors, or ranks whose models differ.
    """

    stage: ClassVar[str]

    def __init__(
        self, model: nn.Module, optimizer_cls: type, *, units: list[str] | None = None, **optimizer_keywords: Any
    ) -> None:
        check_optimizer(optimizer_cls, optimizer_keywords)
        self.model, self.rank, self.world_size = model, dist.get_rank(), dist.get_world_size()
        layouts = partition(model, self.world_size, units)
        check_same_on_all_ranks([layout.numel for layout in layouts], "the numbers of parameters in the model's flats")
        parameters = dict(model.named_parameters())
        self.flats = [self._place(layout, [parameters[slot.name] for slot in layout.slots]) for layout in layouts]
        self.trainable = [flat for flat in self.flats if not flat.layout.frozen]
        if not self.trainable:
            raise ValueError(f"all {len(parameters)} parameters of {type(model).__name__} are frozen: nothing to train")
        self.optimizer: torch.optim.Optimizer = optimizer_cls(
            [flat.owned for flat in self.trainable], **optimizer_keywords
        )
        self._in_flight: tuple[Flat, Exchange] | None = None
        self._first_batch = model.register_forward_pre_hook(self._compare_rows, with_kwargs=True)
        self._watch()

    # What a stage decides.

    def own(self, flat: Flat) -> torch.Tensor:
        """The part of the flat's parameters that this rank updates."""
        raise NotImplementedError

    def reduce(self, flat: Flat, gradient: torch.Tensor) -> Exchange:
        """Starts bringing together what the ranks have for the flat's gradient."""
        raise NotImplementedError

    def keep(self, flat: Flat, gradient: torch.Tensor) -> None:
        """Leaves the mean gradient in `flat.owned.grad`, and nothing that the stage does not need."""
        raise NotImplementedError

    def publish(self) -> None:
        """Brings the updated parameters to all ranks."""
        raise NotImplementedError

    # The step.

    def training_step(self, inputs: Any, targets: Any, loss_fn: LossFunction) -> torch.Tensor:
        """One step on this rank's batch: forward, backward, communicate, update. Returns this rank's loss, detached."""
        loss = loss_fn(self.model(inputs), targets)
        self.backward(loss)
        self.step()
        return loss.detach()

    def backward(self, loss: torch.Tensor) -> None:
        """Runs autograd; when it returns, this rank's part of the mean gradient is in place."""
        loss.backward()
        for flat in reversed(self.trainable):
            if flat.missing:  # some parameter took no part in this loss: its gradient is zero
                self._start_reduction(flat)
        self._finish_reduction()
        for flat in self.trainable:
            flat.missing = set(flat.layout.slots)

    def step(self) -> None:
        """Updates what this rank owns, clears the gradients, and brings the updates to all ranks."""
        self.optimizer.step()
        for flat in self.trainable:
            flat.owned.grad = flat.gradient = None
        self.publish()

    def _watch(self) -> None:
        """Collects each gradient as soon as autograd has finished it."""
        for flat in self.trainable:
            for slot, parameter in zip(flat.layout.slots, flat.parameters, strict=True):
                parameter.register_post_accumulate_grad_hook(partial(self._collect, flat, slot))

    def _collect(self, flat: Flat, slot: Slot, parameter: torch.Tensor) -> None:
        if parameter.grad is None:
            return
        flat.collect(slot, parameter.grad)
        parameter.grad = None
        if not flat.missing:
            self._start_reduction(flat)

    def _start_reduction(self, flat: Flat) -> None:
        self._finish_reduction()  # one exchange in flight: its buffers are all that overlap costs
        self._in_flight = flat, self.reduce(flat, flat.collected())

    def _finish_reduction(self) -> None:
        if self._in_flight is not None:
            flat, exchange = self._in_flight
            exchange.wait()
            self.keep(flat, flat.collected())
            self._in_flight = None

    # Placing, saving and showing what is held.

    @contextmanager
    def gathered(self, flat: Flat) -> Iterator[None]:
        """Within it the flat's parameters are whole on every rank, and may be read and written."""
        yield

    def adopt(self, flat: Flat) -> None:
        """Takes over what was written into the whole flat; nothing to do where the owned part is a view of it."""

    def _place(self, layout: FlatLayout, parameters: list[nn.Parameter]) -> Flat:
        flat = Flat(layout, parameters, self.rank)
        dist.broadcast(flat.whole, src=0)
        flat.owned = nn.Parameter(self.own(flat), requires_grad=not layout.frozen)
        return flat

    def state_dict(self) -> dict[str, torch.Tensor]:
        """The whole model on every rank: the module's own keys -> tensors (copies). Collective: all ranks call it."""
        copies: dict[int, torch.Tensor] = {}
        for flat in self.flats:
            with self.gathered(flat):
                copies |= {id(parameter): parameter.detach().clone() for parameter in flat.parameters}
        entries = self.model.state_dict(keep_vars=True)
        return {
            key: copies[id(entry)] if id(entry) in copies else entry.detach().clone() for key, entry in entries.items()
        }

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        """Takes the whole model from `state`, as `state_dict` gives it. Collective: all ranks call it.

        Raises:
            ValueError: a key is missing or unknown, or a tensor has another shape.
        """
        entries = self.model.state_dict(keep_vars=True)
        shapes = {
            id(p): slot.shape for flat in self.flats for slot, p in zip(flat.layout.slots, flat.parameters, strict=True)
        }
        check_state(state, {key: shapes.get(id(entry), entry.shape) for key, entry in entries.items()})
        new_values = {id(entry): state[key] for key, entry in entries.items()}
        with torch.no_grad():
            for flat in self.flats:
                with self.gathered(flat):
                    for parameter in flat.parameters:
                        parameter.copy_(new_values.pop(id(parameter)))
                    self.adopt(flat)
            for entry in entries.values():
                if id(entry) in new_values:  # what is left are buffers
                    entry.copy_(new_values[id(entry)])

    def holdings(self) -> Iterator[Holding]:
        """What this rank holds of the model's state right now; several may lie in one storage."""
        for flat in self.flats:
            name, everything, part = flat.layout.name, (0, flat.layout.padded), flat.layout.span(self.rank)
            owned_span = part if flat.owned.numel() == flat.layout.shard_numel else everything
            if flat.whole.untyped_storage().size():
                yield Holding("parameters", name, everything, flat.whole)
            yield Holding("parameters", name, owned_span, flat.owned)
            if flat.gradient is not None:
                yield Holding("gradients", name, everything, flat.gradient)
            if flat.owned.grad is not None:
                yield Holding("gradients", name, owned_span, flat.owned.grad)
            for value in self.optimizer.state[flat.owned].values() if flat.owned in self.optimizer.state else ():
                if isinstance(value, torch.Tensor):
                    span = owned_span if value.numel() == flat.owned.numel() else (0, 0)  # a step counter covers none
                    yield Holding("optimizer_state", name, span, value)

    def _compare_rows(self, module: nn.Module, inputs: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        """Before the first batch: all ranks must have the same number of rows, or their means would not be the batch's."""
        self._first_batch.remove()
        check_same_on_all_ranks([rows(inputs, keywords)], "the numbers of rows in the first batch")
