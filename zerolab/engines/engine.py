"""The training step that all stages share.

A stage answers four questions, and its file holds the answers: what a rank owns (`own`), which collective brings a
flat's gradients together (`reduce`), which part of the mean gradient stays (`keep`), and how the updated parameters
reach the other ranks (`publish`). Everything else is here and the same for all of them: gradients are collected flat
by flat while autograd works, a flat's reduction starts as soon as its last gradient exists, with one exchange in
flight, and a plain torch optimizer updates what the rank owns.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import nn

from zerolab.engines.checks import check_optimizer, check_same_on_all_ranks, check_state, rows
from zerolab.engines.collectives import Exchange, all_gather
from zerolab.engines.flat import Flat, Holding
from zerolab.engines.partition import FlatLayout, Slot, partition

LossFunction = Callable[[Any, Any], torch.Tensor]


class Engine:
    """Trains `model` on all ranks of the default process group; subclasses say what is sharded.

    All ranks start from rank 0's parameters. Buffers stay local, as in FSDP. A parameter that gets no gradient in a
    step counts as gradient zero, as in DDP. Gradients are means over ranks: later batches may be uneven, and then a
    rank with few rows weighs as much as one with many; the first batch is compared, and must be even.

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
        """Leaves the mean gradient in `flat.mean`, and nothing that the stage does not need."""
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
            if flat.awaited:  # some parameter took no part in this loss: its gradient is zero
                self._start_reduction(flat)
        self._finish_reduction()

    def step(self) -> None:
        """Updates what this rank owns, clears the gradients, and brings the updates to all ranks."""
        for flat in self.trainable:
            flat.begin_update()
        self.optimizer.step()
        for flat in self.trainable:
            flat.finish_update()
        self.publish()

    def _watch(self) -> None:
        """Collects each gradient as soon as autograd has finished it."""
        for flat in self.trainable:
            for slot, parameter in flat.members():
                parameter.register_post_accumulate_grad_hook(partial(self._collect, flat, slot))

    def _collect(self, flat: Flat, slot: Slot, parameter: torch.Tensor) -> None:
        if parameter.grad is not None:
            flat.collect(slot, parameter.grad)
            parameter.grad = None
            if not flat.awaited:
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

    def _place(self, layout: FlatLayout, parameters: list[nn.Parameter]) -> Flat:
        flat = Flat(layout, parameters, self.rank)
        dist.broadcast(flat.whole, src=0)
        flat.show()
        flat.shard = self.own(flat)
        flat.owned = nn.Parameter(flat.shard, requires_grad=not layout.frozen)
        return flat

    def state_dict(self) -> dict[str, torch.Tensor]:
        """The whole model on every rank: the module's own keys -> tensors (copies). Collective: all ranks call it."""
        copies: dict[int, torch.Tensor] = {}
        for flat in self.flats:
            views = flat.views(self._gather_from_owners(flat, flat.owned.detach()))
            copies |= {id(parameter): view.clone() for parameter, view in zip(flat.parameters, views, strict=True)}
        entries = self.model.state_dict(keep_vars=True)
        return {key: copies.get(id(entry), entry).detach().clone() for key, entry in entries.items()}

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        """Takes the whole model from `state`, as `state_dict` gives it; every rank passes the same.

        Raises:
            ValueError: a key is missing or unknown, or a tensor has another shape.
        """
        entries = self.model.state_dict(keep_vars=True)
        shapes = {id(p): slot.shape for flat in self.flats for slot, p in flat.members()}
        check_state(state, {key: shapes.get(id(entry), entry.shape) for key, entry in entries.items()})
        values = {id(entry): state[key] for key, entry in entries.items()}
        with torch.no_grad():
            for flat in self.flats:
                flat.load(flat.lay_out([values[id(parameter)] for parameter in flat.parameters]))
            for buffer in self.model.buffers():
                if id(buffer) in values:
                    buffer.copy_(values[id(buffer)])

    def _gather_from_owners(self, flat: Flat, piece: torch.Tensor) -> torch.Tensor:
        """What the ranks hold of one thing, such as Adam's first moment, end to end: shape [padded]."""
        if piece.numel() == flat.layout.padded:
            return piece
        everything = piece.new_empty(flat.layout.padded)
        flat.part(everything).copy_(piece)
        all_gather(everything).wait()
        return everything

    def holdings(self) -> Iterator[Holding]:
        """What this rank holds of the model's state right now; several holdings may lie in one storage."""
        for flat in self.flats:
            yield from flat.holdings(self.optimizer.state.get(flat.owned, {}))

    def _compare_rows(self, module: nn.Module, inputs: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        """Before the first batch: the ranks must bring as many rows each, or their mean is not the batch's."""
        self._first_batch.remove()
        check_same_on_all_ranks([rows(inputs, keywords)], "the numbers of rows in the first batch")
