"""One flat on one rank: its tensors, and which of them is what.

    whole      [padded]  the unit's parameters end to end; the module's own parameters are views of it
    shard      [owned]   the part that this rank owns; in most stages a view of `whole`
    owned      [owned]   what the optimizer updates: the shard itself, or a master copy (fp32 under bf16, or offloaded)
    parts                the same, one view for each parameter, once one of them was left alone; until then none
    gradient   [padded]  the parameters' gradients end to end, once all of them exist; else None
    mean       [owned]   the mean gradient over all ranks of what this rank owns; None before it is known

"owned" is a shard of `layout.shard_numel` elements, or in DDP the whole flat.
"""

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import nn

from zerolab.engines.partition import FlatLayout, Slot
from zerolab.engines.taken import INSTEAD, Taken, leave_taken
from zerolab.engines.usage import Usage, split
from zerolab.engines.watched import Released, Watched, set_data


class Holding(NamedTuple):
    """A piece of model state that a rank holds right now: `span` is `[start, stop)` in elements of the unit's flat."""

    category: str
    unit: str
    span: tuple[int, int]
    tensor: torch.Tensor


class Flat:
    """The tensors of one flat on this rank (see the module's text); an engine decides what `shard` is.

    Args:
        layout: what lies where.
        parameters: the module's parameters, in the layout's order.
        rank: this rank.
    """

    shard: torch.Tensor
    owned: nn.Parameter

    def __init__(self, layout: FlatLayout, parameters: list[nn.Parameter], rank: int) -> None:
        self.layout, self.parameters, self.rank = layout, parameters, rank
        self.gradient: torch.Tensor | None = None
        self.mean: torch.Tensor | None = None
        self.parts: dict[Slot, nn.Parameter] = {}
        self._taken: list[tuple[Slot, nn.Parameter, Taken]] = []
        self.awaited: set[Slot] = set()  # the parameters whose gradients this backward has yet to bring
        self.whole = self.lay_out([parameter.detach() for parameter in parameters])
        self._shown: list[torch.Tensor] = []
        self._nothing: torch.Tensor | None = None
        self._kinds = [type(parameter) for parameter in parameters]
        self._writes = self._count_writes()
        self.gradient_dtype = layout.dtype

    @property
    def is_sharded(self) -> bool:
        """Whether this rank owns less than the whole flat."""
        return self.shard.numel() < self.layout.padded

    @property
    def span(self) -> tuple[int, int]:
        """The elements `[start, stop)` of the flat that this rank owns."""
        return self.layout.span(self.rank) if self.is_sharded else (0, self.layout.padded)

    @cached_property
    def usage(self) -> Usage:
        """Which of the parameters got a gradient in this step."""
        return Usage(self.layout, self.span)

    @property
    def widens_gradients(self) -> bool:
        """Whether gradients are added up in another dtype than the one in which autograd gives them."""
        return self.gradient_dtype != self.whole.dtype

    @property
    def has_master(self) -> bool:
        """Whether the optimizer updates a copy of the shard."""
        return bool(self.owned.untyped_storage()._cdata != self.shard.untyped_storage()._cdata)  # noqa: SLF001  (fakes have no pointer)

    @property
    def has_half_its_gradients(self) -> bool:
        """Whether the gradients that this backward has yet to bring are at most half of the flat."""
        return 2 * sum(slot.stop - slot.start for slot in self.awaited) <= self.layout.numel

    def members(self) -> Iterator[tuple[Slot, nn.Parameter]]:
        """The module's parameters, each with its place."""
        return zip(self.layout.slots, self.parameters, strict=True)

    def has_any_of(self, parameters: set[int]) -> bool:
        """Whether one of the module's parameters in this flat is among those with the given ids."""
        return any(id(parameter) in parameters for parameter in self.parameters)

    def lay_out(self, tensors: list[torch.Tensor], dtype: torch.dtype | None = None) -> torch.Tensor:
        """The tensors end to end in the order of the slots, zero-padded: shape [padded], dtype None the layout's."""
        whole = torch.zeros(self.layout.padded, dtype=dtype or self.layout.dtype, device=self.parameters[0].device)
        for slot, tensor in zip(self.layout.slots, tensors, strict=True):
            whole[slot.start : slot.stop] = tensor.reshape(-1)
        return whole

    def views(self, whole: torch.Tensor) -> list[torch.Tensor]:
        """The slots of a tensor as large as the flat, each in its parameter's shape."""
        sizes = [slot.stop - slot.start for slot in self.layout.slots]
        # Views of the one storage that is exchanged: what a collective brings is in the parameters at once.
        *pieces, _ = whole.split([*sizes, self.layout.padded - self.layout.numel])
        return [piece.view(slot.shape) for piece, slot in zip(pieces, self.layout.slots, strict=True)]

    def make_owned(self, exact: torch.Tensor, dtype: torch.dtype | None, *, offload: bool) -> None:
        """Decides what the optimizer updates: the shard itself, or a master copy of it, of no less than fp32.

        Args:
            exact: the flat's values before they were rounded to `dtype`; shape [padded].
            dtype: what parameters are computed in, None for their own.
            offload: whether the copy lies in main memory.
        """
        if self.layout.frozen or not (dtype or offload):
            self.owned = nn.Parameter(self.shard, requires_grad=not self.layout.frozen)
        else:
            mine = self.shard if self.whole is exact else self.part(exact) if self.is_sharded else exact
            place, precise = "cpu" if offload else mine.device, torch.promote_types(mine.dtype, torch.float32)
            self.owned = nn.Parameter(mine.to(place, precise if dtype else mine.dtype, copy=True))
        # Where the parameters are views of what the optimizer updates, whatever is written there needs no watching.
        if self.owned.untyped_storage()._cdata != self.whole.untyped_storage()._cdata:  # noqa: SLF001  (as above)
            self._kinds = [Watched if kind is nn.Parameter else kind for kind in self._kinds]
            if self.whole.untyped_storage().size():
                self.show()

    def part(self, whole: torch.Tensor) -> torch.Tensor:
        """This rank's part of a tensor as large as the flat: a view of shape [shard_numel]."""
        start, stop = self.layout.span(self.rank)
        return whole[start:stop]

    def show(self) -> None:
        """Makes the module's parameters views of `whole`."""
        # Made once: a gather refills the very storage that they lie in, and each would cost two operations every time.
        self._shown = self._shown or self.views(self.whole)
        for parameter, view, kind in zip(self.parameters, self._shown, self._kinds, strict=True):
            parameter.__class__ = kind
            # A new Parameter would be another object to the optimizer, to hooks and to whoever ties it.
            set_data(parameter, view)

    def hide(self) -> None:
        """Makes the module's parameters say that they are released, because `whole` is about to go."""
        if type(self.parameters[0]) is Released:  # gathered ahead, and not shown
            return
        self.take_over()
        if self._nothing is None:
            # A placeholder of no elements, for what gets past `Released`: there released memory would end the process.
            with torch.inference_mode(mode=False):  # what an evaluation makes could not be trained afterwards
                self._nothing = self.whole.new_empty(0)
            for (slot, parameter), view in zip(self.members(), self._shown, strict=True):
                parameter.place = slot.name, view, self._nothing  # type: ignore[attr-defined]
        for parameter in self.parameters:
            set_data(parameter, self._nothing)
            parameter.__class__ = Released

    def take_over(self) -> None:
        """Takes over what somebody has written into the module's parameters: a master copy would undo it.

        Raises:
            RuntimeError: a parameter is no view of `whole` any more, and so would not be trained.
        """
        if type(self.parameters[0]) is Released:
            return
        if [parameter.data_ptr() for parameter in self.parameters] != [view.data_ptr() for view in self._shown]:
            self._refuse_other_memory()
        writes = self._count_writes()
        if writes == self._writes:
            return
        self._writes = writes
        with torch.no_grad():
            self.shard.copy_(self.part(self.whole) if self.is_sharded else self.whole)  # itself, but under zero3
            if self.has_master:
                # Where it rounds to what the parameter is nobody wrote, and the master knows more digits.
                written = self.owned.to(self.shard) != self.shard
                self.owned.copy_(torch.where(written.to(self.owned.device), self.shard.to(self.owned), self.owned))

    def _refuse_other_memory(self) -> None:
        pairs = zip(self.members(), self._shown, strict=True)
        slot, parameter = next(member for member, view in pairs if member[1].data_ptr() != view.data_ptr())
        raise RuntimeError(
            f"{slot.name!r} has been given other memory, in {parameter.dtype} on {parameter.device}, and would not be "
            "trained: convert and move a model before making the engine, and write values into the parameter (copy_) "
            "instead of replacing its data"
        )

    def _count_writes(self) -> int:
        """How often somebody has written into the module's parameters; the engine itself writes into `whole`."""
        writes = sum([parameter._version for parameter in self.parameters])  # noqa: SLF001  (it has no other name)
        return writes + sum([p.data_uses for p in self.parameters if type(p) is Watched])

    def load(self, values: torch.Tensor) -> None:
        """Takes new parameters, laid end to end: shape [padded]."""
        if self.whole.untyped_storage().size():  # else it is released, and the next gather brings the new values
            self.whole.copy_(values)
        mine = self.part(values) if self.is_sharded else values
        # Under bf16 it is rounded; the master keeps the exact values.
        self.shard.copy_(mine)
        self.owned.copy_(mine)

    def lay_out_gradients(self) -> torch.Tensor:
        """Moves the parameters' gradients end to end into `gradient`, shape [padded]; -0.0 where there is none.

        Those of an earlier micro-batch that lie there are added to.
        """
        gradient, adds = self.gradient, self.gradient is not None
        if gradient is None:
            # Not zeroed as a whole: every element but the padding is written below, and a step waits for memory.
            self.gradient = gradient = torch.empty(
                self.layout.padded, dtype=self.gradient_dtype, device=self.whole.device
            )
            gradient[self.layout.numel :].zero_()
            self.usage.brought.clear()
        places, gradients = [], []
        for place, (slot, parameter) in zip(self.views(gradient), self.members(), strict=True):
            if parameter.grad is not None:
                places.append(place)
                gradients.append(parameter.grad.to_dense())
                parameter.grad = None
                self.usage.brought.add(slot)
        if places:  # one operation for all: a block has a dozen parameters, and most of them are small
            (torch._foreach_add_ if adds else torch._foreach_copy_)(places, gradients)
        gradients.clear()
        self.usage.mark(gradient)
        return gradient

    def leave_taken(self) -> None:
        """Lets each `.grad` that has been moved answer for the engine, until the next backward or the step."""
        self._taken = leave_taken(member for member in self.members() if member[0] in self.usage.brought)

    def take_back(self) -> None:
        """Empties each `.grad` again.

        Raises:
            RuntimeError: somebody has cleared or replaced one, which would have changed nothing.
        """
        taken, self._taken = self._taken, []
        touched = next((slot.name for slot, parameter, left in taken if parameter.grad is not left), None)
        for _, parameter, _ in taken:
            parameter.grad = None
        if touched is not None:
            raise RuntimeError(f"the .grad of {touched!r} was cleared or replaced after backward(), {INSTEAD}")

    def drop_gradients(self) -> None:
        """Forgets everything that a backward has brought so far."""
        self.gradient = self.mean = None
        self._taken.clear()
        self.usage.forget()
        self.awaited.clear()
        for parameter in self.parameters:
            parameter.grad = None

    def begin_update(self, optimizer: torch.optim.Optimizer) -> None:
        """Gives the optimizer the mean gradient of all that got one; to a master copy, in its precision and place."""
        self.take_back()
        self.take_over()
        whole = self.usage.is_whole
        if self.mean is None or not (whole or self.usage.used):
            return
        if not whole:
            self.split(optimizer)
        # In fp32 without offload the mean itself: nothing is copied, and nothing counted twice.
        gradient = self.mean.to(self.owned)
        if not self.parts:
            self.owned.grad = gradient
        for slot, part in self.parts.items():
            if slot in self.usage.used:
                part.grad = gradient[slice(*self.usage.owned[slot])]

    def split(self, optimizer: torch.optim.Optimizer) -> None:
        """From now on the optimizer updates each parameter by itself, and may leave it alone."""
        if not self.parts:
            self.parts = split(self.owned, self.usage.owned, optimizer)

    def finish_update(self) -> None:
        """Clears the gradients, and brings an updated master copy back into the shard."""
        self.owned.grad = self.mean = self.gradient = None
        for part in self.parts.values():
            part.grad = None
        self.usage.forget()
        if self.has_master:
            self.shard.copy_(self.owned.detach())

    def updated(self) -> list[tuple[nn.Parameter, tuple[int, int]]]:
        """What the optimizer updates, and where it lies in the flat."""
        if not self.parts:
            return [(self.owned, self.span)]
        first, places = self.span[0], self.usage.owned
        return [(part, (first + places[slot][0], first + places[slot][1])) for slot, part in self.parts.items()]

    def updated_so_far(self) -> list[int]:
        """How many elements each tensor has that the optimizer has updated: it keeps state for no other."""
        if self.parts:
            return [part.numel() for slot, part in self.parts.items() if slot in self.usage.ever]
        return [self.owned.numel()] if self.usage.ever >= self.usage.owned.keys() else []

    def holdings(self, optimizer_state: Mapping[Any, Mapping[str, Any]]) -> Iterator[Holding]:
        """What this rank holds of this flat right now; several holdings may lie in one storage."""
        name, everything = self.layout.name, (0, self.layout.padded)
        if self.whole.untyped_storage().size():
            yield Holding("parameters", name, everything, self.whole)
        yield Holding("parameters", name, self.span, self.shard)
        if self.gradient is not None:
            yield Holding("gradients", name, everything, self.gradient)
        with torch._C.DisableTorchFunctionSubclass():  # noqa: SLF001  (a look at a released parameter is a slow one)
            gradients = [parameter.grad for parameter in self.parameters]
        for slot, gradient in zip(self.layout.slots, gradients, strict=True):
            if gradient is not None and not isinstance(gradient, Taken):
                yield Holding("gradients", name, (slot.start, slot.stop), gradient)
        if self.mean is not None:
            yield Holding("gradients", name, self.span, self.mean)
        if self.has_master:
            yield Holding("optimizer_state", name, self.span, self.owned)
        for updated, span in self.updated():
            yield from self._held_for_update(updated, span, optimizer_state.get(updated, {}))

    def _held_for_update(
        self, updated: nn.Parameter, span: tuple[int, int], state: Mapping[str, Any]
    ) -> Iterator[Holding]:
        if updated.grad is not None:
            yield Holding("gradients", self.layout.name, span, updated.grad)
        for value in state.values():
            if isinstance(value, torch.Tensor):  # a step counter covers no elements
                counted = value.shape == updated.shape
                yield Holding("optimizer_state", self.layout.name, span if counted else (0, 0), value)
