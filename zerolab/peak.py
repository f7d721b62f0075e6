"""The peak of a step in closed form: the highest of all moments, each a sum of named terms. No torch.

A peak is no sum of maxima: what is largest is not large at the same time. So the step is walked through, mark by mark,
with what a plain training of the same model showed between the marks (`zerolab.series.measure`: activations, never a
residual) and with the rules of the stage for everything else, in fp32 with AdamW and direct exchange (gloo):

* a flat's gradients stay where autograd left them until the last has come, and are then laid end to end;
* one reduction is in flight, with (N-1)/N of its flat to receive into; it makes room at half of the next flat;
* zero3 has a unit whole while it is used, gathers the next one in forward at once and in backward at half of the unit;
* torch's AdamW on CPU needs two temporaries as large as what the rank owns of a flat, and 12 bytes for a number, while
  the last one of the flat before still lies in a variable.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from zerolab.engines.partition import FlatLayout

WORD = 4  # bytes of an fp32 number
NUMBER = 12  # `x / 2.0` makes a tensor of the number, and another in the type of x
COUNTER = 4  # Adam's step, for each flat


@dataclass(frozen=True, slots=True)
class Mark:
    """A moment of a plain step at which a stage may act, and the activations until then.

    `kind` is use, done, back, gave (of the unit `name`), grad (of the parameter `name`) or end; `highest` the most
    bytes of activations since the mark before, `live` those at the mark, `lingers` what autograd still holds of the
    gradient that has just come, and `next` the unit that is used after this one.
    """

    kind: str
    name: str
    highest: int
    live: int
    lingers: int = 0
    next: str | None = None


def peak(
    stage: str, flats: Iterable[FlatLayout], world_size: int, series: Iterable[Mark], batch_bytes: int = 0
) -> dict[str, int]:
    """Bytes at the highest moment of a step (from the second on), by term; their sum is the peak.

    Args:
        stage: ddp, zero1, zero2 or zero3, with the options that they have by default, in fp32.
        flats: the layouts that `zerolab.engines.partition.partition` makes for the model.
        world_size: number of ranks N.
        series: what `zerolab.series.measure` gave for the model and one rank's batch.
        batch_bytes: bytes of batches that lie in memory meanwhile.

    Terms: parameters, gathered_units, gradients (laid end to end, or the means), incoming_gradients (as autograd left
    them), optimizer_state, receive_buffers, update_temporaries, activations, batches.
    Source: ZeRO, arXiv 1910.02054, sections 3.2 and 5; the schedule is the engines' own.
    """
    walk = _Walk(stage, list(flats), world_size, batch_bytes)
    for mark in series:
        walk.look(mark.highest)
        walk.activations = mark.live
        getattr(walk, f"on_{mark.kind}")(mark)
        walk.look(walk.activations)
    return dict(walk.terms)


class _Walk:
    """One step of one rank, as numbers."""

    def __init__(self, stage: str, flats: list[FlatLayout], world_size: int, batch_bytes: int) -> None:
        self.stage, self.world_size = stage, world_size
        self.trainable = [flat for flat in flats if not flat.frozen]
        self.flat_of = {slot.name: flat for flat in flats for slot in flat.slots}
        self.by_unit: dict[str, list[FlatLayout]] = {}
        for flat in flats:
            self.by_unit.setdefault(flat.unit, []).append(flat)
        owned = [self.owned(flat) for flat in self.trainable]
        self.now = Counter(
            parameters=WORD * sum(flat.shard_numel if stage == "zero3" else flat.padded for flat in flats),
            optimizer_state=2 * WORD * sum(owned) + COUNTER * len(owned),
            batches=batch_bytes,
        )
        self.sizes = {slot.name: WORD * (slot.stop - slot.start) for flat in flats for slot in flat.slots}
        self.awaited = {flat.name: {slot.name for slot in flat.slots} for flat in self.trainable}
        self.to_reduce = self.trainable[::-1]
        self.in_flight: FlatLayout | None = None
        self.whole: set[str] = set()
        self.arriving: set[str] = set()
        self.owes: Counter[str] = Counter()
        self.after_half: dict[str, str | None] = {}
        self.activations = self.lingers = 0
        self.terms: Counter[str] = Counter()

    def owned(self, flat: FlatLayout) -> int:
        """Elements that this rank updates."""
        return flat.padded if self.stage == "ddp" else flat.shard_numel

    def look(self, activations: int, **passing: int) -> None:
        """Notes this moment if it is the highest so far."""
        moment = self.now + Counter(activations=activations, **passing)
        if moment.total() > self.terms.total():
            self.terms = moment

    def gather(self, unit: str) -> None:
        """Makes a unit whole, in zero3."""
        if self.stage == "zero3" and unit not in self.whole:
            self.whole.add(unit)
            self.now["gathered_units"] += WORD * sum(flat.padded for flat in self.by_unit.get(unit, ()))
            self.look(self.activations)

    def release(self, unit: str) -> None:
        """Gives its memory back."""
        if unit in self.whole:
            self.whole.discard(unit)
            self.arriving.discard(unit)
            self.now["gathered_units"] -= WORD * sum(flat.padded for flat in self.by_unit[unit])

    def gather_ahead(self, unit: str | None) -> None:
        """Starts gathering what comes next."""
        if unit is not None and self.stage == "zero3" and unit not in self.whole:
            self.arriving.add(unit)
            self.gather(unit)

    def on_use(self, mark: Mark) -> None:
        """A unit's forward begins."""
        self.gather(mark.name)
        self.arriving.discard(mark.name)
        self.gather_ahead(mark.next)
        self.owes[mark.name] += mark.lingers  # how many of its inputs await a gradient

    def on_done(self, mark: Mark) -> None:
        """Its forward has ended."""
        self.release(mark.name)

    def on_back(self, mark: Mark) -> None:
        """The gradient of its output has come."""
        if mark.name not in self.whole or mark.name in self.arriving:
            self.gather(mark.name)
            self.arriving.discard(mark.name)
            self.after_half = {mark.name: mark.next}

    def on_grad(self, mark: Mark) -> None:
        """A parameter's gradient is finished; what `lingers` of it is in `live` and counts once."""
        flat = self.flat_of[mark.name]
        self.awaited[flat.name].discard(mark.name)
        self.now["incoming_gradients"] += self.sizes[mark.name]
        self.lingers, self.activations = mark.lingers, mark.live - mark.lingers
        self.look(self.activations)
        if 2 * sum(self.sizes[name] for name in self.awaited[flat.name]) <= WORD * flat.numel:
            self.finish()
            self.gather_ahead(self.after_half.pop(flat.unit, None))
        reducing = len(self.to_reduce)
        self.reduce_what_is_ready()
        if len(self.to_reduce) < reducing:
            self.now["incoming_gradients"] -= self.lingers
        self.lingers = 0

    def on_gave(self, mark: Mark) -> None:
        """The unit has given an input its gradient."""
        self.owes[mark.name] -= 1
        self.release_if_done(mark.name)
        self.reduce_what_is_ready()

    def on_end(self, mark: Mark) -> None:
        """Backward is over, and everything is updated."""
        while self.to_reduce:
            self.start(self.to_reduce.pop(0))
        self.finish()
        for unit in list(self.whole):
            self.release(unit)
        before = 0
        for flat in self.trainable:
            needed = WORD * self.owned(flat)
            self.look(mark.live, update_temporaries=before + 2 * needed + NUMBER)
            before = needed

    def release_if_done(self, unit: str) -> None:
        """Releases a unit that owes nothing any more."""
        if not self.owes[unit] > 0 and not any(self.awaited.get(flat.name) for flat in self.by_unit[unit]):
            self.release(unit)

    def reduce_what_is_ready(self) -> None:
        """Starts the reductions whose turn it is."""
        while self.to_reduce and not self.awaited[self.to_reduce[0].name]:
            if self.stage == "zero3" and self.owes[self.to_reduce[0].unit] > 0:
                return
            self.start(self.to_reduce.pop(0))

    def start(self, flat: FlatLayout) -> None:
        """Lays a flat's gradients end to end, and starts to reduce them."""
        self.finish()
        self.now["gradients"] += WORD * flat.padded
        self.look(self.activations)
        self.now["incoming_gradients"] -= sum(
            self.sizes[slot.name] for slot in flat.slots if slot.name not in self.awaited[flat.name]
        )
        self.now["incoming_gradients"] += self.lingers  # until the hooks are done
        if self.stage == "zero3":
            self.release_if_done(flat.unit)
        self.now["receive_buffers"] += WORD * (flat.padded - flat.shard_numel)
        self.in_flight = flat
        self.look(self.activations)

    def finish(self) -> None:
        """The reduction in flight is over; what the stage keeps stays."""
        flat, self.in_flight = self.in_flight, None
        if flat is None:
            return
        self.now["receive_buffers"] -= WORD * (flat.padded - flat.shard_numel)
        if self.stage in ("zero2", "zero3"):
            self.now["gradients"] += WORD * flat.shard_numel
            self.look(self.activations + NUMBER)
            self.now["gradients"] -= WORD * flat.padded
        else:
            self.look(self.activations + NUMBER)
