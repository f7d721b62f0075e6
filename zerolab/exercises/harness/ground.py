"""The ground on which an answer runs, on every rank: a small model in one flat, its batches, and a watch on optimizers.

What the ground notes, it notes outside of torch (as numpy arrays), so that it does not weigh in the recording.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from numpy.typing import NDArray
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from zerolab.engines.flat import Holding
from zerolab.engines.partition import partition
from zerolab.exercises.harness.guard import finished_engines_out_of_reach
from zerolab.exercises.harness.limit import at_most
from zerolab.recording.recorder import announce

Array = NDArray[Any]  # of float32
STEPS = 2  # Adam's memory exists from the second on
LEARNING_RATE = 0.5  # of SGD: large, so that a wrong mean moves the weights far
MOMENTUM = 0.9  # of SGD: an optimizer that is made anew in each turn shows in the weights
OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": partial(torch.optim.SGD, lr=LEARNING_RATE, momentum=MOMENTUM),
    "adam": partial(torch.optim.Adam, lr=1e-3),
}


@dataclass(frozen=True, slots=True)
class Plan:
    """What one check draws at random: the model's widths, the rows a rank gets, and the seed of weights and batches."""

    seed: int
    widths: tuple[int, ...]
    rows: int


@dataclass(slots=True)
class Given:
    """What an optimizer was given in one update: elements `[start, stop)` of the flat and their gradient.

    `start` is -1 for a tensor that does not lie in the flat: a copy.
    """

    step: int
    start: int
    stop: int
    gradient: Array


@dataclass(slots=True)
class Noted:
    """What the ground saw of one training run on one rank."""

    given: list[Given] = field(default_factory=list)
    weights: list[Array] = field(default_factory=list)  # after each turn
    turns: int = 0
    returned: str = "None"  # the type's name


class Ground:
    """A model whose parameters are views of one flat of `world_size` equal parts, and its gradients of another.

    To a recorder it is what an engine is, so that the picture of an answer shows who holds which span.
    """

    def __init__(self, plan: Plan, world_size: int, rank: int, stage: str = "ddp") -> None:
        self.plan, self.rank, self.stage = plan, rank, stage
        self.model = build(plan)
        (self.layout,) = partition(self.model, world_size, units=[])
        self.parameters = torch.zeros(self.layout.padded)
        self.gradient = torch.zeros(self.layout.padded)
        for slot, parameter in zip(self.layout.slots, self.model.parameters(), strict=True):
            self.parameters[slot.start : slot.stop] = parameter.detach().reshape(-1)
            parameter.data = self.parameters[slot.start : slot.stop].view(slot.shape)
            parameter.grad = self.gradient[slot.start : slot.stop].view(slot.shape)
        self.flats = [SimpleNamespace(layout=self.layout, whole=self.parameters)]
        self.optimizer: torch.optim.Optimizer | None = None  # the last that made an update

    def holdings(self) -> Iterator[Holding]:
        """What this rank holds of the model's state, as an engine would say it; seen from outside of the answer."""
        name, everything = self.layout.name, (0, self.layout.padded)
        yield Holding("parameters", name, everything, self.parameters)
        yield Holding("gradients", name, everything, self.gradient)
        for tensor, state in self.optimizer.state.items() if self.optimizer is not None else ():
            start, stop = self.place(tensor)
            for value in (value for value in state.values() if isinstance(value, torch.Tensor)):
                yield Holding(
                    "optimizer_state", name, (start, stop) if value.numel() == stop - start else (0, 0), value
                )

    def compute_gradient(self, step: int, rank: int) -> None:
        """Fills `gradient` with the gradient of one rank's batch."""
        self.gradient.zero_()
        inputs, targets = batch(self.plan, step, rank)
        nn.functional.mse_loss(self.model(inputs), targets).backward()

    def turns(self, steps: int, noted: Noted) -> Iterator[torch.Tensor]:
        """What the learner iterates over: in each turn forward and backward, then this rank's gradient."""
        for step in range(steps):
            self.compute_gradient(step, self.rank)
            noted.turns += 1
            yield self.gradient
            noted.weights.append(self.parameters.numpy().copy())

    def place(self, tensor: torch.Tensor) -> tuple[int, int]:
        """Where a tensor lies in the flat, in elements; (-1, -1) if it lies elsewhere."""
        if tensor.untyped_storage().data_ptr() != self.parameters.untyped_storage().data_ptr():
            return -1, -1
        start = int(tensor.storage_offset())
        return start, start + tensor.numel()


def trial(answer: Callable[..., Any], plan: Plan, optimizer: str, stage: str, seconds: float) -> Noted:
    """Runs the answer on this rank: under SGD, which shows each wrong factor, or under Adam, which takes memory.

    Raises OutOfTime if the answer has not ended after so many seconds.
    """
    world_size, rank = torch.distributed.get_world_size(), torch.distributed.get_rank()
    ground, noted = Ground(plan, world_size, rank, stage), Noted()
    announce(ground)
    with finished_engines_out_of_reach(answer), _watched_optimizers(ground, noted), at_most(seconds):
        turns = ground.turns(STEPS, noted)
        returned = answer(ground.parameters, turns, OPTIMIZERS[optimizer], rank, world_size)
    noted.returned = type(returned).__name__ if returned is not None else "None"
    return noted


@contextmanager
def _watched_optimizers(ground: Ground, noted: Noted) -> Iterator[None]:
    def note(optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
        ground.optimizer = optimizer
        for tensor in (tensor for group in optimizer.param_groups for tensor in group["params"]):
            if tensor.grad is not None:
                noted.given.append(Given(noted.turns, *ground.place(tensor), tensor.grad.numpy().copy()))

    handle = register_optimizer_step_pre_hook(note)
    try:
        yield
    finally:
        handle.remove()


def build(plan: Plan) -> nn.Module:
    """The model that a plan draws: an MLP, the same on every rank."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(plan.seed)
        layers = [nn.Linear(width, wider) for width, wider in zip(plan.widths, plan.widths[1:], strict=False)]
    return nn.Sequential(*(module for layer in layers for module in (layer, nn.Tanh())))


def batch(plan: Plan, step: int, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    """One rank's batch of one step: inputs [rows, first width] and targets [rows, last width]."""
    generator = torch.Generator().manual_seed(plan.seed + 1000 * step + rank + 1)
    inputs = torch.randn(plan.rows, plan.widths[0], generator=generator)
    return inputs, torch.randn(plan.rows, plan.widths[-1], generator=generator)
