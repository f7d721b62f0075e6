"""What an optimizer declares that torch's have no word for; of torch's own it is known here."""

from collections.abc import MutableMapping
from typing import Any, ClassVar

import torch

State = MutableMapping[Any, dict[str, Any]]


class DeclaredOptimizer(torch.optim.Optimizer):
    """The base of this project's optimizers: what engines, recorders and checkpoints may ask of one.

    Attributes:
        granule: a shard has a multiple of so many elements.
        moments: in what Adam's moments lie between steps, as `theory.state_bytes` takes it.
    """

    granule: ClassVar[int] = 1
    moments: ClassVar[str] = "fp32"

    @property
    def name(self) -> str:
        """What recordings call it."""
        return type(self).__name__

    @property
    def wide(self) -> State:
        """The state in full precision: what is kept in 8 bits is unpacked when read, and packed when written."""
        return self.state


def granule_of(optimizer_cls: type) -> int:
    """Of how many elements a shard must be a multiple for this class of optimizers."""
    return optimizer_cls.granule if issubclass(optimizer_cls, DeclaredOptimizer) else 1


def state_of(optimizer: Any) -> State:
    """An optimizer's entries by what it updates; those that it keeps in 8 bits in full precision."""
    state: State = optimizer.wide if isinstance(optimizer, DeclaredOptimizer) else optimizer.state
    return state


def name_of(optimizer: torch.optim.Optimizer) -> str:
    """What recordings call an optimizer."""
    return optimizer.name if isinstance(optimizer, DeclaredOptimizer) else type(optimizer).__name__


def moments_of(optimizer: torch.optim.Optimizer) -> str:
    """In what an optimizer's moments lie, as `theory.state_bytes` takes it."""
    return optimizer.moments if isinstance(optimizer, DeclaredOptimizer) else DeclaredOptimizer.moments


def has_two_moments(optimizer: torch.optim.Optimizer) -> bool:
    """Whether it keeps two numbers for each that it has updated, and one beside them, as `theory.state_bytes` counts.

    The third that Adam keeps with `amsgrad` is a term of its own. NAdam has two beside them.
    """
    values = [item for state in optimizer.state.values() for item in state.items() if isinstance(item[1], torch.Tensor)]
    beside = {name for name, value in values if not value.dim()}
    kept = [
        sum(isinstance(value, torch.Tensor) and value.shape == updated.shape for value in state.values())
        - ("max_exp_avg_sq" in state)
        for updated, state in optimizer.state.items()
        if state
    ]
    return isinstance(optimizer, DeclaredOptimizer) or (set(kept) == {2} and len(beside) < 2)
