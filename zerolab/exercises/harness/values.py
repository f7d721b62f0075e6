"""Judges what an answer computed: the gradients that its optimizer got, and the weights that came out."""

from collections.abc import Iterator
from dataclasses import dataclass

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
    def part(self) -> int:
        """Elements of one part of the flat."""
        return len(self.reference.initial) // self.world_size

    @property
    def own(self) -> slice:
        """The elements that this rank owns."""
        return slice(self.rank * self.part, (self.rank + 1) * self.part)

    @property
    def before(self) -> Array:
        """DDP's weights before the turn."""
        return self.reference.weights[self.step - 1] if self.step else self.reference.initial


def judge_returned(noted: list[Noted], wanted: str, name: str) -> str:
    """Empty if something came back from every rank."""
    silent = [rank for rank, seen in enumerate(noted) if seen.returned == "None"]
    return f"`{name}` returned nothing on rank {silent[0]}; it should return {wanted}." if silent else ""


def judge_training(
    noted: list[Noted], reference: Reference, value_tolerance: float, weights_tolerance: float
) -> tuple[str, str]:
    """What is wrong with the gradients, and what with the weights, at the first turn where either is; else empty.

    Turn by turn, because wrong weights make all later gradients wrong too.
    """
    for step in range(len(reference.local)):
        turns = [Turn(reference, step, rank) for rank in range(len(noted))]
        for turn, seen in zip(turns, noted, strict=True):
            why = _judge_update(seen.given, turn, value_tolerance)
            if why:
                return f"rank {turn.rank}, turn {step + 1}: the optimizer {why}", ""
        for turn, seen in zip(turns, noted, strict=True):
            if len(seen.weights) <= step:
                return "", f"rank {turn.rank} left the loop in turn {step + 1} of {len(reference.local)}."
            why = _judge_weights(seen.weights[step], turn, weights_tolerance)
            if why:
                return "", f"rank {turn.rank}, after turn {step + 1}: {why}"
    return "", ""


def _judge_update(everything: list[Given], turn: Turn, tolerance: float) -> str:
    """What is wrong with what an optimizer was given in one turn, out of everything that it was given."""
    given = [entry for entry in everything if entry.step == turn.step + 1]
    if not given and any(entry.step > turn.step + 1 for entry in everything):
        return "made no update before it took the next gradient: each is to be used, and then the next one computed."
    if not given:
        return "made no update. Was `step()` called, with a gradient in `grad`?"
    if any(entry.start < 0 for entry in given):
        return "updates a copy: its tensor is not memory of `parameters`, so the model stays as it is."
    if not any(entry.start <= turn.own.start and entry.stop >= turn.own.stop for entry in given):
        parts = ", ".join(str(part) for part in sorted({entry.start // turn.part for entry in given}))
        return (
            f"updates part {parts}; this rank owns part {turn.rank}, elements {turn.own.start} to {turn.own.stop - 1}."
        )
    return next(filter(None, (_judge_gradient(entry, turn, tolerance) for entry in given)), "")


def _judge_gradient(entry: Given, turn: Turn, tolerance: float) -> str:
    span, mean = slice(entry.start, entry.stop), turn.reference.mean(turn.step)
    gradient = entry.gradient.reshape(-1)
    if _close(gradient, mean[span], tolerance):
        return ""
    for meaning, mistaken in _mistakes(turn):
        if _close(gradient, mistaken[span], tolerance):
            return f"got {meaning}."
    for other in range(turn.world_size):
        if _close(gradient, mean[other * turn.part : (other + 1) * turn.part], tolerance):
            return f"got the mean gradient of part {other}, for the parameters of part {turn.rank}."
    difference = np.abs(gradient - mean[span]).max()
    return f"got a gradient that differs from the mean over all ranks by up to {difference:.2g}."


def _mistakes(turn: Turn) -> Iterator[tuple[str, Array]]:
    """The gradients that a mistake gives, each with its name."""
    mean, local = turn.reference.mean(turn.step), turn.reference.local[turn.step][turn.rank]
    yield "the sum of all ranks' gradients, not their mean: divide by `world_size`", mean * turn.world_size
    yield "the mean divided by `world_size` once too often", mean / turn.world_size
    yield "this rank's own gradient: nothing came from the others", local
    yield "this rank's own gradient divided by `world_size`: nothing came from the others", local / turn.world_size
    yield "a gradient of zeros", np.zeros_like(mean)


def _judge_weights(mine: Array, turn: Turn, tolerance: float) -> str:
    """What is wrong with a rank's weights after one turn."""
    wanted = turn.reference.weights[turn.step]
    if _close(mine, wanted, tolerance):
        return ""
    why = f"the parameters differ from DDP's by up to {np.abs(mine - wanted).max():.2g}"
    others = np.ones(len(mine), dtype=bool)
    others[turn.own] = False
    if _close(mine, turn.before, tolerance):
        return f"{why}; they were not updated."
    if turn.world_size > 1 and _close(mine[others], turn.before[others], tolerance):
        return f"{why}; part {turn.rank} is new, the other parts are as old as before the update."
    if _close(mine, turn.reference.forgetful[turn.step], tolerance):
        return f"{why}; the optimizer had forgotten the turns before. Make it once, before the loop."
    return f"{why}."


def _close(one: Array, other: Array, tolerance: float) -> bool:
    return one.shape == other.shape and bool(np.abs(one - other).max(initial=0.0) <= tolerance)
