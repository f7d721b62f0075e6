"""Models that no engine trains: which of their parameters lie in which flat, and what is held of them."""

import weakref
from collections.abc import Collection, Iterable, Iterator
from itertools import chain
from weakref import WeakKeyDictionary, WeakSet

import torch
from torch import nn

from zerolab.recording.events import UnitInfo, unit_of
from zerolab.recording.units import Held, Pieces, Places, flat_of_gradient, lay_out
from zerolab.recording.wrappers import Part, deepspeed_in, is_replicated, is_sharded, parts_of, prefix_of


class Models:
    """The models that were noted; it keeps none alive."""

    def __init__(self, pieces: Pieces) -> None:
        self.places: WeakKeyDictionary[nn.Module, Places] = WeakKeyDictionary()
        self.prefixes: WeakKeyDictionary[nn.Module, str] = WeakKeyDictionary()
        self.whose: dict[str, str] = {}  # the prefix of the model of each flat; engines say themselves what is frozen
        self.deepspeed: WeakSet[nn.Module] = WeakSet()  # its engines, whose optimizers update copies of the parameters
        self.under_others = False  # another system's code gathers and reduces
        self.have_buffers = False  # either that, or torch's DDP, which only reduces: its parameters stay put
        self._pieces = pieces
        self._own: WeakKeyDictionary[nn.Module, dict[str, weakref.ref[nn.Parameter]]] = WeakKeyDictionary()
        self._grown: WeakSet[nn.Module] = WeakSet()  # models with parameters that have no place
        self._parts: WeakKeyDictionary[nn.Module, dict[str | None, list[Part]]] = WeakKeyDictionary()

    def add(self, model: nn.Module, outermost: nn.Module, engines: Collection[nn.Module]) -> list[UnitInfo]:
        """Notes a model, inside its wrappers, and returns its flats; of one that shares a part the rest.

        For a second model, such as a GAN's, the names are prefixed as `prefix_of` says. Models of `engines` count.
        """
        self.under_others |= is_sharded(outermost)
        self.have_buffers |= self.under_others or is_replicated(outermost)
        self.deepspeed.update(deepspeed_in(outermost))
        named = [*((each, self.prefixes[each]) for each in self.places), *((each, "") for each in engines)]
        names = [prefix + name for each, prefix in named for name, _ in each.named_parameters()]
        others, self.prefixes[model] = self.ids(engines), prefix_of(model, names)
        self._own[model] = {name: weakref.ref(each) for name, each in model.named_parameters(remove_duplicate=False)}
        return self._lay_out(model, outermost, others, ())

    def note_added(self, engines: Collection[nn.Module], taken: Collection[str]) -> list[UnitInfo]:
        """Notes what was added to models after they were noted, such as adapters, in flats with names not `taken`."""
        found: list[UnitInfo] = []
        for model in [] if self.under_others else [*self._grown]:
            rest = (other for other in (*self.places, *engines) if other is not model)
            others = {id(each) for other in rest for each in other.parameters()}
            others |= {key for key in self.places[model] if isinstance(key, int)}
            # None of another system's has a place.
            if self.places[model] and not others.issuperset(map(id, model.parameters())):
                found += self._lay_out(model, model, others, {*taken, *(unit.name for unit in found)})
        self._grown.clear()
        return found

    def _lay_out(
        self, model: nn.Module, outermost: nn.Module, others: Collection[int], taken: Collection[str]
    ) -> list[UnitInfo]:
        layouts, places = lay_out(model, outermost, self.prefixes[model], others, taken)
        self.places[model] = self.places.get(model, {}) | places
        self.whose |= {layout.name: self.prefixes[model] for layout in layouts}
        return [unit_of(layout) for layout in layouts]

    def forget_parts(self, model: nn.Module, trained: Collection[str]) -> tuple[list[nn.Module], set[str]]:
        """Drops models that are this one or parts of it, called before it was noted; else they would count twice.

        But for those with `trained` units, which keep them: the whole gets the rest. Returns them and their flats.
        """
        ids, modules = {id(parameter) for parameter in model.parameters()}, {id(module) for module in model.modules()}
        parts: list[nn.Module] = []
        dropped: set[str] = set()
        for part, places in [*self.places.items()]:
            its, flats = {key for key in places if isinstance(key, int)}, {flat for flat, _ in places.values()}
            is_within = id(part) in modules or (its and its <= ids)  # a wrapper may have replaced the parameters
            if is_within and not any(flat.split(" ")[0] in trained for flat in flats):
                parts.append(part)
                dropped |= flats
                del self.places[part]
                self._grown.discard(part)
        return parts, dropped

    def ids(self, engines: Collection[nn.Module]) -> set[int]:
        """The ids of all parameters of these models, and of the engines'."""
        return {id(parameter) for model in (*self.places, *engines) for parameter in model.parameters()}

    def flat_of_gradient(self, tensor: torch.Tensor) -> str | None:
        """The flat of the parameter whose gradient this is, or a view of all of it; None if it is nobody's."""
        return flat_of_gradient(tensor, self.places)

    def held(self, names: Collection[str] | None, *, anew: bool) -> Iterator[Held]:
        """What they hold in some flats or in all; `anew` looks for modules, too, as at each update."""
        for model, places in self.places.items():
            seen = set()  # a tied parameter has several names
            for prefix, part, records in self._parts_with(model, names, anew=anew):
                module = part()
                for key, there in module._parameters.items() if module is not None else ():
                    unit, start = places.get(prefix + key, (None, 0))
                    parameter = self._its_own(model, prefix + key, there) if type(there) is torch.Tensor else there
                    if unit is None and anew:
                        self._grown.add(model)
                    if parameter is not None and (names is None or unit in names) and id(parameter) not in seen:
                        seen.add(id(parameter))
                        yield from self._pieces.of_parameter(parameter, unit, start)
                        record = records[key]() if key in records else None
                        # Micro-batches add up in it, where FSDP2 reduces in another dtype than it computes in.
                        if record is not None and (whole := record.unsharded_accumulated_grad) is not None:
                            yield from self._pieces.of("gradients", whole, unit, start)

    def _its_own(self, model: nn.Module, name: str, there: torch.Tensor) -> torch.Tensor | None:
        """The parameter in whose place a loop has put another tensor for one call, as `functional_call` does."""
        own = None if self.under_others else self._own[model].get(name)
        return there if own is None else own()

    def _parts_with(self, model: nn.Module, names: Collection[str] | None, *, anew: bool) -> Iterable[Part]:
        """The modules that have something in some flats of a model, or all."""
        if anew or model not in self._parts:
            self._parts[model] = parts_of(model, self.places[model])
        known = self._parts[model]
        return chain(*(known.get(name, ()) for name in ([None] if names is None else names)))
