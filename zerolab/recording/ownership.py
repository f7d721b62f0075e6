"""Who holds what: the engines say, where there are any; otherwise it is read from the model and its optimizers."""

import weakref
from collections.abc import Collection
from typing import Any

import torch
from torch import nn

from zerolab.engines.flat import Flat
from zerolab.engines.native import Native
from zerolab.recording.c10d import tensors_in
from zerolab.recording.events import CATEGORIES, Spans, UnitInfo, merge_spans, unit_of
from zerolab.recording.log import Log
from zerolab.recording.models import Models
from zerolab.recording.optimizers import Optimizers
from zerolab.recording.units import Flats, Held, Pieces, as_trained
from zerolab.runtime.observers import Call, Holder

EVERYTHING = ""  # in place of a flat's name

_INDEX: dict[str, int] = {category: index for index, category in enumerate(CATEGORIES)}  # in the ledger's lists


class Ownership:
    """Keeps the ledger's categories right, and logs a `hold` event whenever what this rank holds changes."""

    def __init__(self, log: Log) -> None:
        self._log = log
        # Recording keeps nothing alive: what the learner drops must be freed as if nobody were recording.
        self._engines: list[weakref.ref[Holder]] = []
        self._pieces, self._flats = Pieces(), Flats()
        self.models, self.optimizers = Models(self._pieces), Optimizers(self._pieces)
        self._seen: dict[tuple[str, str], list[tuple[int, int]]] = {}  # as they were given; merged in `_logged`
        self._logged: dict[tuple[str, str], Spans] = {}
        self._later: set[str] = set()  # flats that the next look at any flat includes
        self._gathered: set[str] = set()  # flats of another system that are whole, or being gathered
        self._emptied = False  # whether another system has emptied a storage since the last look
        self.units: dict[str, UnitInfo] = {}
        self.stage: str | None = None
        self.precision: str | None = None  # as the engine says; its layouts have the module's original dtypes
        self.matrices = 0  # elements of the matrices that the engine's Muon updates
        self.offload = False  # whether the engine's optimizer updates copies in main memory
        self.reduce_dtype: str | None = None  # in which the engine adds up gradients, if not in the precision's own

    def add_engine(self, engine: Holder) -> None:
        """From now on `engine.holdings()` says what is held."""
        self._engines.append(weakref.ref(engine))
        self.stage, self.precision, self.offload = engine.stage, engine.precision, engine.offload
        self.matrices = engine.matrix_numel
        widened = (flat.gradient_dtype for flat in engine.flats if isinstance(flat, Flat) and flat.widens_gradients)
        self.reduce_dtype = next((str(dtype).removeprefix("torch.") for dtype in widened if not dtype.is_complex), None)
        self._log.compute_on(next(engine.model.parameters()).device)
        self.models.under_others |= isinstance(engine, Native)
        self.models.have_buffers |= self.models.under_others
        self.units |= {flat.layout.name: unit_of(flat.layout) for flat in engine.flats}
        self.sync()

    def add_model(self, model: nn.Module, outermost: nn.Module) -> None:
        """Notes a model that no engine trains, inside its wrappers; of one that shares a part the rest."""
        self._log.compute_on(next(model.parameters()).device)
        self.units |= {unit.name: unit for unit in self.models.add(model, outermost, self._trained_models())}
        self.sync(updates=True)

    def described(self) -> list[UnitInfo]:
        """What is known of the flats, and of those without an engine whether they are trained; any thread may ask."""
        units = self.units.copy()
        if self.optimizers.kind is None:
            return [*units.values()]
        trained = {name for category, name in [*self._logged.copy()] if category != "parameters"}
        theirs = self.optimizers
        return as_trained(units, self.models.whose.copy(), trained | theirs.flats.copy(), theirs.untrained)

    def forget_parts(self, model: nn.Module, trained: Collection[str] = ()) -> list[nn.Module]:
        """Drops models that are this one or parts of it, but for those with `trained` units, and returns them."""
        parts, flats = self.models.forget_parts(model, trained)
        if parts:
            self.units = {name: unit for name, unit in self.units.items() if name not in flats}
        return parts

    def is_part(self, model: nn.Module) -> bool:
        """Whether all its parameters are those of models that were noted."""
        return self._noted().issuperset(map(id, model.parameters()))

    def before_update(self, optimizer: torch.optim.Optimizer) -> None:
        """Notes an optimizer that is about to update, and what is held at that moment."""
        self.optimizers.begin(optimizer, self._living())
        self.sync(updates=True)
        if added := self.models.note_added(self._trained_models(), self.units):
            self.units |= {unit.name: unit for unit in added}
            self.sync(updates=True)

    def after_update(self, optimizer: torch.optim.Optimizer) -> None:
        """Looks again if the update made new state: else nothing moved."""
        if self.optimizers.end(optimizer, self._living(), self.models):
            self.sync(updates=True)

    def communicated(self, unit: str | None, phase: str, arguments: Any) -> None:
        """Notes what another system sends or receives of a unit, if it is known: only now its buffers can be told."""
        if self.models.have_buffers and not self._log.times_only:
            if self.models.under_others:
                self.look_at(unit)
                if phase == "gather":
                    self._gathered |= self._flats.of_unit(unit, self.units)
            for tensor in tensors_in(arguments):
                self._log.ledger.travels(tensor)

    def is_known(self, module: nn.Module) -> bool:
        """Whether an engine trains this module, or it was noted before."""
        return module in self.models.places or any(model is module for model in self._trained_models())

    def flat_of(self, call: Call) -> str | None:
        """The name of the flat whose gradient this collective reduces, or whose parameters it gathers."""
        if call.name in self.units:
            return call.name
        # A learner's engine need not name it; then it is the flat that is held whole in this very tensor.
        holdings = (holding for engine in self._living() for holding in engine.holdings())
        return next((holding.unit for holding in holdings if holding.tensor is call.flat), None)

    def look_for(self, tensor: torch.Tensor) -> str | None:
        """The flat of which a learner's code sends this gradient by a collective that is not ours, if it is one."""
        if not (self._log.in_backward and self._log.counts()) or self.models.under_others:
            return None
        if self._engines:
            self.sync()
        return self._log.ledger.unit_of(tensor) or self.models.flat_of_gradient(tensor)

    def look_later(self, flat: str | None) -> None:
        """Something is about to change in a flat: include it in the next look at any flat."""
        if flat is not None:
            self._later.add(flat)

    def released(self, flat: str | None) -> None:
        """A storage was emptied. Other systems have one per parameter: the next look sees them all at once."""
        if self.models.under_others:
            if self._log.in_backward and not self._emptied:
                self.look_at(flat)  # this look sees the unit's gradient while it is still whole
            self._emptied = True
            self._later.add(flat or EVERYTHING)
            self._gathered.discard(flat or EVERYTHING)
        else:
            self.sync(flat)

    def look_at(self, flat: str | None) -> None:
        """Looks at what another system holds of a unit and of what it has gathered, now and at the next look.

        None means all units. Looking at all of them each time would take longer than a step of a hundred blocks.
        """
        flats = self._flats.of_unit(flat, self.units)
        self._later |= flats | self._gathered
        by_flat = flats and not self._pieces.has_shards and EVERYTHING not in self._later
        self.sync(flat if by_flat else None, updates=False)
        self._later |= flats

    def sync(self, flat: str | None = None, *, updates: bool | None = None) -> None:
        """Looks again: corrects the ledger's categories and logs what has changed; cheap for a single flat.

        State of optimizers outside our engines changes only with updates: it is looked at with all flats, never with
        single ones, and only if `updates`; None: if there is an engine.
        """
        if self._log.times_only:
            return
        assign = self._log.ledger.assign
        names = None if flat is None else {flat, *self._later}
        updates = names is None and (bool(self._engines) if updates is None else updates)
        self._later, self._emptied = set(), False
        # Assign first and log afterwards: an event's live bytes must already be in the right category.
        now: dict[tuple[str, str], list[tuple[int, int]]] = {}
        dtypes: dict[tuple[str, str], str] = {}
        for category, unit, spans, tensor in self._held(names, updates=updates):
            assign(tensor, _INDEX[category], unit)
            if unit is not None and spans and spans[0][1] > spans[0][0]:
                now.setdefault((category, unit), []).extend(spans)
                dtypes[category, unit] = str(tensor.dtype).removeprefix("torch.")
        # What no longer appears has been let go, and that is an event as well.
        pairs = self._seen if names is None else ((category, name) for name in sorted(names) for category in CATEGORIES)
        for key in pairs:
            if key in now or key not in self._seen:
                continue
            if updates or key[0] != "optimizer_state" or key[1] in self._engines_flats():
                now[key] = []
        for key, found in now.items():
            if self._seen.get(key, []) != found:
                self._seen[key], merged = found, merge_spans(found)
                if self._logged.get(key, ()) != merged:
                    self._logged[key] = merged
                    self._log.add("memory", "hold", unit=key[1], category=key[0], spans=merged, dtype=dtypes.get(key))

    def _living(self) -> list[Holder]:
        return [engine for known in self._engines if (engine := known()) is not None]

    def _trained_models(self) -> list[nn.Module]:
        """The models of the engines."""
        return [engine.model for engine in self._living()]

    def _noted(self) -> set[int]:
        """The ids of all parameters of the models that were noted."""
        return self.models.ids(self._trained_models())

    def _engines_flats(self) -> set[str]:
        """The flats of engines that say at every look what state they hold."""
        own = (engine for engine in self._living() if not isinstance(engine, Native))
        return {flat.layout.name for engine in own for flat in engine.flats}

    def _held(self, names: set[str] | None, *, updates: bool) -> list[Held]:
        """What is held in some flats or in all; in all of an engine, too, that cannot say it by flat."""
        # Other systems' state changes with updates, and is half of what there is to be looked at.
        those = {*self.units} if names is None and not updates else names
        held: list[Held] = [
            (c, name, (span,), x) for engine in self._living() for c, name, span, x in engine.holdings(those)
        ]
        held += self.models.held(names, anew=updates)
        if updates:
            held += self.optimizers.held(self.models, self._trained_models())
        return [*held, *self._pieces.of_buckets(self.models.deepspeed if names is None else ())]
