"""The state of an engine whose parameters lie in flats: gathered to save, sharded again to load."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from zerolab.engines.checkpoint import Checkpoints, check_state, check_tensors
from zerolab.engines.collectives import all_gather
from zerolab.engines.flat import Flat
from zerolab.engines.optimizer_state import Owned, is_one, pieces_within
from zerolab.engines.partition import FlatLayout, ParamGroups


class FlatCheckpoints(Checkpoints):
    """Saves and loads an engine whose parameters lie in flats."""

    model: nn.Module
    flats: list[Flat]
    trainable: list[Flat]
    optimizer: torch.optim.Optimizer

    def __reduce__(self) -> Any:
        """Refuses to copy or pickle the engine, and with it the model, whose hooks refer to it."""
        raise TypeError("an engine's model cannot be copied or pickled: load engine.state_dict() into another module")

    def state_dict(self) -> dict[str, torch.Tensor]:
        """The whole model on every rank: the module's own keys -> tensors (copies). Collective: all ranks call it."""
        entries = self.model.state_dict(keep_vars=True)
        check_tensors(entries)
        copies: dict[int, torch.Tensor] = {}
        for flat in self.flats:
            flat.take_over()
            # From the masters: bf16 weights would lose what the optimizer knows.
            views = flat.views(_gather_from_owners(flat, flat.owned.detach()))
            copies |= {id(parameter): view.clone() for parameter, view in zip(flat.parameters, views, strict=True)}
        return {key: copies.get(id(entry), entry).detach().clone() for key, entry in entries.items()}

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        """Takes the whole model from `state`, as `state_dict` gives it; every rank passes the same.

        Raises:
            TypeError: something in it is not a tensor.
            ValueError: a key is missing or unknown, or a tensor has another shape.
        """
        entries = self.model.state_dict(keep_vars=True)
        shapes = {id(parameter): slot.shape for flat in self.flats for slot, parameter in flat.members()}
        check_state(state, {key: shapes.get(id(entry), entry.shape) for key, entry in entries.items()})
        # A tied parameter has several keys and one tensor; the value of the last key wins.
        values = {id(entry): state[key] for key, entry in entries.items()}
        with torch.no_grad():
            for flat in self.flats:
                flat.load(flat.lay_out([values[id(parameter)] for parameter in flat.parameters], flat.owned.dtype))
            # Buffers are in no flat: they stay local, and each rank reads its own.
            for buffer in self.model.buffers():
                if id(buffer) in values:
                    buffer.copy_(values[id(buffer)])

    def load_optimizer_state_dict(self, state: dict[str, Any]) -> None:
        """Takes over what `optimizer_state_dict` gave, here or in another engine, on any number of ranks.

        Raises:
            ValueError: it belongs to other parameters, groups or another kind of optimizer.
        """
        self._check_optimizer_state(state)
        for flat in self.trainable:
            # One tensor has one step count: parameters that had no gradient in some steps need their own.
            if not is_one([(state["state"][slot.name], slot.shape) for slot in flat.usage.owned]):
                flat.split(self.optimizer)
        super().load_optimizer_state_dict(state)

    def _owned(self) -> Iterator[Owned]:
        """What this rank's optimizer updates, and which elements of which parameters lie in it."""
        for flat in self.trainable:
            for updated, (first, last) in flat.updated():
                slots = ((slot.name, slot.shape.numel()) for slot in flat.layout.slots)
                yield Owned(updated, pieces_within(slots, first, last))

    def _trained(self) -> list[FlatLayout]:
        return [flat.layout for flat in self.trainable]


def optimizer_groups(flats: list[Flat], param_groups: ParamGroups) -> list[dict[str, Any]]:
    """The groups of an optimizer over flats: those that each group claims, and last those that none claims."""
    groups: list[dict[str, Any]] = [{**keywords, "params": []} for _, keywords in param_groups] + [{"params": []}]
    for flat in flats:
        groups[-1 if flat.layout.group is None else flat.layout.group]["params"].append(flat.owned)
    return [group for group in groups if group["params"]]


def _gather_from_owners(flat: Flat, piece: torch.Tensor) -> torch.Tensor:
    """The pieces of a flat that the ranks own, end to end: shape [padded]. Collective."""
    if not flat.is_sharded:
        return piece
    # On the model's device even if the piece is offloaded: the backend may be able to read only from there.
    everything = torch.empty(flat.layout.padded, dtype=piece.dtype, device=flat.shard.device)
    flat.part(everything).copy_(piece)
    all_gather(everything).wait()
    return everything
