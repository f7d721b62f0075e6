"""Judges what a training answer computed: the gradients that its optimizer got, and the weights that came out."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate, pairwise

import numpy as np

from zerolab.exercises.harness.ground import Array, Given, Noted
from zerolab.exercises.harness.reference import Reference


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn of one rank, counted from 0, beside what DDP does in it."""

    reference: Reference
    step: int
    rank: int

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return len(self.reference.local[self.step])

    @property
    def units(self) -> list["Part"]:
        """The flats, each with this rank's part of it."""
        layouts = self.reference.layouts
        edges = pairwise(accumulate((layout.padded for layout in layouts), initial=0))
        prefixes = [f"unit {layout.name}: " if len(layouts) > 1 else "" for layout in layouts]
        return [
            Part(prefix, start, stop, (stop - start) // self.world_size, self.rank)
            for prefix, (start, stop) in zip(prefixes, edges, strict=True)
        ]

    @property
    def before(self) -> Array:
        """DDP's weights before the turn."""
        return self.reference.weights[self.step - 1] if self.step else self.reference.initial


@dataclass(frozen=True, slots=True)
class Part:
    """A rank's part of the flat `[start, stop)`; `prefix` names the flat where there are several."""

    prefix: str
    start: int
    stop: int
    size: int
    rank: int

    def of(self, rank: int) -> slice:
        """The elements that a rank owns."""
        return slice(self.start + rank * self.size, self.start + (rank + 1) * self.size)

    @property
    def own(self) -> slice:
        """The elements that this rank owns."""
        return self.of(self.rank)

    def has(self, place: int) -> bool:
        """Whether an element is the flat's."""
        return self.start <= place < self.stop


def judge_returned(noted: list[Noted], wanted: str, name: str) -> str:
    """Empty if something came back from every rank."""
    silent = [rank for rank, seen in enumerate(noted) if seen.returned == "None"]
    return f"`{name}` returned nothing on rank {silent[0]}; it should return {wanted}." if silent else ""


def judge_training(
    noted: list[Noted], reference: Reference, value_tolerance: float, weights_tolerance: float, *, copies: bool
) -> tuple[str, str]:
    """What is wrong with the gradients, and what with the weights, at the first turn where either is; else empty.

    Turn by turn, because wrong weights make all later gradients wrong too. `copies` allows the optimizer to update
    only what is no memory of the flats: they are given back.
    """
    for step in range(len(reference.local)):
        turns = [Turn(reference, step, rank) for rank in range(len(noted))]
        for turn, seen in zip(turns, noted, strict=True):
            why = _judge_update(seen.given, turn, value_tolerance, copies=copies)
            if why:
                return f"rank {turn.rank}, turn {step + 1}: {why}", ""
        for turn, seen in zip(turns, noted, strict=True):
            if len(seen.weights) <= step:
                return "", f"rank {turn.rank} left the loop in turn {step + 1} of {len(reference.local)}."
            why = _judge_weights(seen.weights[step], turn, weights_tolerance)
            if why and not copies and any(not entry.in_place for entry in seen.given):
                why = f"{why} The optimizer updates a copy, so the model stays as it is until you copy the result back."
            if why:
                return "", f"rank {turn.rank}, after turn {step + 1}: {why}"
    return "", ""


def _judge_update(everything: list[Given], turn: Turn, tolerance: float, *, copies: bool) -> str:
    """What is wrong with what an optimizer was given in one turn, out of everything that it was given."""
    given = [entry for entry in everything if entry.step == turn.step + 1]
    # Looking at all steps tells a loop that collects its gradients from one that never updates.
    if not given and any(entry.step > turn.step + 1 for entry in everything):
        return (
            "the optimizer made no update before it took the next gradient: each is to be used, and then the next one "
            "computed."
        )
    if not given:
        return "the optimizer made no update. Was `step()` called, with a gradient in `grad`?"
    if any(entry.start < 0 for entry in given):
        return (
            "the optimizer updates a copy of nobody's part: its tensor is not memory of `parameters`, nor began as a "
            "copy of one of its parts."
        )
    why = next(filter(None, (_judge_part(given, turn, part, tolerance, copies=copies) for part in turn.units)), "")
    # Each gradient may be right and the update still be made too often: momentum then counts it more than once.
    times = max(Counter(entry.start for entry in given).values())
    if not why and times > 1:
        return f"step() was called {times} times; once is due in a turn, after the last gradient has come."
    return why


def _judge_part(given: list[Given], turn: Turn, part: Part, tolerance: float, *, copies: bool) -> str:
    """What is wrong with what an optimizer was given for this rank's part of one flat."""
    here = [entry for entry in given if part.has(entry.start)]
    if not _covers(here, part.own):
        updated = ", ".join(str(number) for number in sorted({(e.start - part.start) // part.size for e in here}))
        own = f"elements {part.own.start - part.start} to {part.own.stop - part.start - 1}"
        what = f"updates part {updated}" if here else "updates nothing"
        return f"{part.prefix}the optimizer {what}; this rank owns part {turn.rank}, {own}."
    if copies and turn.world_size > 1 and any(e.in_place and e.stop - e.start > part.size for e in here):
        return f"{part.prefix}the optimizer updates the whole flat; it must update your copy of part {turn.rank}."
    why = next(filter(None, (_judge_gradient(entry, turn, part, tolerance) for entry in here)), "")
    return f"{part.prefix}the optimizer {why}" if why else ""


def _covers(given: list[Given], own: slice) -> bool:
    return all(any(entry.start <= place < entry.stop for entry in given) for place in (own.start, own.stop - 1))


def _judge_gradient(entry: Given, turn: Turn, part: Part, tolerance: float) -> str:
    span, mean, gradient = slice(entry.start, entry.stop), turn.reference.mean(turn.step), entry.gradient
    if _close(gradient, mean[span], tolerance):
        return ""
    for meaning, mistaken in _mistakes(turn):
        if _close(gradient, mistaken[span], tolerance):
            return f"got {meaning}."
    # The right numbers for the wrong rank: an index that is off shows as another part's mean.
    for other in range(turn.world_size):
        if _close(gradient, mean[part.of(other)], tolerance):
            return f"got the mean gradient of part {other}, for the parameters of part {turn.rank}."
    if gradient.shape != mean[span].shape:
        return f"got a gradient of {gradient.size} elements for {entry.stop - entry.start} parameters."
    if np.isnan(gradient).any():
        return (
            "got a gradient that differs from the mean over all ranks: NaN is in it. Was memory read that nobody had "
            "filled?"
        )
    difference = np.abs(gradient - mean[span]).max()
    return f"got a gradient that differs from the mean over all ranks by up to {difference:.2g}."


def _mistakes(turn: Turn) -> Iterator[tuple[str, Array]]:
    """The gradients that a mistake gives, each with its name."""
    mean, local = turn.reference.mean(turn.step), turn.reference.local[turn.step][turn.rank]
    yield from _mistakes_with_rows(turn)
    everything = mean * turn.world_size
    yield "the sum of all ranks' gradients, not their mean: divide by `world_size`", everything
    fixed = f"or the sum of all ranks' gradients divided by a fixed {turn.world_size**2}"
    yield f"the mean divided by `world_size` once too often, {fixed}", mean / turn.world_size
    for number in range(2, 9):
        yield f"the sum of all ranks' gradients divided by {number}, not by `world_size`", everything / number
    yield "this rank's own gradient: nothing came from the others", local
    yield "this rank's own gradient divided by `world_size`: nothing came from the others", local / turn.world_size
    yield "a gradient of zeros", np.zeros_like(mean)
    yield (
        "the sum of all ranks' gradients, of which only this rank's own had been divided: divide after `wait()`",
        everything - local + local / turn.world_size,
    )
    yield (
        "a gradient that was reduced twice: the second time the sum was one of the terms",
        (mean + everything - local) / turn.world_size,
    )
    for step in range(turn.step):
        yield "the mean gradient of the turn before: set `grad` in each turn", turn.reference.mean(step)
        yield (
            "the sum of this turn's gradient and the turn's before: begin each turn anew",
            mean + (turn.reference.mean(step)),
        )


def _mistakes_with_rows(turn: Turn) -> Iterator[tuple[str, Array]]:
    """The gradients that a mistake gives where ranks have more rows or fewer."""
    local, rows = np.stack(turn.reference.local[turn.step]), turn.reference.rows[turn.step]
    if all(len(set(each)) == 1 for each in turn.reference.rows):
        return
    by_rows, own = np.average(local, axis=0, weights=rows) * sum(rows), rows[turn.rank]
    yield (
        "the mean over ranks, in which a rank with few rows weighs as much as one with many: weigh each by its rows",
        local.mean(axis=0),
    )
    yield "the sum over all rows, not their mean: divide by the rows of all ranks", by_rows
    yield (
        "the sum over all rows divided by the number of ranks: divide by the rows of all ranks",
        by_rows / turn.world_size,
    )
    yield (
        "the sum of all ranks' gradients, weighed by this rank's rows: weigh each before the exchange",
        local.sum(axis=0) * own / sum(rows),
    )


def _judge_weights(pieces: list[tuple[int, Array]], turn: Turn, tolerance: float) -> str:
    """What is wrong with a rank's weights after one turn, in the pieces that it has."""
    for start, mine in pieces:
        span = slice(start, start + len(mine))
        wanted, before = turn.reference.weights[turn.step][span], turn.before[span]
        if _close(mine, wanted, tolerance):
            continue
        (part,) = [part for part in turn.units if part.has(start)]
        why = f"{part.prefix}the parameters differ from DDP's by up to {np.abs(mine - wanted).max():.2g}"
        # What this rank owns may be new while the rest is old: then the gather is missing, and not the update.
        others = np.ones(len(mine), dtype=bool)
        others[max(part.own.start - start, 0) : max(part.own.stop - start, 0)] = False
        if _close(mine, before, tolerance):
            return f"{why}; they were not updated."
        if turn.world_size > 1 and others.any() and _close(mine[others], before[others], tolerance):
            own = "is new" if _close(mine[~others], wanted[~others], tolerance) else "is not DDP's either"
            return f"{why}; the other parts are as old as before the update, and part {turn.rank} {own}."
        if _close(mine, before + (wanted - before) / turn.world_size, tolerance):
            return f"{why}; they are the mean of one new copy and of old ones. Bring the owner's part, as it is."
        # Checked last, since in the first turn it is what is right.
        if _close(mine, turn.reference.forgetful[turn.step][span], tolerance):
            return f"{why}; the optimizer had forgotten the turns before. Make it once, before the loop."
        return f"{why}."
    return "" if pieces else "no parameters are left: none is whole, and no optimizer has a part."


def _close(one: Array, other: Array, tolerance: float) -> bool:
    return one.shape == other.shape and bool((np.abs(one - other) <= tolerance).all())
