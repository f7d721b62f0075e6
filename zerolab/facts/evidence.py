"""What claims are measured on: real ranks, recordings of them, and simulations, each made once.

An experiment has no numbers of its own: it asks for a recording, reads it, and says what it found.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from zerolab import models, theory
from zerolab.engines import ENGINES, Engine
from zerolab.recording.recording import Recording
from zerolab.runtime.cluster import Cluster
from zerolab.simulation.run import simulate

MODEL = "gpt-tiny"
STEPS = 2  # Adam makes its state in the first, so that is measured in the second
Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class Finding:
    """What an experiment measured, in words, and whether it bears out the verdict of data/claims.toml.

    `verdict` is another one, where it depends on the box.
    """

    measured: str
    borne_out: bool
    verdict: str | None = None


class Evidence:
    """Recordings, answers of a cluster's ranks and simulations, each made when it is first asked for.

    The cluster must stay open. Raises ValueError for one of one rank, which sends nothing.
    """

    def __init__(self, cluster: Cluster) -> None:
        if cluster.world_size < 2:
            raise ValueError("one rank sends nothing and shares nothing: make a Cluster of 2 ranks or more")
        self.cluster = cluster
        self.world_size = cluster.world_size
        self._kept: dict[Any, Any] = {}

    def recording(self, stage: str | type[Engine], **options: Any) -> Recording:
        """`train(stage, **options)` on the ranks, recorded."""
        # Options by their text: some, such as units=[], cannot be hashed.
        key = (stage, *sorted((name, repr(value)) for name, value in options.items()))
        return self._once(key, lambda: self.cluster.record(train, stage, device=self.cluster.device, **options))

    def answers(self, question: Callable[..., Answer], *arguments: Any) -> list[Answer]:
        """What `question(*arguments)` returns on each rank."""
        key = (question, *map(repr, arguments))  # one that was written anew is another question
        return self._once(key, lambda: self.cluster.run(question, *arguments))

    def simulated(self, stage: str, world_size: int, model: str, **options: Any) -> dict[str, Any]:
        """The row of `simulate` for one stage: the same engine file on a fake rank."""
        key = ("simulated", stage, world_size, model, *sorted(options.items()))
        return self._once(key, lambda: simulate(stage, world_size, model, **options).rows[0])

    def _once(self, key: Any, make: Callable[[], Answer]) -> Answer:
        if key not in self._kept:
            self._kept[key] = make()
        kept: Answer = self._kept[key]
        return kept


def train(stage: str | type[Engine], micro_batches: int = 1, *, device: str = "cpu", **options: Any) -> list[float]:
    """Runs on a rank: two steps of AdamW on `gpt-tiny` under `stage`, a key of `ENGINES` or an engine.

    Returns the rank's losses. Before each update the gradients of `micro_batches` add up; `options` are the engine's.
    """
    engine_cls = ENGINES[stage] if isinstance(stage, str) else stage
    engine = engine_cls(models.build(MODEL).to(device), torch.optim.AdamW, lr=1e-3, **options)
    # The same batches in all runs, so that stages can be compared loss by loss.
    every = models.batches(MODEL, dist.get_world_size(), dist.get_rank(), STEPS * micro_batches)
    batches = ((inputs.to(device), targets.to(device)) for inputs, targets in every)
    losses = []
    for _ in range(STEPS):
        for _ in range(micro_batches - 1):
            with engine.accumulate():
                engine.training_step(*next(batches), models.loss)
        losses.append(engine.training_step(*next(batches), models.loss).item())
    return losses


# What is read from a recording.


def bytes_a_parameter(recording: Recording, category: str | None = None) -> float:
    """Bytes of state on rank 0 at the update, divided by Ψ; of one category, or of all three."""
    state = recording.state
    return (sum(state.values()) if category is None else state[category]) / recording.num_params


def passes(recording: Recording) -> float:
    """How often the last step moved the model: bytes that rank 0 sent, in units of 4 (N-1)/N Ψ bytes; fp32 only.

    To three decimals: where N does not divide a unit, its padding is sent too.
    """
    # In units of what the formula says for one pass, in fp32: recordings of other precisions have no passes to count.
    one = theory.traffic_bytes("ddp", recording.num_params, recording.world_size) / 2
    return round(recording.sent / one, 3)


def copies(recording: Recording, category: str) -> float:
    """How many copies of the model's `category` the ranks hold together at the end, to three decimals (padding)."""
    holds = (event for event in recording.events if event.op == "hold" and event.category == category and event.step)
    # Such an event has everything that the rank holds of the unit from then on, so the last one counts.
    held = {(event.rank, event.unit): event.held for event in holds}
    return round(sum(held.values()) / recording.num_params, 3)
