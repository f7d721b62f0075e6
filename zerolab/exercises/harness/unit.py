"""A unit as an answer gets it: its parameters in one flat, forward and backward, memory to give back and to take."""

import weakref
from collections.abc import Callable, Iterator

import torch
from torch import nn

from zerolab.engines.collectives import all_gather
from zerolab.engines.holdings import Holding
from zerolab.engines.partition import FlatLayout


class UsedAfterRelease(RuntimeError):
    """A unit was used whose memory had been given back."""


class UsedBeforeWait(RuntimeError):
    """A unit was used, or its memory given back, while an exchange was still reading or writing it."""


def _nothing_under_way(_tensor: torch.Tensor) -> str:
    return ""


class Unit:
    """One unit of a model on one rank.

    Attributes:
        parameters: the unit's flat, shape [padded]: all its parameters end to end, of `world_size` equal shards. The
            module's parameters are views of it.
        mine: this rank's shard of it, once an answer has given the unit one.
        under_way: the name of an exchange of a tensor's memory that nobody has waited for; empty if there is none.
    """

    mine: torch.Tensor

    def __init__(self, layout: FlatLayout, module: nn.Module, parameters: list[nn.Parameter]) -> None:
        self.layout, self._module, self._members = layout, module, parameters
        self.parameters = torch.zeros(layout.padded)
        self.under_way: Callable[[torch.Tensor], str] = _nothing_under_way
        self._gradient: weakref.ref[torch.Tensor] | None = None  # what an answer drops must be free
        self._inputs: torch.Tensor | None = None
        self._outputs: torch.Tensor | None = None
        for slot, parameter in zip(layout.slots, parameters, strict=True):
            self.parameters[slot.start : slot.stop] = parameter.detach().reshape(-1)
            parameter.data = self.parameters[slot.start : slot.stop].view(slot.shape)

    def __repr__(self) -> str:
        return (
            f"<unit {self.layout.name}: {self.layout.numel:,} parameters, {'' if self.is_whole else 'not '}in memory>"
        )

    @property
    def is_whole(self) -> bool:
        """Whether the flat's memory is there."""
        return self.parameters.untyped_storage().size() > 0

    def release(self) -> None:
        """Gives the flat's memory back. Until `allocate()` nothing may touch `parameters`. Raises UsedBeforeWait."""
        self._must_have_arrived("released")
        self.parameters.untyped_storage().resize_(0)

    def allocate(self) -> None:
        """Takes memory for the flat again; what is in it then is nothing in particular. Raises UsedBeforeWait.

        It is NaN, and not what lay there before: else a gather that forgets a shard would work now and then.
        """
        self._must_have_arrived("allocated again")
        self.parameters.untyped_storage().resize_(self.parameters.numel() * self.parameters.element_size())
        self.parameters.fill_(torch.nan)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """The unit's outputs for `inputs`; it remembers what its backward needs.

        Raises UsedAfterRelease or UsedBeforeWait.
        """
        self._must_be_whole("forward")
        self._must_have_arrived("used")
        with torch.enable_grad():  # whatever the answer's loop runs under
            self._inputs = inputs.detach().requires_grad_()
            self._outputs = self._module(self._inputs)
        return self._outputs.detach()

    def backward(self, output_gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The gradients of the unit's inputs, and of its parameters end to end: a new tensor of shape [padded].

        The unit keeps neither. Raises UsedAfterRelease or UsedBeforeWait; RuntimeError without a forward before it,
        or for a gradient of another shape.
        """
        self._must_be_whole("backward")
        self._must_have_arrived("used")
        if self._outputs is None or self._inputs is None:
            raise RuntimeError(f"backward of unit {self.layout.name} without a forward before it")
        if output_gradient.shape != self._outputs.shape:
            raise RuntimeError(
                f"backward of unit {self.layout.name} got a gradient of shape {list(output_gradient.shape)} for its "
                f"outputs of shape {list(self._outputs.shape)}: go from the last unit to the first, and give each the "
                "input gradient of the unit behind it"
            )
        gradient = self.begin_gradient()
        # Autograd within one unit only; between units the answer hands the gradients on.
        self._outputs.backward(output_gradient)
        input_gradient = self._inputs.grad
        if input_gradient is None:
            raise RuntimeError(f"no gradient reached the inputs of unit {self.layout.name}: were its outputs detached?")
        self._inputs = self._outputs = None
        self.end_gradient()
        return input_gradient, gradient

    def begin_gradient(self, gradient: torch.Tensor | None = None) -> torch.Tensor:
        """Has autograd add the parameters' gradients up in a flat of shape [padded]; None makes a new one."""
        gradient = torch.zeros_like(self.parameters) if gradient is None else gradient.zero_()
        self._gradient = weakref.ref(gradient)
        for slot, parameter in zip(self.layout.slots, self._members, strict=True):
            parameter.grad = gradient[slot.start : slot.stop].view(slot.shape)
        return gradient

    def end_gradient(self) -> None:
        """Leaves the gradient to whoever has it."""
        for parameter in self._members:
            parameter.grad = None

    def held(self) -> Iterator[Holding]:
        """What there is of the flat and of its whole gradient."""
        everything = (0, self.layout.padded)
        if self.is_whole:
            yield Holding("parameters", self.layout.name, everything, self.parameters)
        gradient = self._gradient() if self._gradient is not None else None
        if gradient is not None:
            yield Holding("gradients", self.layout.name, everything, gradient)

    def _must_have_arrived(self, what: str) -> None:
        # gloo writes to an address, whoever's it is by then: the rank would crash, each time in another place.
        exchange = self.under_way(self.parameters)
        if exchange:
            raise UsedBeforeWait(
                f"unit {self.layout.name} was {what} while its {exchange} was still under way: call wait() on every "
                f"{exchange} before the unit is used"
            )

    def _must_be_whole(self, what: str) -> None:
        if not self.is_whole:
            raise UsedAfterRelease(
                f"the {what} of unit {self.layout.name} was used after release: its parameters' memory had been given "
                "back. Gather the unit before each use, and release it after"
            )


class ShardedUnit:
    """A unit of which this rank keeps a shard and nothing else, until it is gathered.

    Attributes:
        mine: this rank's shard of the flat, a copy of shape [padded / N]: what an optimizer updates.
    """

    def __init__(self, unit: Unit, rank: int, world_size: int) -> None:
        self._unit, self._rank, self._world_size = unit, rank, world_size
        self.mine = unit.parameters.chunk(world_size)[rank].clone()
        unit.release()

    def __repr__(self) -> str:
        return f"{self._unit!r}, of which this rank keeps shard {self._rank}"

    def gather(self) -> None:
        """Makes the unit whole on every rank, of all ranks' shards. All ranks call it."""
        self._unit.allocate()
        self._unit.parameters.chunk(self._world_size)[self._rank].copy_(self.mine)
        all_gather(self._unit.parameters, name=self._unit.layout.name).wait()

    def release(self) -> None:
        """Gives the whole flat's memory back; `mine` stays."""
        self._unit.release()

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """As a unit's, which must be whole."""
        return self._unit.forward(inputs)

    def backward(self, output_gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """As a unit's, which must be whole again."""
        return self._unit.backward(output_gradient)
