"""Exercises whose answer trains: a loop over one flat or over units, or an engine; judged beside DDP."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from zerolab.exercises.harness import recorded, rungs, values
from zerolab.exercises.harness.reference import run_reference
from zerolab.exercises.harness.targets import Judgement, Run, Targets
from zerolab.exercises.harness.testbed import STEPS, Noted, Setup, draw
from zerolab.exercises.harness.trials import SHAPES, RunConfig, train
from zerolab.recording.events import RankRecording

if TYPE_CHECKING:
    from zerolab.exercises.harness.exercise import Exercise
    from zerolab.recording.recording import Recording


@dataclass(frozen=True, kw_only=True)
class TrainingTargets(Targets):
    """What a training answer must reach.

    Args:
        stage: which stage the answer is; its formula stands beside the picture.
        shape: how the answer is called, and what it trains: a key of `trials.SHAPES`.
        returns: what the function returns, in words.
        shards: the categories that are divided by N; the others are whole on every rank. Sets state bytes and peak.
        collectives: the collectives of one step over one flat, in order. Sets the volume too.
        value: largest difference allowed between the gradients that the optimizer gets and the mean over ranks.
        weights: largest difference allowed between the weights and those of DDP under SGD with momentum.
        scratch_shards: how many shards of the largest flat may lie about beside the state.
        batches: what the batches are like; see `testbed.Setup`.
        rung: which of the three rungs of ZeRO-3 the answer is; a key of `rungs.RUNGS`.
    """

    stage: str
    returns: str
    shards: tuple[str, ...]
    collectives: tuple[str, ...]
    shape: str = "flat"
    value: float = 1e-6
    weights: float = 1e-6
    scratch_shards: int = 1
    batches: str = "even"
    rung: str = ""

    def __post_init__(self) -> None:
        if self.shape not in SHAPES:
            raise ValueError(f"there is no shape {self.shape!r}: choose one of {', '.join(SHAPES)}")

    def setup(self, seed: int, world_size: int) -> Setup:
        """What is drawn for one check on so many ranks."""
        return draw(seed, world_size, self.shape not in ("flat", "rows"), self.batches)

    def runs(self, exercise: "Exercise", world_size: int, seed: int, seconds: float) -> Iterator[Run]:
        """Two runs on the same batches: under SGD for the values, under Adam for memory and traffic."""
        setup = self.setup(seed, world_size)
        parts = (rungs.beside(self.rung), rungs.ours(self.rung)) if self.rung else ({}, {})

        def run(optimizer: str, judge: Callable[["Recording"], Iterator[Judgement]]) -> Run:
            ours = RunConfig(self.shape, optimizer, self.stage, parts[1])
            yours = replace(ours, beside=parts[0], looks_outside=optimizer == "adam")  # which memory is judged under
            given = [(setup, config, self.forbids, seconds) for config in (yours, ours)]
            return Run(train, given[0], judge, ours=given[1], aside=rungs.in_words(parts[0]) if self.rung else "")

        yield run("sgd", lambda recording: self._judge_values(exercise, recording, setup))
        yield run("adam", lambda recording: self._judge_memory(recording, setup))

    def _judge_values(self, exercise: "Exercise", recording: "Recording", setup: Setup) -> Iterator[Judgement]:
        yield "waits", next(filter(None, map(recorded.judge_waits, recording.ranks)), "")
        noted: list[Noted] = recording.results or []
        reference = run_reference(setup, recording.world_size)
        if self.rung == "forward":
            yield "outputs", values.judge_outputs(noted, reference, self.value)
        # Only where the parameters are shards may the optimizer update memory that is not the flats' own.
        copies = self.shape == "engine" or "parameters" in self.shards
        scatters = [any(made.op == "reduce_scatter" for made in recorded.started(rank)) for rank in recording.ranks]
        value, weights = values.judge_training(noted, scatters, reference, self.value, self.weights, copies=copies)
        yield "value", value
        yield "weights", weights
        yield "return", values.judge_returned(noted, self.returns, exercise.name)

    def _judge_memory(self, recording: "Recording", setup: Setup) -> Iterator[Judgement]:
        layouts = setup.layouts(setup.build(), recording.world_size)
        padded = [layout.padded for layout in layouts]
        # Each layer's inputs, outputs, and their gradients.
        activations = 8 * recorded.FP32 * setup.most_rows * sum(setup.widths)
        budget = recorded.Budget(
            padded,
            recording.world_size,
            self.shards,
            # A shard of scratch that a new one takes the place of is there twice for a moment. On more ranks more lies
            # about in backward; on one it is the most.
            self.scratch_shards + (recording.world_size == 1),
            activations,
            batch=recorded.FP32 * setup.most_rows * (setup.widths[0] + setup.widths[-1]),
        )

        def on_ranks(judge: Callable[[RankRecording], str]) -> str:
            return next(filter(None, map(judge, recording.ranks)), "")

        in_steps = self.shape == "engine"
        yield "state", on_ranks(lambda rank: recorded.judge_state(rank, budget))
        outside = [noted.outside for noted in recording.results or []]
        apart = next(
            filter(None, (recorded.judge_outside(rank, most, budget) for rank, most in enumerate(outside))), ""
        )
        yield "peak", on_ranks(lambda rank: recorded.judge_peak(rank, budget)) or apart
        made = on_ranks(
            lambda rank: recorded.judge_collectives(rank, budget, self.collectives, STEPS, in_steps=in_steps)
        )
        yield "collectives", made or recorded.judge_order(recording.ranks)
