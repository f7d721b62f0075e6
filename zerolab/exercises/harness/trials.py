"""How a training answer is called, on every rank: one function for each shape of answer."""

import functools
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from zerolab.exercises.harness.exercise import Text
from zerolab.exercises.harness.guard import finished_answers_out_of_reach
from zerolab.exercises.harness.kept import nothing_lost
from zerolab.exercises.harness.limit import at_most
from zerolab.exercises.harness.outside import memory_outside_of_torch
from zerolab.exercises.harness.plain import kind_of
from zerolab.exercises.harness.rungs import RUNGS, Parts
from zerolab.exercises.harness.settings import settings_restored
from zerolab.exercises.harness.testbed import OPTIMIZERS, STEPS, Noted, Setup, TestBed, as_wide, values_of
from zerolab.exercises.harness.unit import ShardedUnit, Unit
from zerolab.runtime.observers import tell

# Of an engine's methods: what each returns, and an attribute that nothing else has.
RETURNS = {
    "own": ("the tensor that this rank's optimizer updates", "untyped_storage"),
    "reduce": ("the exchange that it has started, for the engine to wait for", "wait"),
}
LossGradient = Callable[[torch.Tensor], torch.Tensor]


class WrongResult(TypeError):
    """A method of an engine gave something else than what is asked of it; the message says all there is to say."""


@dataclass(frozen=True, slots=True)
class RunConfig:
    """How a training answer is run.

    Attributes:
        shape: how it is called; a key of `SHAPES`.
        optimizer: "sgd", which shows each wrong factor, or "adam", which takes memory.
        stage: which stage it is to be.
        beside: of a rung the functions of the others.
        looks_outside: whether what a rank holds outside of torch is noted, which takes time.
    """

    shape: str
    optimizer: str
    stage: str
    beside: Parts = field(default_factory=dict)
    looks_outside: bool = False


def train(
    answer: Callable[..., Any], setup: Setup, config: RunConfig, forbids: tuple[str, ...], seconds: float
) -> Noted:
    """Runs the answer on this rank. Raises OutOfTime if it has not ended after so many seconds."""
    bed = TestBed(setup, dist.get_world_size(), dist.get_rank(), config.stage)
    beside = {rung: part.made() if isinstance(part, Text) else part for rung, part in config.beside.items()}
    with ExitStack() as around:
        around.enter_context(settings_restored())
        around.enter_context(finished_answers_out_of_reach(answer, forbids))
        around.enter_context(bed.watched())
        bed.under_way = around.enter_context(nothing_lost()).under_way
        around.enter_context(at_most(seconds))
        outside = around.enter_context(memory_outside_of_torch(answer, config.looks_outside))
        returned = SHAPES[config.shape](answer, bed, config.optimizer, **beside)
    bed.noted.outside = outside.highest
    bed.noted.returned = _in_words(returned) if config.shape != "engine" else ""
    return bed.noted


def _in_words(returned: Any) -> str:
    """What a loop returned; empty if that is an optimizer, or has one in it."""
    parts = returned.values() if isinstance(returned, dict) else returned
    if hasattr(returned, "step") or (isinstance(returned, (list, tuple, dict)) and not all(map(_in_words, parts))):
        return ""
    return kind_of(returned)


def _flat(answer: Callable[..., Any], bed: TestBed, optimizer: str) -> Any:
    """`answer(parameters, gradients, optimizer_cls, rank, world_size)`: one flat; each step brings its gradient."""
    bed.lay_flats()
    (unit,) = bed.flats
    buffer = unit.begin_gradient()

    def gradients() -> Iterator[torch.Tensor]:
        for step in _steps(bed):
            compute_gradient(bed, unit, buffer, step)
            yield buffer

    return answer(unit.parameters, gradients(), bed.make_optimizer(optimizer), bed.rank, bed.world_size)


def _rows(answer: Callable[..., Any], bed: TestBed, optimizer: str) -> Any:
    """As `flat`, but each step brings (gradient, rows): also a list with the rows of every rank's batch."""
    bed.lay_flats()
    (unit,) = bed.flats
    buffer = unit.begin_gradient()

    def gradients() -> Iterator[tuple[torch.Tensor, list[int]]]:
        for step in _steps(bed):
            compute_gradient(bed, unit, buffer, step)
            yield buffer, [bed.setup.rows_of(step, rank) for rank in range(bed.world_size)]

    return answer(unit.parameters, gradients(), bed.make_optimizer(optimizer), bed.rank, bed.world_size)


def _backward(answer: Callable[..., Any], bed: TestBed, optimizer: str) -> Any:
    """`answer(units, backwards, optimizer_cls, rank, world_size)`: flats; each step is a backward, unit by unit.

    `units` are the units' flats. A backward gives (number, gradient) from the last unit to the first, each gradient as
    soon as it exists, and keeps none; a unit that the batch did not pass through gives none.
    """
    bed.lay_flats()

    def backward(step: int) -> Iterator[tuple[int, torch.Tensor]]:
        inputs, loss_gradient = _batch(bed, step)
        widths, skipped = bed.setup.widths, bed.setup.skipped(step, bed.rank)
        for number, unit in enumerate(bed.flats):
            inputs = as_wide(inputs, widths[number + 1]) if number == skipped else unit.forward(inputs)
        output_gradient = loss_gradient(inputs)
        for number in reversed(range(len(bed.flats))):
            if number == skipped:
                output_gradient = as_wide(output_gradient, widths[number])
                continue
            output_gradient, gradient = bed.flats[number].backward(output_gradient)
            # A generator keeps alive what it has a name for while the answer runs: the gradient could not be freed.
            handed = [gradient]
            del gradient  # only the answer has it from here on
            yield number, handed.pop()

    backwards = (backward(step) for step in _steps(bed))
    parameters = [unit.parameters for unit in bed.flats]
    return answer(parameters, backwards, bed.make_optimizer(optimizer), bed.rank, bed.world_size)


def _units(answer: Callable[..., Any], bed: TestBed, optimizer: str) -> Any:
    """`answer(units, batches, optimizer_cls, rank, world_size)`: the answer runs forward and backward of each unit.

    `units` are `Unit`s. Each step brings (inputs, loss_gradient): a tensor, and a function that gives the gradient of
    the last unit's outputs.
    """
    bed.lay_flats()
    bed.releases = True
    for unit in bed.flats:  # here the answer itself says when a unit is used
        unit.under_way = bed.under_way
    batches = (_batch(bed, step) for step in _steps(bed))
    return answer(list(bed.flats), batches, bed.make_optimizer(optimizer), bed.rank, bed.world_size)


def _rung(answer: Callable[..., Any], bed: TestBed, optimizer: str, **beside: Callable[..., Any]) -> Any:
    """As `units`, in three functions: the answer is one, and `beside` has the other two.

    `forward(units, inputs)` gives the last unit's outputs, `backward(units, output_gradient)` leaves the gradients of
    the shards, `unit.mine`, and `train(units, batches, optimizer_cls, forward, backward)` cuts those and trains.
    """
    (own,) = RUNGS.keys() - beside.keys()
    parts = {own: answer, **beside}

    def forward(units: list[Unit], inputs: torch.Tensor) -> torch.Tensor:
        outputs = parts["forward"](units, inputs)
        if not isinstance(outputs, torch.Tensor):
            raise TypeError(f"`forward` returned {kind_of(outputs)}; it should return the outputs of the last unit")
        wanted = [bed.setup.rows_of(bed.noted.steps - 1, bed.rank), bed.setup.widths[-1]]
        if list(outputs.shape) != wanted:
            raise ValueError(
                f"`forward` returned a tensor of shape {list(outputs.shape)}; the outputs of the last unit are {wanted}"
            )
        if own == "forward":
            bed.noted.outputs.append(values_of(outputs))
        return outputs

    def train(units: list[Unit], batches: Any, optimizer_cls: Any, *_ranks: int) -> Any:
        return parts["train"](units, batches, optimizer_cls, forward, parts["backward"])

    return _units(train, bed, optimizer)


def _sharded(answer: Callable[..., Any], bed: TestBed, optimizer: str) -> Any:
    """As `units`, but each is a `ShardedUnit`: released, with this rank's shard at `mine` and a `gather()`."""
    bed.lay_flats()
    bed.releases = True
    units = [ShardedUnit(unit, bed.rank, bed.world_size) for unit in bed.flats]
    batches = (_batch(bed, step) for step in _steps(bed))
    return answer(units, batches, bed.make_optimizer(optimizer), bed.rank, bed.world_size)


def _engine(answer: Callable[..., Any], bed: TestBed, optimizer: str) -> Any:
    """`answer(model, optimizer_cls, **keywords)` gives an engine with `training_step(inputs, targets, loss_fn)`."""
    optimizer_cls, keywords = OPTIMIZERS[optimizer]
    engine = _watched(answer)(bed.model, optimizer_cls, **keywords)
    for step in range(STEPS):
        bed.noted.steps += 1
        engine.training_step(*bed.setup.batch(step, bed.rank), nn.functional.mse_loss)
        bed.note_weights()
    return engine


SHAPES: dict[str, Callable[..., Any]] = {
    "flat": _flat,
    "rows": _rows,
    "backward": _backward,
    "units": _units,
    "rung": _rung,
    "sharded": _sharded,
    "engine": _engine,
}


def _watched(answer: Callable[..., Any]) -> Callable[..., Any]:
    """The class, with methods that say so if they give what they should not: the engine would fail far from them."""

    def checked(name: str, judge: Callable[[Any, Any], str]) -> Callable[..., Any]:
        method = getattr(answer, name)

        @functools.wraps(method)
        def call(self: Any, flat: Any, *args: Any) -> Any:
            returned = method(self, flat, *args)
            if why := judge(returned, flat):
                raise WrongResult(f"`{name}` {why}")
            return returned

        return call

    def judge_returned(what: str, member: str, returned: Any, _flat: Any) -> str:
        return "" if hasattr(returned, member) else f"returned {kind_of(returned)}; it should return {what}"

    judges = {name: functools.partial(judge_returned, *what) for name, what in RETURNS.items()}
    methods = {name: checked(name, judge) for name, judge in (judges | {"keep": _judge_mean}).items()}
    return type(answer.__name__, (answer,), methods | {"__module__": answer.__module__})  # type: ignore[arg-type]  # an engine's answer is a class


def _judge_mean(_returned: Any, flat: Any) -> str:
    """Empty if `flat.mean` fits what the optimizer updates."""
    if not isinstance(flat.mean, torch.Tensor):
        left = kind_of(flat.mean)
        return f"left {left} in `flat.mean`; the mean gradient of the tensor that `own` returned belongs there"
    if flat.mean.shape == flat.shard.shape:
        return ""
    return (
        f"left a tensor of shape {list(flat.mean.shape)} in `flat.mean`; that which `own` returned has the shape "
        f"{list(flat.shard.shape)}"
    )


def compute_gradient(bed: TestBed, unit: Unit, buffer: torch.Tensor, step: int) -> None:
    """Fills `buffer` with the gradient of this rank's batch, for a model that is one unit."""
    unit.begin_gradient(buffer)
    inputs, targets = bed.setup.batch(step, bed.rank)
    with torch.enable_grad():  # an answer may run its whole loop under `torch.no_grad()`
        nn.functional.mse_loss(bed.model(inputs), targets).backward()


def _steps(bed: TestBed) -> Iterator[int]:
    for step in range(STEPS):
        bed.noted.steps += 1
        tell(lambda observer: observer.beginning())  # what an answer gathers before its first forward is of this step
        yield step
        bed.note_weights()


def _batch(bed: TestBed, step: int) -> tuple[torch.Tensor, LossGradient]:
    inputs, targets = bed.setup.batch(step, bed.rank)

    def loss_gradient(outputs: torch.Tensor) -> torch.Tensor:
        # Written out, because the answer, and not autograd, carries the gradient from unit to unit.
        return (outputs - targets) * (2 / outputs.numel())  # of the mean squared error

    return inputs, loss_gradient
