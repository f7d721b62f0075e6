"""The optimizers that update: what they keep outside engines, and what their updates say of the run."""

from collections.abc import Collection, Iterable, Iterator
from itertools import chain
from weakref import WeakKeyDictionary, WeakSet

import torch
from torch import nn

from zerolab.engines.declared import has_two_moments, moments_of, name_of
from zerolab.engines.flat import Flat
from zerolab.recording.models import Models
from zerolab.recording.units import Held, Pieces, masters_of, who_trains
from zerolab.recording.updates import tensors_of
from zerolab.recording.wrappers import local_of
from zerolab.runtime.observers import Holder


class Optimizers:
    """Those that have updated, kept alive by nothing here; an engine says itself what is in the shards of its own."""

    def __init__(self, pieces: Pieces) -> None:
        self.had_state = False  # whether some already had state at the first recorded update
        self.moments = "fp32"  # in what the moments lie
        self.has_form = True  # whether an engine's keeps as many as the formulas count
        self.amsgrad: set[str] = set()  # flats of which Adam keeps the largest second moments
        self.updated: dict[str, list[int]] = {}  # of flats updated only in part: the elements of each tensor that was
        self.masters = 0  # bytes of the fp32 copies that are updated in place of the models' parameters
        self.untrained: set[str] = set()  # flats whose parameters took no gradient when an update last made state
        self.flats: set[str | None] = set()  # those that optimizers of no engine have; None for other tensors
        self._pieces = pieces
        self._others: WeakSet[torch.optim.Optimizer] = WeakSet()  # those of no engine
        self._states: WeakKeyDictionary[torch.optim.Optimizer, list[int]] = WeakKeyDictionary()
        self._kinds: dict[int, str] = {}  # the classes of those that have updated, by their ids

    @property
    def kind(self) -> str | None:
        """The class of what has updated; of several, such as Muon beside AdamW, "Muon+AdamW"."""
        return "+".join(dict.fromkeys(self._kinds.copy().values())) or None

    def add(self, optimizers: Iterable[torch.optim.Optimizer]) -> None:
        """Notes optimizers that made updates before the recording and so already have state."""
        self._others.update(optimizers)
        self.had_state = bool(self._others)

    def begin(self, optimizer: torch.optim.Optimizer, engines: Iterable[Holder]) -> None:
        """Notes one that is about to update."""
        self._kinds[id(optimizer)], self.moments = name_of(optimizer), moments_of(optimizer)
        if not any(engine.optimizer is optimizer for engine in engines):
            self._others.add(optimizer)

    def hand_over(self, inner: torch.optim.Optimizer, outer: torch.optim.Optimizer) -> None:
        """Notes one to which another hands its work and its state, as ZeroRedundancyOptimizer does."""
        if outer in self._others:
            self._others.add(inner)
            self._kinds.pop(id(outer), None)
            self._kinds[id(inner)], self.moments = name_of(inner), moments_of(inner)

    def end(self, optimizer: torch.optim.Optimizer, engines: Collection[Holder], models: Models) -> bool:
        """Notes what was updated, and returns whether that made new state, as a first update does."""
        its = [engine for engine in engines if engine.optimizer is optimizer]
        flats = [flat for engine in its for flat in engine.flats if isinstance(flat, Flat) and not flat.layout.frozen]
        sizes = {flat.layout.name: flat.updated_so_far() for flat in flats}
        if any(sizes.values()):  # else it has kept nothing yet
            self.has_form = any(engine.matrix_numel for engine in its) or has_two_moments(optimizer)
        for flat in flats:
            name = flat.layout.name
            if any("max_exp_avg_sq" in optimizer.state.get(updated, ()) for updated, _ in flat.updated()):
                self.amsgrad.add(name)
            self.updated[name] = sizes[name]
            if sizes[name] == [flat.owned.numel()]:
                del self.updated[name]
        # Not this one's yet: one that updates once, as Muon for a matrix that is whole now, keeps nothing that counts.
        known = chain(self._states, self._others, (engine.optimizer for engine in engines))
        states = {k: [id(x) for _, x in tensors_of(k)] for k in known if isinstance(k, torch.optim.Optimizer)}
        is_new = dict(self._states) != states
        if is_new:
            self._states = WeakKeyDictionary(states)
            self.untrained, flats_updated = who_trains(models.places, self._others)
            self.flats |= flats_updated
        self._states.setdefault(optimizer, [id(tensor) for _, tensor in tensors_of(optimizer)])
        return is_new

    def step_counters(self) -> int:
        """Bytes of the single numbers, such as step counters, that those outside engines keep."""
        kept = (local_of(tensor) for each in self._others for _, tensor in tensors_of(each) if tensor.dim() == 0)
        return sum(counter.nbytes for counter in kept if counter is not None)

    def held(self, models: Models, engines: Collection[nn.Module]) -> Iterator[Held]:
        """What those outside engines keep, beside these models of `engines`."""
        masters = masters_of(self._others, models.ids(engines)) if models.deepspeed else {}
        self.masters = sum(master.nbytes for master in masters.values())
        return self._pieces.of_optimizers(self._others, [*models.places.values()], masters)
