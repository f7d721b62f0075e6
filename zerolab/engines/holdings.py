"""What a rank holds of the model's state right now, as recorders and figures ask for it."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch

from zerolab.engines.flat import Flat, Presence
from zerolab.engines.taken import Taken


class Holding(NamedTuple):
    """A piece of model state that a rank holds right now: `span` is `[start, stop)` in elements of the unit's flat."""

    category: str
    unit: str
    span: tuple[int, int]
    tensor: torch.Tensor


def held_in(flat: Flat, optimizer_state: Mapping[Any, Mapping[str, Any]]) -> Iterator[Holding]:
    """What this rank holds of a flat; several holdings may lie in one storage."""
    name, everything = flat.layout.name, (0, flat.layout.padded)
    if flat.presence is not Presence.RELEASED:
        yield Holding("parameters", name, everything, flat.whole)
    yield Holding("parameters", name, flat.span, flat.shard)
    local = zip(flat.layout.slots, flat.local_gradients(), strict=True)
    gradients = [((slot.start, slot.stop), gradient) for slot, gradient in local]
    gradients += [(everything, flat.gradient), (flat.span, flat.mean), (flat.span, flat.unscaled)]
    gradients += [(flat.span, flat.way.leaving.copy)] if flat.way.leaving else []
    gradients += [(span, updated.grad) for updated, span in flat.updated()]
    for span, gradient in gradients:
        if gradient is not None and not isinstance(gradient, Taken):
            yield Holding("gradients", name, span, gradient)
    if flat.has_master:
        yield Holding("optimizer_state", name, flat.span, flat.owned)
    for updated, span in flat.updated():
        for value in optimizer_state.get(updated, {}).values():
            if isinstance(value, torch.Tensor):  # a step counter covers no elements
                yield Holding("optimizer_state", name, span if value.dim() else (0, 0), value)
