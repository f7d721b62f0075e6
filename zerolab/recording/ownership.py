"""Who holds what: the engines say, where there are any; otherwise it is read from the model and its optimizers."""

import weakref
from collections.abc import Collection, Iterable
from itertools import chain
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import torch
from torch import nn

from zerolab.engines.declared import has_two_moments, moments_of, name_of
from zerolab.engines.flat import Flat
from zerolab.engines.native import Native
from zerolab.recording import units
from zerolab.recording.c10d import tensors_in
from zerolab.recording.events import CATEGORIES, Spans, UnitInfo, merge_spans, unit_of
from zerolab.recording.log import Log
from zerolab.recording.units import Held, Pieces, Places, as_trained, flat_of_gradient, lay_out, masters_of, who_trains
from zerolab.recording.updates import tensors_of
from zerolab.recording.wrappers import Part, deepspeed_in, is_replicated, is_sharded, local_of, parts_of, prefix_of
from zerolab.runtime.observers import Call, Holder

EVERYTHING = ""  # in place of a flat's name

_INDEX: dict[str, int] = {category: index for index, category in enumerate(CATEGORIES)}  # in the ledger's lists


class Ownership:
    """Keeps the ledger's categories right, and logs a `hold` event whenever what this rank holds changes."""

    def __init__(self, log: Log) -> None:
        self._log = log
        # Recording keeps nothing alive: what the learner drops must be freed as if nobody were recording.
        self._engines: list[weakref.ref[Holder]] = []
        self._models: WeakKeyDictionary[nn.Module, Places] = WeakKeyDictionary()
        self._own: WeakKeyDictionary[nn.Module, dict[str, weakref.ref[nn.Parameter]]] = WeakKeyDictionary()
        self._grown: WeakSet[nn.Module] = WeakSet()  # models with parameters that have no place
        self.prefixes: WeakKeyDictionary[nn.Module, str] = WeakKeyDictionary()
        self._parts_of: WeakKeyDictionary[nn.Module, dict[str | None, list[Part]]] = WeakKeyDictionary()
        self._pieces, self._flats = Pieces(), units.Flats()
        self._optimizers: WeakSet[torch.optim.Optimizer] = WeakSet()
        self._states: WeakKeyDictionary[torch.optim.Optimizer, list[int]] = WeakKeyDictionary()
        self._seen: dict[tuple[str, str], list[tuple[int, int]]] = {}  # as they were given; merged in `_logged`
        self._logged: dict[tuple[str, str], Spans] = {}
        self._later: set[str] = set()  # flats that the next look at any flat includes
        self._gathered: set[str] = set()  # flats of another system that are whole, or being gathered
        self._emptied = False  # whether another system has emptied a storage since the last look
        self.units: dict[str, UnitInfo] = {}
        self._whose: dict[str, str] = {}  # the prefix of the model of each flat; engines say themselves what is frozen
        self._closed: set[str] = set()  # whose parameters took no gradient at the update that last made state
        self._updated: set[str | None] = set()  # those of other models that optimizers have; None for other tensors
        self.stage: str | None = None
        self.precision: str | None = None  # as the engine says; its layouts have the module's original dtypes
        self.had_state = False  # whether optimizers already had state at the first recorded update
        self.matrices = 0  # elements of the matrices that the engine's Muon updates
        self.offload = False  # whether the engine's optimizer updates copies in main memory
        self.reduce_dtype: str | None = None  # in which the engine adds up gradients, if not in the precision's own
        self.amsgrad: set[str] = set()  # flats of which Adam keeps the largest second moments
        self._kinds: dict[int, str] = {}  # the classes of those that have updated, by their ids
        self.moments = "fp32"  # in what its moments lie
        self.has_form = True  # whether it keeps as many as the formulas count, if it is an engine's
        self.updated: dict[str, list[int]] = {}  # of flats updated only in part: the elements of each tensor that was
        self.masters = 0  # bytes of the fp32 copies that optimizers update in place of the models' parameters
        self._deepspeed: WeakSet[nn.Module] = WeakSet()  # its engines, whose optimizers update such copies
        self.follows_others = False  # another system's code gathers and reduces
        self._sees_buffers = False  # either that, or torch's DDP, which only reduces: its parameters stay put

    @property
    def optimizer(self) -> str | None:
        """The class of what has updated; of several, such as Muon beside AdamW, "Muon+AdamW"."""
        return "+".join(dict.fromkeys(self._kinds.copy().values())) or None

    def add_engine(self, engine: Holder) -> None:
        """From now on `engine.holdings()` says what is held."""
        self._engines.append(weakref.ref(engine))
        self.stage, self.precision, self.offload = engine.stage, engine.precision, engine.offload
        self.matrices = engine.matrix_numel
        widened = (flat.gradient_dtype for flat in engine.flats if isinstance(flat, Flat) and flat.widens_gradients)
        self.reduce_dtype = next((str(dtype).removeprefix("torch.") for dtype in widened if not dtype.is_complex), None)
        self._log.compute_on(next(engine.model.parameters()).device)
        self.follows_others |= isinstance(engine, Native)
        self._sees_buffers |= self.follows_others
        self.units |= {flat.layout.name: unit_of(flat.layout) for flat in engine.flats}
        self.sync()

    def add_model(self, model: nn.Module, outermost: nn.Module) -> None:
        """Notes a model that no engine trains, inside its wrappers; of one that shares a part the rest.

        For a second model, such as a GAN's, the names are prefixed as `prefix_of` says.
        """
        self.follows_others |= is_sharded(outermost)
        self._deepspeed.update(deepspeed_in(outermost))
        self._sees_buffers |= self.follows_others or is_replicated(outermost)
        self._log.compute_on(next(model.parameters()).device)
        others, self.prefixes[model] = self._noted(), prefix_of(model, self._names())
        layouts, self._models[model] = lay_out(model, outermost, self.prefixes[model], others)
        self.units |= {layout.name: unit_of(layout) for layout in layouts}
        self._whose |= {layout.name: self.prefixes[model] for layout in layouts}
        self._own[model] = {name: weakref.ref(each) for name, each in model.named_parameters(remove_duplicate=False)}
        self.sync(updates=True)

    def _note_added(self) -> None:
        """Notes what was added to models after they were noted, such as adapters, in flats of its own."""
        for model in [] if self.follows_others else [*self._grown]:
            models = [*self._models, *(engine.model for engine in self._living())]
            others = {id(each) for other in models if other is not model for each in other.parameters()}
            others |= {key for key in self._models[model] if isinstance(key, int)}
            # None of another system's has a place.
            if self._models[model] and not others.issuperset(map(id, model.parameters())):
                layouts, places = lay_out(model, model, self.prefixes[model], others, self.units)
                self.units |= {layout.name: unit_of(layout) for layout in layouts}
                self._whose |= {layout.name: self.prefixes[model] for layout in layouts}
                self._models[model] |= places
                self.sync(updates=True)
        self._grown.clear()

    def described(self) -> list[UnitInfo]:
        """What is known of the flats, and of those without an engine whether they are trained; any thread may ask."""
        units = self.units.copy()
        if self.optimizer is None:
            return [*units.values()]
        trained = {name for category, name in [*self._logged.copy()] if category != "parameters"}
        return as_trained(units, self._whose.copy(), trained | self._updated.copy(), self._closed)

    def forget_parts(self, model: nn.Module, trained: Collection[str] = ()) -> list[nn.Module]:
        """Drops models that are this one or parts of it, called before it was noted; else they would count twice.

        But for those with `trained` units, which keep them: the whole gets the rest.
        """
        ids, modules = {id(parameter) for parameter in model.parameters()}, {id(module) for module in model.modules()}
        parts = []
        for part, places in [*self._models.items()]:
            its, flats = {key for key in places if isinstance(key, int)}, {flat for flat, _ in places.values()}
            is_within = id(part) in modules or (its and its <= ids)  # a wrapper may have replaced the parameters
            if is_within and not any(flat.split(" ")[0] in trained for flat in flats):
                parts.append(part)
                del self._models[part]
                self.units = {name: unit for name, unit in self.units.items() if name not in flats}
        return parts

    def is_part(self, model: nn.Module) -> bool:
        """Whether all its parameters are those of models that were noted."""
        return self._noted().issuperset(map(id, model.parameters()))

    def _noted(self) -> set[int]:
        """The ids of all parameters of the models that were noted."""
        models = [*self._models, *(engine.model for engine in self._living())]
        return {id(parameter) for model in models for parameter in model.parameters()}

    def before_update(self, optimizer: torch.optim.Optimizer) -> None:
        """Notes an optimizer that is about to update, and what is held at that moment."""
        self._kinds[id(optimizer)], self.moments = name_of(optimizer), moments_of(optimizer)
        # An engine's own optimizer updates shards, and the engine says what is in them.
        if not any(engine.optimizer is optimizer for engine in self._living()):
            self._optimizers.add(optimizer)
        self.sync(updates=True)
        self._note_added()

    def add_optimizers(self, optimizers: Iterable[torch.optim.Optimizer]) -> None:
        """Notes optimizers that made updates before the recording and so already have state."""
        self._optimizers.update(optimizers)
        self.had_state = bool(self._optimizers)

    def before_inner_update(self, inner: torch.optim.Optimizer, outer: torch.optim.Optimizer) -> None:
        """Notes an optimizer to which another hands its work and its state, as ZeroRedundancyOptimizer does."""
        if outer in self._optimizers:
            self._optimizers.add(inner)
            self._kinds.pop(id(outer), None)
            self._kinds[id(inner)], self.moments = name_of(inner), moments_of(inner)

    def after_update(self, optimizer: torch.optim.Optimizer) -> None:
        """Notes what was updated; looks again if that made new state, as a first update does: else nothing moved."""
        mine = (engine.flats for engine in self._living() if engine.optimizer is optimizer)
        flats = [flat for flat in chain(*mine) if isinstance(flat, Flat) and not flat.layout.frozen]
        sizes = {flat.layout.name: flat.updated_so_far() for flat in flats}
        if any(sizes.values()):  # else it has kept nothing yet
            self.has_form = bool(self.matrices) or has_two_moments(optimizer)
        for flat in flats:
            if any("max_exp_avg_sq" in optimizer.state.get(updated, ()) for updated, _ in flat.updated()):
                self.amsgrad.add(flat.layout.name)
            self.updated[flat.layout.name] = sizes[flat.layout.name]
            if self.updated[flat.layout.name] == [flat.owned.numel()]:
                del self.updated[flat.layout.name]
        # Not this one's yet: one that updates once, as Muon for a matrix that is whole now, keeps nothing that counts.
        known = chain(self._states, self._optimizers, (engine.optimizer for engine in self._living()))
        states = {k: [id(x) for _, x in tensors_of(k)] for k in known if isinstance(k, torch.optim.Optimizer)}
        if dict(self._states) != states:
            self._states = WeakKeyDictionary(states)
            self._closed, updated = who_trains(self._models, self._optimizers)
            self._updated |= updated
            self.sync(updates=True)
        self._states.setdefault(optimizer, [id(tensor) for _, tensor in tensors_of(optimizer)])

    def step_counters(self) -> int:
        """Bytes of the single numbers, such as step counters, that optimizers outside engines keep."""
        kept = (local_of(tensor) for each in self._optimizers for _, tensor in tensors_of(each) if tensor.dim() == 0)
        return sum(counter.nbytes for counter in kept if counter is not None)

    def communicated(self, unit: str | None, phase: str, arguments: Any) -> None:
        """Notes what another system sends or receives of a unit, if it is known: only now its buffers can be told."""
        if self._sees_buffers and not self._log.times_only:
            if self.follows_others:
                self.look_at(unit)
                if phase == "gather":
                    self._gathered |= self._flats.of_unit(unit, self.units)
            for tensor in tensors_in(arguments):
                self._log.ledger.travels(tensor)

    def is_known(self, module: nn.Module) -> bool:
        """Whether an engine trains this module, or it was noted before."""
        return module in self._models or any(engine.model is module for engine in self._living())

    def flat_of(self, call: Call) -> str | None:
        """The name of the flat whose gradient this collective reduces, or whose parameters it gathers."""
        if call.name in self.units:
            return call.name
        # A learner's engine need not name it; then it is the flat that is held whole in this very tensor.
        holdings = (holding for engine in self._living() for holding in engine.holdings())
        return next((holding.unit for holding in holdings if holding.tensor is call.flat), None)

    def look_for(self, tensor: torch.Tensor) -> str | None:
        """The flat of which a learner's code sends this gradient by a collective that is not ours, if it is one."""
        if not (self._log.in_backward and self._log.counts()) or self.follows_others:
            return None
        if self._engines:
            self.sync()
        return self._log.ledger.unit_of(tensor) or flat_of_gradient(tensor, self._models)

    def look_later(self, flat: str | None) -> None:
        """Something is about to change in a flat: include it in the next look at any flat."""
        if flat is not None:
            self._later.add(flat)

    def released(self, flat: str | None) -> None:
        """A storage was emptied. Other systems have one per parameter: the next look sees them all at once."""
        if self.follows_others:
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

    def _names(self) -> list[str]:
        """The names of all parameters, with their models' prefixes."""
        models = [(model, self.prefixes[model]) for model in self._models]
        models += [(engine.model, "") for engine in self._living()]
        return [prefix + name for model, prefix in models for name, _ in model.named_parameters()]

    def _living(self) -> list[Holder]:
        return [engine for known in self._engines if (engine := known()) is not None]

    def _engines_flats(self) -> set[str]:
        """The flats of engines that say at every look what state they hold."""
        own = (engine for engine in self._living() if not isinstance(engine, Native))
        return {flat.layout.name for engine in own for flat in engine.flats}

    def _held(self, names: set[str] | None, *, updates: bool) -> list[Held]:
        """What is held in some flats or in all; in all of an engine, too, that cannot say it by flat."""
        # Other systems' state changes with updates, and is half of what there is to be looked at.
        those = {*self.units} if names is None and not updates else names
        held = [(c, name, (span,), x) for engine in self._living() for c, name, span, x in engine.holdings(those)]
        return held + self._held_by_models(names, updates=updates)

    def _held_by_models(self, names: set[str] | None, *, updates: bool) -> list[Held]:
        """What models without an engine hold, in some flats or in all; with `updates`, their optimizers' state, too."""
        held: list[Held] = []
        for model, places in self._models.items():
            seen = set()  # a tied parameter has several names
            for prefix, part, records in self._parts(model, names, again=updates):
                module = part()
                for key, there in module._parameters.items() if module is not None else ():
                    unit, start = places.get(prefix + key, (None, 0))
                    parameter = self._its_own(model, prefix + key, there) if type(there) is torch.Tensor else there
                    if unit is None and updates:
                        self._grown.add(model)
                    if parameter is not None and (names is None or unit in names) and id(parameter) not in seen:
                        seen.add(id(parameter))
                        held += self._pieces.of_parameter(parameter, unit, start)
                        record: Any = records[key]() if key in records else None
                        # Micro-batches add up in it, where FSDP2 reduces in another dtype than it computes in.
                        if record is not None and (whole := record.unsharded_accumulated_grad) is not None:
                            held += self._pieces.of("gradients", whole, unit, start)
        if updates:
            masters = masters_of(self._optimizers, self._noted()) if self._deepspeed else {}
            self.masters = sum(master.nbytes for master in masters.values())
            held += self._pieces.of_optimizers(self._optimizers, [*self._models.values()], masters)
        return [*held, *self._pieces.of_buckets(self._deepspeed if names is None else ())]

    def _its_own(self, model: nn.Module, name: str, there: torch.Tensor) -> torch.Tensor | None:
        """The parameter in whose place a loop has put another tensor for one call, as `functional_call` does."""
        own = None if self.follows_others else self._own[model].get(name)
        return there if own is None else own()

    def _parts(self, model: nn.Module, names: set[str] | None, *, again: bool) -> Iterable[Part]:
        """The modules that have something in some flats of a model, or all; `again` looks anew, as at each update."""
        if again or model not in self._parts_of:
            self._parts_of[model] = parts_of(model, self._models[model])
        known = self._parts_of[model]
        return chain(*(known.get(name, ()) for name in ([None] if names is None else names)))
