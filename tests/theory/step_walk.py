"""One training step of one rank as numbers: what the engines do, in their order, and the bytes that it takes. No torch.

This is `engines/` once more, without tensors: `gather`, `release`, `start` and `finish` are the methods of the same
names there, and the orders in which units are fetched early come from the very class that the engines ask. What a
plain training of the same model showed between the marks (`step_activations`) is added as activations.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from step_bytes import FLOAT64, Mark, Piece, Plan, piece_of

if TYPE_CHECKING:
    from zerolab.engines.partition import FlatLayout


class Walk:
    """One step of one rank; `highest` has each phase's highest moment, `peak` that of all: the sum, and the terms."""

    def __init__(self, plan: Plan, flats: Iterable[FlatLayout], series: list[Mark]) -> None:
        from zerolab.engines.residency import Order  # whose package needs torch; who has flats has it already

        self.plan, self.series = plan, series
        used = {mark.name for mark in series if mark.kind == "grad"}
        pieces = [piece_of(flat, plan, used) for flat in flats]
        self.trainable = [piece for piece in pieces if not piece.layout.frozen]
        # Marks speak of parameters and of units, so both lead to their flats.
        self.piece_of = {slot.name: piece for piece in pieces for slot in piece.layout.slots}
        self.units: dict[str, list[Piece]] = {}
        for piece in pieces:
            self.units.setdefault(piece.layout.unit, []).append(piece)
        # What is held whatever happens; all else is added where it comes to be and subtracted where it goes.
        self.now = Counter(
            parameters=sum(piece.resident for piece in pieces),
            optimizer_state=sum(piece.state for piece in pieces),
            batches=plan.batch_bytes,
        )
        self.forward_order, self.backward_order = Order(plan.prefetch), Order(plan.prefetch)
        self.whole: set[Piece] = set()
        self.arriving: set[Piece] = set()
        self.owes: Counter[str] = Counter()
        self.after_half: dict[str, list[str]] = {}
        self.to_reduce: list[Piece] = []
        self.in_flight: Piece | None = None
        self.phase = ""
        self.forget()

    def step(self) -> None:
        """One training step: forward and backward of every micro-batch, then the update."""
        self.forget()
        # All but the last lie inside `accumulate()`: a stage that keeps whole gradients reduces in the last alone.
        for number in range(self.plan.micro_batches):
            self.forward_and_backward(adds=number > 0, is_last=number == self.plan.micro_batches - 1)
        self.update()

    def forget(self) -> None:
        """Searches the highest moments again from here on."""
        self.highest: dict[str, tuple[int, Counter[str]]] = {}
        self.peak: tuple[int, Counter[str]] = 0, Counter()

    def look(self, **passing: int) -> None:
        """Notes this moment, with what only passes, if it is the highest so far."""
        total = sum(self.now.values()) + sum(passing.values())
        # Of equal moments the first counts, as in the ledger, so that both have the same terms.
        before, _ = self.highest.get(self.phase, (-1, None))
        if total > before:
            moment = total, self.now + Counter(passing)
            self.highest[self.phase] = moment
            if total > self.peak[0]:
                self.peak = moment

    def enter(self, phase: str) -> None:
        """From here on it is another phase, this moment included."""
        self.phase = phase
        self.look()

    @contextmanager
    def within(self, phase: str) -> Iterator[None]:
        """A collective is started or waited for; afterwards the phase goes on that it interrupted."""
        before = self.phase
        self.enter(phase)
        yield
        self.enter(before)

    # A unit is made whole, and released again; in the other stages nothing is gathered.

    def start_gather(self, piece: Piece) -> None:
        """Makes room and starts to fill it."""
        # Fetched early and used later, or used twice in a forward: memory is taken once.
        if piece not in self.whole:
            self.whole.add(piece)
            self.now["gathered_units"] += piece.whole
            self.look()
            # Other stages have their units whole from the start, so for them nothing is on its way.
            if self.plan.stage == "zero3":
                self.arriving.add(piece)
                with self.within("gather"):
                    pass

    def gather(self, unit: str) -> None:
        """Waits until the unit is whole."""
        for piece in self.units.get(unit, ()):
            self.start_gather(piece)
            self.arrive(piece)

    def arrive(self, piece: Piece) -> None:
        """Waits for what is on its way."""
        if piece in self.arriving:
            self.arriving.discard(piece)
            with self.within("gather"):
                pass

    def gather_ahead(self, units: list[str]) -> None:
        """Starts gathering what comes next."""
        for unit in units:
            for piece in self.units.get(unit, ()):
                self.start_gather(piece)

    def release(self, unit: str) -> None:
        """Gives a unit's memory back."""
        for piece in self.units.get(unit, ()):
            # Memory that a transport still writes into must not be given back, so even an unused unit is waited for.
            self.arrive(piece)
            if piece in self.whole:
                self.whole.discard(piece)
                self.now["gathered_units"] -= piece.whole

    def release_if_done(self, unit: str) -> None:
        """Releases a unit that owes no gradient any more."""
        # It is needed for each input whose gradient it still has to give, and for each weight whose own is open.
        if not self.owes[unit] > 0 and not any(piece.awaited for piece in self.units.get(unit, ())):
            self.release(unit)

    # What the marks mean to an engine.

    def forward_and_backward(self, *, adds: bool, is_last: bool) -> None:
        """One micro-batch; `adds`: there are gradients already, and autograd adds to those that were not reduced."""
        self.reduces = is_last or self.plan.adds_up_in_shards
        widened = any(piece.is_widened for piece in self.trainable)
        self.adds = adds and not self.plan.adds_up_in_shards and not widened
        self.now["activations"] = 0
        self.enter("forward")
        # Each micro-batch is a pass of its own: what is expected next is told from the pass before, not from the step.
        self.forward_order.begin()
        self.backward_order.begin()
        # Which gradients will come is known from the plain run; an engine knows it from what autograd can reach.
        for mark in self.series:
            if mark.kind == "grad":
                self.piece_of[mark.name].awaited.add(mark.name)
        self.to_reduce = self.trainable[::-1] if self.reduces or widened else []
        for mark in self.series:
            # First the highest since the mark before, beside what is held until now; only then does the engine act.
            self.compute(mark.highest, mark.highest_arriving)
            self.compute(mark.live, mark.live_arriving)
            getattr(self, f"on_{mark.kind}")(mark)
            self.look()

    def compute(self, activations: int, arriving: int) -> None:
        """The model's own bytes are these now. What will be added to an older gradient stays a temporary."""
        self.now["activations"] = activations + arriving * self.adds
        self.now["arriving_gradients"] = arriving * (not self.adds)
        self.look()

    def on_use(self, mark: Mark) -> None:
        """A unit's forward begins."""
        self.gather(mark.name)
        self.gather_ahead(self.forward_order.use(mark.name))
        self.owes[mark.name] += mark.awaiting

    def on_done(self, mark: Mark) -> None:
        """Its forward has ended."""
        if self.plan.release_after_forward:
            self.release(mark.name)

    def on_again(self, mark: Mark) -> None:
        """Its forward runs once more, within backward."""
        self.gather(mark.name)

    def on_loss(self, mark: Mark) -> None:
        """Autograd begins."""
        self.enter("backward")

    def on_back(self, mark: Mark) -> None:
        """The gradient of its output has come."""
        pieces = self.units.get(mark.name, ())
        # A unit that is whole already was kept for another use, or is used a second time: it asks for nothing ahead.
        if all(piece in self.whole and piece not in self.arriving for piece in pieces):
            return
        self.gather(mark.name)
        # The next unit is not fetched at once, as in forward: until half of this one's gradients are there, a
        # reduction is in flight whose memory comes free then.
        self.after_half[mark.name] = self.backward_order.use(mark.name)
        if not any(piece.awaited for piece in pieces):
            self.gather_ahead(self.after_half.pop(mark.name))

    def on_grad(self, mark: Mark) -> None:
        """A parameter's gradient is finished."""
        piece = self.piece_of[mark.name]
        piece.awaited.discard(mark.name)
        if not self.adds:  # else it was added to the one of an earlier micro-batch
            self.now["incoming_gradients"] += mark.nbytes
            piece.incoming += mark.nbytes
        self.look()
        # Half of the flat's gradients are there: the reduction before ends and makes room for the unit that is next.
        if 2 * sum(self.numel(name) for name in piece.awaited) <= piece.layout.numel:
            self.finish()
            expected = self.after_half.pop(piece.layout.unit, [])
            self.gather_ahead([unit for unit in expected if unit not in self.backward_order.now])
        self.reduce_what_is_ready()

    def on_gave(self, mark: Mark) -> None:
        """The unit has given an input its gradient."""
        self.owes[mark.name] -= 1
        self.release_if_done(mark.name)
        self.reduce_what_is_ready()

    def on_end(self, mark: Mark) -> None:
        """Autograd is done; what no gradient came for is reduced too, as zeros."""
        while self.to_reduce:
            self.start(self.to_reduce.pop(0))
        self.finish()
        self.owes.clear()
        self.after_half.clear()
        for unit in self.units:
            self.release(unit)

    def numel(self, name: str) -> int:
        """Elements of a parameter."""
        return next(slot.stop - slot.start for slot in self.piece_of[name].layout.slots if slot.name == name)

    # One reduction in flight.

    def reduce_what_is_ready(self) -> None:
        """Starts the reductions whose turn it is."""
        while self.to_reduce and not self.to_reduce[0].awaited:
            # The unit still has to give an input its gradient and stays whole: gradients would be laid out beside it.
            if self.plan.stage == "zero3" and self.owes[self.to_reduce[0].layout.unit] > 0:
                return
            self.start(self.to_reduce.pop(0))

    def start(self, piece: Piece) -> None:
        """Lays a flat's gradients end to end, and starts to reduce them."""
        self.finish()
        # For a moment the gradients exist twice: as autograd left them, and laid end to end. Often this is the peak.
        self.now["gradients"] += piece.gradient * (not piece.is_laid_out)
        self.look()
        self.now["incoming_gradients"] -= piece.incoming
        piece.incoming, piece.is_laid_out = 0, True
        if not self.reduces:  # a micro-batch that was only added, in `reduce_dtype`
            return
        if self.plan.stage == "zero3":
            self.release_if_done(piece.layout.unit)
        with self.within("reduce"):
            self.now["receive_buffers"] += piece.received
            self.look()
        self.in_flight = piece
        if not self.plan.overlap:
            self.finish()

    def finish(self) -> None:
        """The reduction in flight is over; what the stage keeps stays."""
        piece, self.in_flight = self.in_flight, None
        if piece is None:
            return
        with self.within("reduce"):
            self.now["receive_buffers"] -= piece.received
        # The N of `gradient / N` is two tensors for a moment, 12 bytes in fp32; without them no peak fits to the byte.
        if not self.plan.adds_up_in_shards:  # the mean is a part of the gradient
            self.look(numbers=piece.number)
            return
        if piece.has_mean:  # of earlier micro-batches: this one is added to it
            self.look(new_mean=piece.mean, numbers=piece.number)
        else:
            self.now["gradients"] += piece.mean
            self.look(numbers=piece.number)
        self.now["gradients"] -= piece.gradient
        piece.has_mean, piece.is_laid_out = True, False

    # The update.

    def update(self) -> None:
        """AdamW on the CPU, one flat after the other, then what the stage sends to the others."""
        self.enter("step")
        # All copies are made before the first flat is updated, so they add up.
        for piece in self.trainable:
            self.now["gradients"] += piece.copied
            self.look()
        for group in self.groups():
            before = 0
            for piece in group:
                for part in piece.parts:
                    # `(v.sqrt() / c).add_(eps)`: two temporaries, and the part before still has one in a variable.
                    numbers = FLOAT64 + piece.updated // self.owned(piece)
                    self.look(update_temporaries=before + 2 * part, numbers=numbers)
                    before = part
        # `zero_grad` at the end of the step, so the next one begins with state alone.
        self.now["gradients"] = self.now["incoming_gradients"] = 0
        for piece in self.trainable:
            piece.incoming, piece.has_mean, piece.is_laid_out = 0, False, False
        if self.plan.stage in ("zero1", "zero2"):
            self.enter("gather")

    def groups(self) -> Iterator[list[Piece]]:
        """The flats in the order in which the optimizer updates them; those that no group claims come last."""
        numbers = sorted({piece.layout.group for piece in self.trainable if piece.layout.group is not None})
        for number in (*numbers, None):
            yield [piece for piece in self.trainable if piece.layout.group == number]

    def owned(self, piece: Piece) -> int:
        """Elements that this rank updates."""
        return piece.layout.padded if self.plan.stage == "ddp" else piece.layout.shard_numel
