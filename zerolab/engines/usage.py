"""Which parameters got a gradient, here and on any rank: what got none anywhere is left alone, as torch leaves it.

In one process a parameter without a gradient keeps its weights, its optimizer state and its count of steps. On ranks
that use different parameters its owner must know whether anybody brought a gradient for it. No message says so:
a rank that has none lays out -0.0 in its place. By IEEE 754 x + -0.0 is x for every x, 0.0 included, so a sum is -0.0
only if no rank brought anything, as long as nobody brings a -0.0: the first number that each owner has of a gradient
is made 0.0 if it was that. This costs two operations a flat, nothing on the wire, and no memory; owners read one
number of each parameter for which they have no gradient themselves, for which a GPU has to be waited for.
"""

import math

import torch
from torch import nn

from zerolab.engines.declared import state_of
from zerolab.engines.partition import FlatLayout, Slot


class Usage:
    """Which parameters of one flat, of which this rank owns the elements `span`, got a gradient in this step."""

    def __init__(self, layout: FlatLayout, span: tuple[int, int]) -> None:
        first, last = span
        self._layout, self._first = layout, first
        # The parameters of which this rank owns something: the elements `[start, stop)` of what it owns.
        pieces = {slot: (max(slot.start, first) - first, min(slot.stop, last) - first) for slot in layout.slots}
        self.owned = {slot: (start, stop) for slot, (start, stop) in pieces.items() if start < stop}
        for slot in [*self.owned][-1:]:  # padding goes with what lies before it
            self.owned[slot] = self.owned[slot][0], last - first
        numels = [slot.stop - slot.start for slot in layout.slots]
        cuts = [count for numel in numels for count in (min(numel, 1), max(numel - 1, 0))]
        self._first_and_rest = [*cuts, layout.padded - layout.numel]  # of each parameter: one cut for all of them
        self.brought: set[Slot] = set()  # by this rank, to the gradient that is laid out now
        self.used: set[Slot] = set()  # by any rank in this step, among those that this rank owns
        self.ever: set[Slot] = set()  # the same, since the beginning

    @property
    def is_whole(self) -> bool:
        """Whether all that this rank owns is to be updated, padding included."""
        return self.used >= self.owned.keys()

    def mark(self, gradient: torch.Tensor) -> None:
        """Makes this rank's gradient, shape [padded], tell what is in it: -0.0 where nothing was brought."""
        starts = gradient.split(self._first_and_rest)[:-1:2]
        brought = [start for slot, start in zip(self._layout.slots, starts, strict=True) if slot in self.brought]
        # The first number of each shard, too, where a parameter goes on that began in the shard before.
        torch._foreach_add_([gradient[:: max(self._layout.shard_numel, 1)], *brought], 0.0)
        for slot in self._layout.slots:
            if slot not in self.brought:
                gradient[slot.start : slot.stop].fill_(-0.0)

    def learn(self, gradient: torch.Tensor) -> None:
        """Reads the ranks' sum, shape [padded], before it is divided: the mean of a tiny number may be -0.0, too."""
        for slot, (start, _) in self.owned.items():
            if slot in self.brought or (slot not in self.used and not nobody_brought(gradient[self._first + start])):
                self.used.add(slot)
        self.ever |= self.used

    def forget(self) -> None:
        """The step is over."""
        self.brought.clear()
        self.used.clear()


def nobody_brought(number: torch.Tensor) -> bool:
    """Whether a sum over ranks is the -0.0 of those that had nothing to add; of a complex one the real part tells."""
    if number.is_meta:  # a simulated rank's: what it has no gradient for, no other has
        return True
    value = float(number.real if number.is_complex() else number)
    return value == 0 and math.copysign(1, value) < 0


def split(
    owned: nn.Parameter, spans: dict[Slot, tuple[int, int]], optimizer: torch.optim.Optimizer
) -> dict[Slot, nn.Parameter]:
    """Gives the optimizer one tensor for each parameter in place of one for all, each with its own count of steps.

    They are views of `owned`, at these `spans`, and so are their states: it costs no memory but a counter each.
    """
    pieces = {slot: nn.Parameter(owned.detach()[start:stop]) for slot, (start, stop) in spans.items()}
    kept = state_of(optimizer)
    state = kept.pop(owned, {})
    for slot, piece in pieces.items() if state else ():
        kept[piece] = {key: _cut(value, owned.shape, spans[slot]) for key, value in state.items()}
    for group in optimizer.param_groups:
        group["params"][:] = [new for old in group["params"] for new in (pieces.values() if old is owned else [old])]
    return pieces


def _cut(value: object, shape: torch.Size, span: tuple[int, int]) -> object:
    if not isinstance(value, torch.Tensor):
        return value
    return value[slice(*span)] if value.shape == shape else value.clone()
