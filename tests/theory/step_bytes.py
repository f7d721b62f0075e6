"""What a predicted step is made of, in bytes: a stage with its options, flats, the marks of a plain step. No torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from zerolab.engines.partition import FlatLayout

COUNTER = 4  # Adam's step, a fp32 number for each flat
INT64 = FLOAT64 = 8  # what torch makes of a Python number, before it makes another in the type of the other operand


@dataclass(frozen=True, slots=True)
class Mark:
    """A moment of a plain step at which a stage may act, and the activations until then.

    `kind` is use, done, again (a forward within backward: activation checkpointing), back, gave (of the unit `name`),
    grad (of the parameter `name`), loss (backward begins) or end; `highest` the most bytes of activations since the
    mark before, and `live` those at the mark; `highest_arriving` and `live_arriving` are bytes beside them of gradients
    whose own marks come later. Of a use, `awaiting` is how many inputs will get a gradient. Of a grad, `nbytes` is
    that gradient's size.
    """

    kind: str
    name: str
    highest: int
    live: int
    highest_arriving: int = 0
    live_arriving: int = 0
    awaiting: int = 0
    nbytes: int = 0


@dataclass(frozen=True, slots=True)
class Plan:
    """A stage with its options: `reduce_width` is bytes of a number in `reduce_dtype`, None for the precision's own."""

    stage: str
    world_size: int
    bf16: bool = False
    reduce_width: int | None = None
    overlap: bool = True
    offload: bool = False
    release_after_forward: bool = True
    prefetch: int = 1
    micro_batches: int = 1
    batch_bytes: int = 0
    rank: int = 0

    @property
    def adds_up_in_shards(self) -> bool:
        """Whether each backward reduces, because there is nowhere to keep whole gradients."""
        return self.stage in ("zero2", "zero3")


@dataclass(slots=True, eq=False)
class Piece:
    """One flat as bytes of what may exist of it (the names are those of `engines/flat.py`), and how far it is."""

    layout: FlatLayout
    resident: int  # of the parameters, always
    whole: int  # more, while the flat is gathered
    gradient: int
    mean: int
    received: int  # by a reduction, from the other ranks
    updated: int  # what the optimizer updates
    copied: int  # the mean once more, where it has another type than what is updated
    parts: list[int]  # of that the tensors which the optimizer updates: one, or one for each parameter in use
    state: int  # of the optimizer: moments and counters, and a master copy
    number: int  # `gradient / N` makes two tensors of N
    is_widened: bool  # gradients are added up in another type than autograd's, so the engine does it
    awaited: set[str] = field(default_factory=set)
    incoming: int = 0  # gradients as autograd left them
    has_mean: bool = False
    is_laid_out: bool = False


def piece_of(layout: FlatLayout, plan: Plan, used: set[str]) -> Piece:
    """The bytes of one flat under a plan, with the names of the parameters that get gradients."""
    exact = layout.dtype.itemsize
    is_half = plan.bf16 and layout.dtype.is_floating_point
    width, master_width = (2, max(exact, 4)) if is_half else (exact, exact)
    gradient_width = plan.reduce_width or width
    owned = layout.padded if plan.stage == "ddp" else layout.shard_numel
    updated = master_width * owned
    parts = [master_width * numel for numel in parts_of(layout, plan, used)]
    has_master = is_half or plan.offload
    return Piece(
        layout,
        resident=width * (layout.shard_numel if plan.stage == "zero3" else layout.padded),
        whole=width * layout.padded if plan.stage == "zero3" else 0,
        gradient=gradient_width * layout.padded,
        mean=gradient_width * owned,
        received=gradient_width * (layout.padded - layout.shard_numel),
        updated=updated,
        # Where the types differ a cast makes the copy. Widths tell, but for bf16 beside fp16, which no plan has.
        copied=updated if parts and gradient_width != master_width else 0,
        parts=parts,
        state=0 if layout.frozen else 2 * sum(parts) + COUNTER * len(parts) + updated * has_master,
        number=INT64 + gradient_width,
        is_widened=gradient_width != width,
    )


def parts_of(layout: FlatLayout, plan: Plan, used: set[str]) -> list[int]:
    """Elements of each tensor that the optimizer updates: all that the rank owns, or what gets gradients of it."""
    first, last = (0, layout.padded) if plan.stage == "ddp" else layout.span(plan.rank)
    owned = {slot.name: min(slot.stop, last) - max(slot.start, first) for slot in layout.slots}
    owned = {name: numel for name, numel in owned.items() if numel > 0}
    if used >= owned.keys():
        return [last - first]
    owned[[*owned][-1]] += last - first - sum(owned.values())  # the padding, if any
    return [numel for name, numel in owned.items() if name in used]
