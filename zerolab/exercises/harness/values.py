"""Judges what a training answer computed: the gradients that its optimizer got, and the weights that came out."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate, pairwise, product

import numpy as np

from zerolab.exercises.harness.reference import Reference
from zerolab.exercises.harness.testbed import Array, Given, Noted


@dataclass(frozen=True, slots=True)
class Step:
    """One step of one rank, counted from 0, beside what DDP does in it; `scatters`: whether it used reduce_scatter."""

    reference: Reference
    number: int
    rank: int
    scatters: bool

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return len(self.reference.local[self.number])

    @property
    def units(self) -> list["Shard"]:
        """The flats, each with this rank's shard of it."""
        layouts = self.reference.layouts
        edges = pairwise(accumulate((layout.padded for layout in layouts), initial=0))
        prefixes = [f"unit {layout.name}: " if len(layouts) > 1 else "" for layout in layouts]
        return [
            Shard(prefix, start, stop, (stop - start) // self.world_size, self.rank)
            for prefix, (start, stop) in zip(prefixes, edges, strict=True)
        ]

    @property
    def before(self) -> Array:
        """DDP's weights before the step."""
        return self.reference.weights[self.number - 1] if self.number else self.reference.initial


@dataclass(frozen=True, slots=True)
class Shard:
    """A rank's shard of the flat `[start, stop)`; `prefix` names the flat where there are several."""

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
    """Empty if what was asked for came back from every rank."""
    said = (f"returned {seen.returned} on rank {rank}" for rank, seen in enumerate(noted) if seen.returned)
    return next((f"`{name}` {each}; it should return {wanted}." for each in said), "")


def judge_outputs(noted: list[Noted], reference: Reference, tolerance: float) -> str:
    """Empty if what a rung's forward gave in each step is what the model gives."""
    for number, outputs in enumerate(reference.outputs):
        for rank, seen in enumerate(noted):
            given, wanted = seen.outputs[number : number + 1], outputs[rank].reshape(-1)
            if given and not _close(given[0], wanted, tolerance):
                return f"rank {rank}, step {number + 1}: the outputs {_explain_outputs(given[0], wanted)}"
    return ""


def _explain_outputs(given: Array, wanted: Array) -> str:
    if np.isnan(given).any():
        return (
            "are NaN: memory was read that nobody had filled. `all_gather` sends what stands at this rank's place in "
            "the flat, so copy `unit.mine` there before."
        )
    return f"differ from the model's by up to {np.abs(given - wanted).max():.2g}."


def judge_training(
    noted: list[Noted],
    scatters: list[bool],
    reference: Reference,
    value_tolerance: float,
    weights_tolerance: float,
    *,
    copies: bool,
) -> tuple[str, str]:
    """What is wrong with the gradients, and what with the weights, at the first step where either is; else empty.

    Step by step, because wrong weights make all later gradients wrong too. `scatters` says which ranks have used
    `reduce_scatter`. `copies` allows the optimizer to update only what is no memory of the flats: they are given back.
    """
    for number in range(len(reference.local)):
        steps = [Step(reference, number, rank, scatters[rank]) for rank in range(len(noted))]
        # Whose shards are updated comes first: where one rank takes another's, all ranks' gradients are wrong for it.
        judges = (
            lambda given, step: _judge_places(given, step, copies=copies),
            lambda given, step: _judge_gradients(given, step, value_tolerance),
        )
        for judge, (step, seen) in product(judges, zip(steps, noted, strict=True)):
            why = judge(seen.given, step)
            if why:
                return f"rank {step.rank}, step {number + 1}: {why}", ""
        for step, seen in zip(steps, noted, strict=True):
            if len(seen.weights) <= number:
                return "", f"rank {step.rank} left the loop in step {number + 1} of {len(reference.local)}."
            why = _judge_weights(seen.weights[number], step, weights_tolerance)
            if why and not copies and any(not entry.in_place for entry in seen.given):
                why = f"{why} The optimizer updates a copy, so the model stays as it is until you copy the result back."
            if why:
                return "", f"rank {step.rank}, after step {number + 1}: {why}"
    return "", ""


def _judge_places(everything: list[Given], step: Step, *, copies: bool) -> str:
    """What is wrong with which parameters an optimizer updates in one step, out of all updates."""
    given = [entry for entry in everything if entry.step == step.number + 1]
    # Looking at all steps tells a loop that collects its gradients from one that never updates.
    if not given and any(entry.step > step.number + 1 for entry in everything):
        return (
            "the optimizer made no update before it took the next gradient: each is to be used, and then the next one "
            "computed."
        )
    if not given:
        return "the optimizer made no update. Was `step()` called, with a gradient in `grad`?"
    if any(entry.start < 0 for entry in given):
        return (
            "the optimizer updates a copy of nobody's shard: its tensor is not memory of `parameters`, nor began as a "
            "copy of one of its shards."
        )
    return next(filter(None, (_judge_place(given, step, shard, copies=copies) for shard in step.units)), "")


def _judge_place(given: list[Given], step: Step, shard: Shard, *, copies: bool) -> str:
    """The same of one flat."""
    here = [entry for entry in given if shard.has(entry.start)]
    if not _covers(here, shard.own):
        updated = ", ".join(str(number) for number in sorted({(e.start - shard.start) // shard.size for e in here}))
        own = f"elements {shard.own.start - shard.start} to {shard.own.stop - shard.start - 1}"
        what = f"updates shard {updated}" if here else "updates nothing"
        return f"{shard.prefix}the optimizer {what}; this rank owns shard {step.rank}, {own}."
    if copies and step.world_size > 1 and any(e.in_place and e.stop - e.start > shard.size for e in here):
        return f"{shard.prefix}the optimizer updates the whole flat; it must update your copy of shard {step.rank}."
    return ""


def _judge_gradients(everything: list[Given], step: Step, tolerance: float) -> str:
    """What is wrong with the gradients that an optimizer was given in one step, and with how often."""
    given = [entry for entry in everything if entry.step == step.number + 1]
    for shard in step.units:
        here = (entry for entry in given if shard.has(entry.start))
        why = next(filter(None, (_judge_gradient(entry, step, shard, tolerance) for entry in here)), "")
        if why:
            return f"{shard.prefix}the optimizer {why}"
    # Each gradient may be right and the update still be made too often: momentum then counts it more than once.
    times = max(Counter(entry.start for entry in given).values())
    if times > 1:
        return f"optimizer.step() was called {times} times; once is due in a step, after the last gradient has come."
    return ""


def _covers(given: list[Given], own: slice) -> bool:
    return all(any(entry.start <= place < entry.stop for entry in given) for place in (own.start, own.stop - 1))


def _judge_gradient(entry: Given, step: Step, shard: Shard, tolerance: float) -> str:
    span, mean, gradient = slice(entry.start, entry.stop), step.reference.mean(step.number), entry.gradient
    if _close(gradient, mean[span], tolerance):
        return ""
    for meaning, mistaken in _mistakes(step):
        if _close(gradient, mistaken[span], tolerance):
            return f"got {meaning}."
    # The right numbers for the wrong rank: an index that is off shows as another shard's mean.
    for other in range(step.world_size):
        if _close(gradient, mean[shard.of(other)], tolerance):
            return f"got the mean gradient of shard {other}, for the parameters of shard {step.rank}."
    return _explain_gradient(entry, step, shard, tolerance)


def _explain_gradient(entry: Given, step: Step, shard: Shard, tolerance: float) -> str:
    """What is wrong with a gradient that no mistake gives as it is."""
    span, mean, gradient = slice(entry.start, entry.stop), step.reference.mean(step.number), entry.gradient
    if gradient.shape != mean[span].shape:
        return f"got a gradient of {gradient.size} elements for {entry.stop - entry.start} parameters."
    right = {
        rank: bool((np.abs(gradient - mean[span])[places] <= tolerance).all())
        for rank in range(step.world_size)
        if (places := _within(span, shard.of(rank))).any()
    }
    # Without a `reduce_scatter` the others are wrong for another reason.
    if step.scatters and len(right) > 1 and [rank for rank in right if right[rank]] == [step.rank]:
        return (
            f"got the mean in shard {step.rank} alone: after `reduce_scatter` no other shard of a rank's tensor is the "
            "sum."
        )
    if np.isnan(gradient).any():
        return (
            "got a gradient that differs from the mean over all ranks: NaN is in it. Was memory read that nobody had "
            "filled?"
        )
    difference = np.abs(gradient - mean[span]).max()
    return f"got a gradient that differs from the mean over all ranks by up to {difference:.2g}."


def _within(span: slice, shard: slice) -> Array:
    """Which of the elements of a span are a shard's."""
    places = np.arange(span.start, span.stop)
    own: Array = (places >= shard.start) & (places < shard.stop)
    return own


def _mistakes(step: Step) -> Iterator[tuple[str, Array]]:
    """The gradients that a mistake gives, each with its name."""
    mean, local = step.reference.mean(step.number), step.reference.local[step.number][step.rank]
    yield from _mistakes_with_rows(step)
    everything = mean * step.world_size
    yield "the sum of all ranks' gradients, not their mean: divide by `world_size`", everything
    fixed = f"or the sum of all ranks' gradients divided by a fixed {step.world_size**2}"
    yield f"the mean divided by `world_size` once too often, {fixed}", mean / step.world_size
    for number in range(2, 9):
        yield f"the sum of all ranks' gradients divided by {number}, not by `world_size`", everything / number
    yield "this rank's own gradient: nothing came from the others", local
    yield "this rank's own gradient divided by `world_size`: nothing came from the others", local / step.world_size
    yield "a gradient of zeros", np.zeros_like(mean)
    yield (
        "the sum of all ranks' gradients, of which only this rank's own had been divided: divide after `wait()`",
        everything - local + local / step.world_size,
    )
    yield (
        "a gradient that was reduced twice: the second time the sum was one of the terms",
        (mean + everything - local) / step.world_size,
    )
    for number in range(step.number):
        yield "the mean gradient of the step before: set `grad` in each step", step.reference.mean(number)
        yield (
            "the sum of this step's gradient and of the one before: begin each step anew",
            mean + (step.reference.mean(number)),
        )


def _mistakes_with_rows(step: Step) -> Iterator[tuple[str, Array]]:
    """The gradients that a mistake gives where ranks have more rows or fewer."""
    local, rows = np.stack(step.reference.local[step.number]), step.reference.rows[step.number]
    if all(len(set(each)) == 1 for each in step.reference.rows):
        return
    by_rows, own = np.average(local, axis=0, weights=rows) * sum(rows), rows[step.rank]
    yield (
        "the mean over ranks, in which a rank with few rows weighs as much as one with many: weigh each by its rows",
        local.mean(axis=0),
    )
    yield "the sum over all rows, not their mean: divide by the rows of all ranks", by_rows
    yield (
        "the sum over all rows divided by the number of ranks: divide by the rows of all ranks",
        by_rows / step.world_size,
    )
    yield (
        "the sum of all ranks' gradients, all weighed by this rank's rows: weigh each by those of its own rank",
        local.sum(axis=0) * own / sum(rows),
    )


def _judge_weights(pieces: list[tuple[int, Array]], step: Step, tolerance: float) -> str:
    """What is wrong with a rank's weights after one step, in the pieces that it has."""
    for start, mine in pieces:
        span = slice(start, start + len(mine))
        wanted, before = step.reference.weights[step.number][span], step.before[span]
        if _close(mine, wanted, tolerance):
            continue
        (shard,) = [shard for shard in step.units if shard.has(start)]
        why = f"{shard.prefix}the parameters differ from DDP's by up to {np.abs(mine - wanted).max():.2g}"
        # What this rank owns may be new while the rest is old: then the gather is missing, and not the update.
        others = np.ones(len(mine), dtype=bool)
        others[max(shard.own.start - start, 0) : max(shard.own.stop - start, 0)] = False
        if _close(mine, before, tolerance):
            return f"{why}; they were not updated."
        if step.world_size > 1 and others.any() and _close(mine[others], before[others], tolerance):
            own = "is new" if _close(mine[~others], wanted[~others], tolerance) else "is not DDP's either"
            if _close(mine[~others], _spread(step, shard), tolerance):
                own = "has a part of each rank's in it: `all_gather` was given that shard, and not the whole tensor"
            return f"{why}; the other shards are as old as before the update, and shard {step.rank} {own}."
        if _close(mine, before + (wanted - before) / step.world_size, tolerance):
            return f"{why}; they are the mean of one new copy and of old ones. Bring the owner's shard, as it is."
        # Checked last, since in the first step it is what is right.
        if _close(mine, step.reference.forgetful[step.number][span], tolerance):
            return f"{why}; the optimizer had forgotten the steps before. Make it once, before the loop."
        return f"{why}."
    return "" if pieces else "no parameters are left: none is whole, and no optimizer has a shard."


def _spread(step: Step, shard: Shard) -> Array:
    """What is in a rank's shard where that was gathered in place of the flat: of each rank's shard the rank's part."""
    new, ranks = step.reference.weights[step.number], range(step.world_size)
    return np.concatenate([np.array_split(new[shard.of(rank)], step.world_size)[rank] for rank in ranks])


def _close(one: Array, other: Array, tolerance: float) -> bool:
    return one.shape == other.shape and bool((np.abs(one - other) <= tolerance).all())
