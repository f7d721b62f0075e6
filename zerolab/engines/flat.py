"""One flat on one rank: its tensors, and which of them is what.

    whole      [padded]  the unit's parameters end to end; the module's own parameters are views of it
    shard      [owned]   the part that this rank owns; in most stages a view of `whole`
    owned      [owned]   what the optimizer updates: the shard itself, or a master copy (mixed precision, or offload)
    pieces               none, until a parameter gets no gradient in a step: then `owned` as a view for each parameter,
                         so that the optimizer can leave that one alone
    gradient   [padded]  the parameters' gradients end to end, once all of them exist; else None
    mean       [owned]   the mean gradient over all ranks of what this rank owns; None before it is known
    unscaled   [owned]   the same as the optimizer takes it, once a GradScaler has divided it; else None

"owned" is a shard of `layout.shard_numel` elements, or in DDP the whole flat.
"""

import weakref
from collections.abc import Callable, Iterator
from enum import Enum, auto
from functools import cached_property
from typing import Any

import torch
from torch import nn

from zerolab.engines.agreement import send_from_rank_0
from zerolab.engines.collectives import Exchange
from zerolab.engines.offload import Way
from zerolab.engines.partition import FlatLayout, Slot
from zerolab.engines.precision import Formats
from zerolab.engines.taken import INSTEAD, Taken
from zerolab.engines.usage import Usage, split
from zerolab.engines.views import ModuleViews, Written, share_memory


class Presence(Enum):
    """What there is of a flat's parameters on this rank."""

    RELEASED = auto()  # the shard alone: the memory of `whole` is freed
    ARRIVING = auto()  # `whole` has memory, and the other ranks' parts are on their way into it
    WHOLE = auto()  # all of them


class Flat:
    """The tensors of one flat on this rank (see the module's text). Making one sends rank 0's parameters to all.

    Args:
        layout: what lies where.
        parameters: the module's parameters, in the layout's order.
        rank: this rank.
        own: gives the part of `whole` that this rank updates; it may release the rest.
        formats: the dtypes, and where the optimizer's part lies.
    """

    _arrival: Exchange | None = None  # what brings the other ranks' parts into `whole`

    def __init__(
        self,
        layout: FlatLayout,
        parameters: list[nn.Parameter],
        rank: int,
        own: Callable[["Flat"], torch.Tensor],
        formats: Formats,
    ) -> None:
        self.layout = layout
        self.parameters = parameters
        self.rank = rank
        self.gradient_dtype = formats.of_gradients(layout.dtype)
        # Whether gradients are added up in another dtype than the one in which autograd gives them.
        self.widens_gradients = self.gradient_dtype != formats.of_parameters(layout.dtype)
        self.gradient: torch.Tensor | None = None
        self.mean: torch.Tensor | None = None
        self.unscaled: torch.Tensor | None = None
        self.way = Way()  # from the mean to the optimizer
        self.rounding: Callable[[torch.Tensor], torch.Tensor] | None = None  # of the shard on its way into `whole`
        self.pieces: dict[Slot, nn.Parameter] = {}
        self.awaited: set[Slot] = set()  # the parameters whose gradients this backward has yet to bring
        self._left: list[tuple[Slot, nn.Parameter, Taken]] = []  # what answers for the engine in each `.grad` just now
        self.begin(own, formats)
        self.has_master = not share_memory(self.owned, self.shard)  # whether the optimizer updates a copy of the shard
        self.usage = Usage(layout, self.span)  # which of the parameters got a gradient in this step

    def begin(self, own: Callable[["Flat"], torch.Tensor], formats: Formats) -> None:
        """Lays the parameters end to end, rank 0's values on every rank, and has the stage take its part."""
        exact = self.lay_out([parameter.detach() for parameter in self.parameters])
        send_from_rank_0(exact)
        self.whole = exact.to(formats.of_parameters(self.layout.dtype))
        self.presence = Presence.WHOLE
        self._module = ModuleViews(list(self.members()), self.views(self.whole))
        for parameter in self.parameters:
            parameter.grad = None  # a gradient from before would count in the first step
        self.shard = own(self)  # the stage decides; under zero3 it also releases `whole`, whose presence changes here
        # `to` returns its own tensor where no dtype changes: then `exact` is `whole`, which `own` may have released.
        unrounded = self.shard if self.whole is exact else self._mine(exact)
        self.owned = self._make_owned(formats, lambda master: master.copy_(unrounded))
        # Of a copy we must know when somebody writes to the parameters. Views are the same memory: nothing to watch.
        if not share_memory(self.owned, self.whole):
            self._module.watch()

    def _make_owned(self, formats: Formats, fill: Callable[[torch.Tensor], Any]) -> nn.Parameter:
        """What the optimizer updates: the shard itself, or a master copy, filled with the values before rounding."""
        master = None if self.layout.frozen else formats.make_master(self.shard, self.layout.dtype)
        if master is not None:
            fill(master)
        return nn.Parameter(self.shard if master is None else master, requires_grad=not self.layout.frozen)

    @property
    def is_sharded(self) -> bool:
        """Whether ranks own parts of the flat; of whole matrices a rank may own all there are."""
        return self.layout.owners is not None or self.shard.numel() < self.layout.padded

    @cached_property
    def span(self) -> tuple[int, int]:
        """The elements `[start, stop)` of the flat that this rank owns."""
        return self.layout.span(self.rank) if self.is_sharded else (0, self.layout.padded)

    @property
    def has_half_its_gradients(self) -> bool:
        """Whether the gradients that this backward has yet to bring are at most half of the flat."""
        return 2 * sum([slot.stop - slot.start for slot in self.awaited]) <= self.layout.numel

    def members(self) -> Iterator[tuple[Slot, nn.Parameter]]:
        """The module's parameters, each with its place."""
        return zip(self.layout.slots, self.parameters, strict=True)

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

    def part(self, whole: torch.Tensor) -> torch.Tensor:
        """This rank's part of a tensor as large as the flat: a view of shape [shard_numel]."""
        start, stop = self.layout.span(self.rank)
        return whole[start:stop]

    def _mine(self, whole: torch.Tensor) -> torch.Tensor:
        """What this rank owns of a tensor as large as the flat: a view of shape [owned]."""
        return whole[slice(*self.span)]

    def arrive(self, exchange: Exchange) -> None:
        """The other ranks' parts are on their way into `whole`, by this exchange: who uses what is shown waits."""
        if self.presence is Presence.WHOLE:
            self._module.show_when_used(self.settle)
        self._arrival, self.presence = exchange, Presence.ARRIVING

    def settle(self) -> None:
        """Waits until they are there, and makes the module's parameters views of `whole`."""
        if self._arrival is not None:
            self._arrival.wait()
            self._arrival, self.presence = None, Presence.WHOLE
            self._module.show()

    def __del__(self) -> None:
        """Waits: the memory of `whole` goes, and may be used for something else only behind what arrives there."""
        if self._arrival is not None:
            self._arrival.wait()

    def hide(self) -> None:
        """Takes over what was written, and makes the module's parameters say that they are released."""
        self.take_over()
        self._module.hide()

    def take_over(self) -> None:
        """Takes over what somebody has written into the module's parameters: a master copy would undo it.

        Raises:
            RuntimeError: a parameter is no view of `whole` any more, and so would not be trained.
        """
        if self.presence is not Presence.WHOLE or not (written := self._module.were_written()):
            return
        mine = self._mine(self.whole)
        if self.rounding and written is Written.PERHAPS and torch.equal(mine, self.rounding(self.shard)):
            return  # it was only read
        with torch.no_grad():
            self.shard.copy_(mine)  # zero3's is a copy; elsewhere this is the same memory
            if self.has_master:
                # An element that is still the master's, rounded, was not written: there the master knows more digits.
                differs = self.owned.to(self.shard) != self.shard
                self.owned.copy_(torch.where(differs.to(self.owned.device), self.shard.to(self.owned), self.owned))

    def load(self, values: torch.Tensor) -> None:
        """Takes new parameters, laid end to end: shape [padded]."""
        self.settle()
        if self.presence is not Presence.RELEASED:  # else the next gather brings the new values
            self.whole.copy_(values)
        self.shard.copy_(self._mine(values))  # rounded in mixed precision, where the master keeps the exact values
        self.owned.copy_(self._mine(values))

    def lay_out_gradients(self) -> torch.Tensor:
        """Moves the parameters' gradients end to end into `gradient`, shape [padded].

        Those of an earlier micro-batch that lie there are added to. Where there is none stands -0.0, which no gradient
        is (see `usage`); and in each `.grad` a stand-in, which refuses what would do nothing (see `taken`).
        """
        gradient, adds = self.gradient, self.gradient is not None
        if gradient is None:
            # Not zeroed as a whole: every element but the padding is written below, and a step waits for memory.
            self.gradient = gradient = self.whole.new_empty(self.layout.padded, dtype=self.gradient_dtype)
            gradient[self.layout.numel :].zero_()
            self.usage.brought.clear()
        places, gradients = [], []
        for place, own, (slot, parameter) in zip(
            self.views(gradient), self.local_gradients(), self.members(), strict=True
        ):
            if own is not None:
                places.append(place)
                gradients.append(own.to_dense())  # an embedding may bring a sparse one; others stay as they are
                # It answers for the engine until the next backward or the step.
                parameter.grad = taken = Taken(slot.name, place, self.whole.dtype)
                self._left.append((slot, parameter, taken))
                self.usage.brought.add(slot)
        own = None  # the last reference to autograd's own: else that would live on beside the flat
        if places:  # one operation for all: a block has a dozen parameters, and most of them are small
            (torch._foreach_add_ if adds else torch._foreach_copy_)(places, gradients)
        gradients.clear()
        self.usage.mark(gradient)
        return gradient

    def let_gradients_add_up(self) -> None:
        """Lets a loop's own backward, which adds to `.grad`, add to the gradients that were taken from there."""
        for _, parameter, taken in self._left:
            taken.parameter = weakref.ref(parameter)

    def take_back(self) -> None:
        """Empties each `.grad` that answers for the engine.

        Raises:
            RuntimeError: somebody has cleared or replaced one, which would have changed nothing.
        """
        if not self._left:
            return
        left, self._left = self._left, []
        with _as_plain_tensors():
            touched = None
            for slot, parameter, taken in left:
                if taken.has_yielded:  # a gradient is there already
                    continue
                if parameter.grad is not taken:
                    touched = touched or slot.name
                parameter.grad = None
        if touched is not None:
            raise RuntimeError(f"the .grad of {touched!r} was cleared or replaced after backward(), {INSTEAD}")

    def local_gradients(self) -> list[torch.Tensor | None]:
        """What lies in each parameter's `.grad`: this rank's gradient, or what answers for one that was taken."""
        with _as_plain_tensors():
            return [parameter.grad for parameter in self.parameters]

    def drop_gradients(self) -> None:
        """Forgets everything that a backward has brought so far."""
        self.gradient = self.mean = self.unscaled = self.way.leaving = None
        self._left.clear()
        self.usage.forget()
        self.awaited.clear()
        for parameter in self.parameters:
            parameter.grad = None

    def begin_update(self, optimizer: torch.optim.Optimizer) -> None:
        """Gives the optimizer the mean gradient of all that got one; to a master copy, in its precision and place."""
        self.take_back()
        self.settle()  # what no forward has used since the last update
        self.take_over()
        if self.mean is None or not self.has_update:
            return
        if not self.usage.is_whole:
            self.split(optimizer)
        gradient = self.way.end(self.mean, self.owned) if self.unscaled is None else self.unscaled
        if not self.pieces:
            self.owned.grad = gradient
        for slot, piece in self.pieces.items():
            if slot in self.usage.used:
                start = self.usage.owned[slot][0]
                piece.grad = gradient[start : start + piece.numel()].view_as(piece)

    @property
    def has_update(self) -> bool:
        """Whether any rank has brought a gradient of what this one owns; of nothing but padding, too."""
        return self.usage.is_whole or bool(self.usage.used)

    @property
    def final_mean(self) -> torch.Tensor | None:
        """The mean gradient as it goes into the update. It may be written."""
        self.way.wait()
        return self.mean if self.unscaled is None else self.unscaled

    def by_parameter(self, owned: torch.Tensor) -> Iterator[tuple[Slot, torch.Tensor]]:
        """What a tensor of shape [owned] has of each parameter: views, in its shape if this rank owns all of it."""
        for slot, (start, stop) in self.usage.owned.items():
            mine = owned[start : min(stop, slot.stop - self.span[0])]  # without the padding
            yield slot, mine if self.is_sharded and self.layout.owners is None else mine.view(slot.shape)

    def split(self, optimizer: torch.optim.Optimizer) -> None:
        """From now on the optimizer updates each parameter by itself, and may leave it alone."""
        if not self.pieces:
            self.pieces = split(self.owned, self.usage.owned, optimizer)

    def finish_update(self) -> None:
        """Clears the gradients, and brings an updated master copy back into the shard."""
        self.owned.grad = self.mean = self.unscaled = self.gradient = self.way.leaving = None
        for piece in self.pieces.values():
            piece.grad = None
        self.usage.forget()
        if self.has_master:
            # From pinned memory the host need not wait for the copy: whatever writes to the master next follows a copy
            # of gradients, which is queued behind this one. Rounded on the GPU: the CPU's result would not be pinned.
            self.shard.copy_(self.owned.detach().to(self.shard.device, non_blocking=True))

    def updated(self) -> list[tuple[nn.Parameter, tuple[int, int]]]:
        """What the optimizer updates, and where it lies in the flat."""
        if not self.pieces:
            return [(self.owned, self.span)]
        starts = {slot: self.span[0] + start for slot, (start, _) in self.usage.owned.items()}
        return [(piece, (starts[slot], starts[slot] + piece.numel())) for slot, piece in self.pieces.items()]

    def updated_so_far(self) -> list[int]:
        """How many elements each tensor has that the optimizer has updated: it keeps state for no other."""
        if self.pieces:
            return [piece.numel() for slot, piece in self.pieces.items() if slot in self.usage.ever]
        return [self.owned.numel()] if self.usage.ever >= self.usage.owned.keys() else []


# A look at a released parameter is a slow one, because it says what may not be done with it.
_as_plain_tensors = torch._C.DisableTorchFunctionSubclass  # noqa: SLF001  (torch.Tensor's own functions use it)
