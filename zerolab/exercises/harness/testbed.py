"""The test bed on which a training answer runs, on every rank: a small model, its batches, a watch on optimizers.

What the test bed notes, it notes outside of torch (as numpy arrays), so that it does not weigh in the recording.
"""

import random
import weakref
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from zerolab.engines.holdings import Holding
from zerolab.engines.partition import FlatLayout, partition
from zerolab.engines.views import share_memory
from zerolab.exercises.harness.unit import Unit, UsedAfterRelease
from zerolab.runtime.observers import tell_made

Array = NDArray[Any]  # of float32
STEPS = 2  # Adam's memory exists from the second on
LEARNING_RATE = 0.5  # of SGD: large, so that a wrong mean moves the weights far
UNEVEN = 32  # how many times the smallest uneven batch the largest is: so that one sees it in the activations
MOMENTUM = 0.9  # of SGD: an optimizer that is made anew in each step shows in the weights
OPTIMIZERS: dict[str, tuple[type[torch.optim.Optimizer], dict[str, Any]]] = {
    "sgd": (torch.optim.SGD, {"lr": LEARNING_RATE, "momentum": MOMENTUM}),
    "adam": (torch.optim.Adam, {"lr": 1e-3}),
}


@dataclass(frozen=True, slots=True)
class Setup:
    """What one check draws at random: the model's widths, the rows a rank gets, and the seed of weights and batches.

    `units` says whether the model's blocks are units, each with a flat of its own, or all of it is one flat; `batches`
    what the last step brings: "even" batches as the others, "uneven" ones, or some that are "skipping" a unit, on each
    of the ranks `skippers` another one.
    """

    seed: int
    widths: tuple[int, ...]
    rows: int
    units: bool = False
    batches: str = "even"
    skippers: tuple[int, ...] = ()

    def build(self) -> nn.Sequential:
        """The model: blocks of a linear layer and tanh, the same on every rank."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            layers = [nn.Linear(width, wider) for width, wider in zip(self.widths, self.widths[1:], strict=False)]
        return nn.Sequential(*(nn.Sequential(layer, nn.Tanh()) for layer in layers))

    def layouts(self, model: nn.Module, world_size: int) -> list[FlatLayout]:
        """How its parameters lie in flats; end to end, these are the elements that all judging counts in."""
        return partition(model, world_size, units=None if self.units else [])

    def batch(self, step: int, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
        """One rank's batch of one step: inputs [rows, first width] and targets [rows, last width]."""
        generator = torch.Generator().manual_seed(self.seed + 1000 * step + rank + 1)
        rows = self.rows_of(step, rank)
        inputs = torch.randn(rows, self.widths[0], generator=generator)
        return inputs, torch.randn(rows, self.widths[-1], generator=generator)

    @property
    def most_rows(self) -> int:
        """The rows of the largest batch."""
        return self.rows * (UNEVEN if self.batches == "uneven" else 1)

    def rows_of(self, step: int, rank: int) -> int:
        """How many rows one rank's batch of one step has; of uneven ones, each a quarter of the one before."""
        if self.batches == "uneven" and step == STEPS - 1:
            return max(self.rows, self.most_rows >> 2 * rank)
        return self.most_rows

    def skipped(self, step: int, rank: int) -> int | None:
        """The number of the unit that one rank's batch of one step does not pass through; None for none."""
        if step != STEPS - 1 or rank not in self.skippers:
            return None
        return 1 + (self.seed + rank - 1) % (len(self.widths) - 3)  # neither the first nor the last

    def run(self, model: nn.Sequential, step: int, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The model's outputs for one rank's batch of one step, and their loss."""
        outputs, targets = self.batch(step, rank)
        for number, block in enumerate(model):
            skips = number == self.skipped(step, rank)
            outputs = as_wide(outputs, self.widths[number + 1]) if skips else block(outputs)
        return outputs, nn.functional.mse_loss(outputs, targets)


def draw(seed: int, world_size: int, units: bool = False, batches: str = "even") -> Setup:
    """What one run uses: widths that leave padding more often than not, rows, and the seed of weights and batches."""
    dice = random.Random(f"{seed} {world_size}")
    if units:
        # Of about equal size, so that on three ranks two whole ones can be told from all of them. There they are seven,
        # so that an answer fails which counts on six.
        widths = tuple(dice.randrange(60, 71) for _ in range(8 if world_size == 3 else 7))
    else:
        widths = dice.randrange(60, 90), dice.randrange(110, 150), dice.randrange(60, 90)
    # Every rank skips a unit of its own, so that an answer fails which handles one rank only.
    skippers = tuple(range(world_size)) if batches == "skipping" else ()
    return Setup(dice.randrange(2**31), widths, dice.randrange(3, 7), units, batches, skippers)


@dataclass(slots=True)
class Given:
    """What an optimizer was given in one update: elements `[start, stop)` of all flats, and their gradient.

    `in_place` tells whether the tensor is memory of the parameters; a copy is placed by its first values, and has
    `start` -1 where these are nobody's.
    """

    step: int
    gradient: Array
    start: int
    stop: int
    in_place: bool


@dataclass(slots=True)
class Noted:
    """What the test bed saw of one training run on one rank."""

    given: list[Given] = field(default_factory=list)
    weights: list[list[tuple[int, Array]]] = field(default_factory=list)  # after each step: where, and what
    outputs: list[Array] = field(default_factory=list)  # of each forward that is an answer's own function
    steps: int = 0
    outside: int = 0  # the most bytes outside of torch
    returned: str = "nothing"  # in words; empty if it is what was asked for


class TestBed:
    """A model whose parameters lie in flats of `world_size` equal shards, and the optimizers over them.

    To a recorder it is a `Holder`, as an engine is, so that the picture of an answer shows who holds which span.
    """

    precision = None
    offload = False
    matrix_numel = 0

    def __init__(self, setup: Setup, world_size: int, rank: int, stage: str = "ddp") -> None:
        self.setup, self.world_size, self.rank, self.stage = setup, world_size, rank, stage
        self.model = setup.build()
        self.layouts = setup.layouts(self.model, world_size)
        self.starts = [sum(layout.padded for layout in self.layouts[:number]) for number in range(len(self.layouts))]
        self._initial = end_to_end(self.layouts, dict(self.model.named_parameters()))
        self.flats: list[Unit] = []
        # By the id of a tensor that an optimizer updates: the tensor, start, stop, in place?
        self._places: dict[int, tuple[weakref.ref[torch.Tensor], tuple[int, int, bool]]] = {}
        self._optimizers: list[weakref.ref[torch.optim.Optimizer]] = []  # the latest last
        self.releases = False  # whether the answer gives the flats' memory back, and updates copies of its shards
        self.noted = Noted()
        self.under_way: Callable[[torch.Tensor], str] = lambda _: ""  # see Unit

    def lay_flats(self) -> None:
        """Moves the parameters into flats, and tells a recorder; an engine would lay out its own."""
        parameters = dict(self.model.named_parameters())
        for layout in self.layouts:
            module = self.model.get_submodule(layout.unit) if self.setup.units else self.model
            self.flats.append(Unit(layout, module, [parameters[slot.name] for slot in layout.slots]))
        tell_made(self)

    @property
    def optimizer(self) -> torch.optim.Optimizer | None:
        """The last optimizer that was made or made an update, of those that the answer keeps."""
        living = self._living()
        return living[-1] if living else None

    def holdings(self, flats: Collection[str] | None = None) -> Iterator[Holding]:
        """What this rank holds of the model's state, as an engine would say it; seen from outside of the answer."""
        for flat in self.flats:
            yield from flat.held()
        for optimizer in self._living():
            for tensor in _tensors_of(optimizer):
                yield from self._held_of(tensor, optimizer.state.get(tensor, {}))

    def _held_of(self, tensor: torch.Tensor, state: Mapping[str, Any]) -> Iterator[Holding]:
        """What there is of a tensor that an optimizer updates."""
        start, stop, in_place = self._place_of(tensor)
        number = max(bisect_right(self.starts, start) - 1, 0)
        name = self.layouts[number].name
        span = (start - self.starts[number], stop - self.starts[number]) if start >= 0 else (0, 0)
        if not in_place:
            yield Holding("parameters", name, span, tensor)
        if tensor.grad is not None:
            yield Holding("gradients", name, span, tensor.grad)
        for value in state.values():
            if isinstance(value, torch.Tensor):  # a step counter covers no elements
                yield Holding("optimizer_state", name, span if value.shape == tensor.shape else (0, 0), value)

    def make_optimizer(self, kind: str) -> Callable[..., torch.optim.Optimizer]:
        """What the answer calls with a list of tensors to get an optimizer over them."""
        optimizer_cls, keywords = OPTIMIZERS[kind]

        def optimizer_of(tensors: Any) -> torch.optim.Optimizer:
            optimizer = optimizer_cls(tensors, **keywords)
            self.know(optimizer)
            return optimizer

        optimizer_of.__qualname__ = "optimizer_cls"  # as the answer knows it, in what Python says of a wrong call
        return optimizer_of

    def know(self, optimizer: torch.optim.Optimizer) -> None:
        """Remembers an optimizer, and where the tensors lie that it updates. Raises UsedAfterRelease if nowhere."""
        self._optimizers = [known for known in self._optimizers if known() not in (None, optimizer)]
        self._optimizers.append(weakref.ref(optimizer))
        for tensor in _tensors_of(optimizer):
            self._must_be_there(tensor)

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Within it, what any optimizer is given is noted."""

        def note(optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
            self.know(optimizer)
            for tensor in _tensors_of(optimizer):
                if tensor.grad is not None:
                    given = Given(self.noted.steps, values_of(tensor.grad), *self._place_of(tensor))
                    self.noted.given.append(given)

        handle = register_optimizer_step_pre_hook(note)
        try:
            yield
        finally:
            handle.remove()

    def note_weights(self) -> None:
        """Notes the parameters after a step: of the flats that are whole, and what an optimizer updated elsewhere."""
        parameters = {name: parameter for name, parameter in self.model.named_parameters() if is_there(parameter)}
        # Of a flat that is still whole while the optimizer updates a copy of it, the copy is what is new.
        places = [self._place_of(tensor) for tensor in self._updated()] if self.releases else []
        copied = [start for start, _, in_place in places if not in_place]
        whole = [
            layout
            for first, layout in zip(self.starts, self.layouts, strict=True)
            if all(slot.name in parameters for slot in layout.slots)
            and not any(first <= start < first + layout.padded for start in copied)
        ]
        pieces = [
            (self.starts[self.layouts.index(layout)], values)
            for layout, values in zip(whole, end_to_end(whole, parameters), strict=True)
        ]
        if len(whole) < len(self.layouts):
            updated = self._updated()
            pieces += [(self._place_of(tensor)[0], values_of(tensor)) for tensor in updated]
        self.noted.weights.append(pieces)

    def _updated(self) -> list[torch.Tensor]:
        return [tensor for optimizer in self._living() for tensor in _tensors_of(optimizer)]

    def _living(self) -> list[torch.optim.Optimizer]:
        return [optimizer for known in self._optimizers if (optimizer := known()) is not None]

    def _must_be_there(self, tensor: torch.Tensor) -> None:
        """Raises UsedAfterRelease for memory of a released flat: the update itself would crash the rank."""
        start, stop, in_place = self._place_of(tensor)
        if not in_place or is_there(tensor):
            return
        (unit,) = [flat for flat in self.flats if share_memory(tensor, flat.parameters)]
        name, whole = unit.layout.name, stop - start == unit.layout.padded
        what = f"the optimizer updates whole flats, and that of unit {name} is released: it was used after release."
        if not whole or self.world_size == 1:
            what = f"used after release: the optimizer's tensor for unit {name} lies in the flat, which is released."
        raise UsedAfterRelease(f"{what} Make the optimizer over clones of your shards")

    def _place_of(self, tensor: torch.Tensor) -> tuple[int, int, bool]:
        """As `_place`, which is asked once for each tensor: its values change."""
        known = self._places.get(id(tensor))
        if known is None or known[0]() is not tensor:
            known = self._places[id(tensor)] = weakref.ref(tensor), self._place(tensor)
        return known[1]

    def _place(self, tensor: torch.Tensor) -> tuple[int, int, bool]:
        """Where a tensor lies: by its memory, else by its values, which are those of nobody else."""
        for first, flat in zip(self.starts, self.flats, strict=False):
            if share_memory(tensor, flat.parameters):
                start = first + int(tensor.storage_offset())
                return start, start + tensor.numel(), True
        values = values_of(tensor)
        for first, initial in zip(self.starts, self._initial, strict=True):
            for start in range(0, len(initial), len(initial) // self.world_size):
                if np.array_equal(initial[start : start + len(values)], values):
                    return first + start, first + start + len(values), False
        return -1, -1, False


def _tensors_of(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [tensor for group in optimizer.param_groups for tensor in group["params"]]


def as_wide(tensor: torch.Tensor, width: int) -> torch.Tensor:
    """A [rows, any] tensor as [rows, width], cut or with zeros at the end: what goes on where a unit is left out.

    Of the outputs' gradient it gives that of the inputs, where `width` is theirs.
    """
    return nn.functional.pad(tensor, (0, width - tensor.shape[-1]))


def is_there(tensor: torch.Tensor) -> bool:
    """Whether a tensor has elements, and memory for them: of a released flat it has not."""
    return tensor.numel() > 0 and tensor.untyped_storage().size() > 0


def values_of(tensor: torch.Tensor) -> Array:
    """A copy of a tensor's elements, of shape [numel].

    Not by `Tensor.numpy()`: memory that numpy has seen that way can never be resized again, so no unit released.
    """
    return np.from_dlpack(tensor.detach()).reshape(-1).copy()


def end_to_end(layouts: list[FlatLayout], tensors: Mapping[str, torch.Tensor]) -> list[Array]:
    """The named tensors laid into flats, each of shape [padded]; copies."""
    flats = [np.zeros(layout.padded, dtype=np.float32) for layout in layouts]
    for layout, flat in zip(layouts, flats, strict=True):
        for slot in layout.slots:
            flat[slot.start : slot.stop] = values_of(tensors[slot.name])
    return flats
