"""Which modules are units and which are whole models, and what they are called."""

import weakref
from collections.abc import Collection

from torch import nn

from zerolab.engines.native import Native
from zerolab.names import ROOT
from zerolab.recording.log import Log
from zerolab.recording.ownership import Ownership
from zerolab.recording.wrappers import (
    COMPILED_EAGER,
    COMPILED_HIDDEN,
    is_compiled,
    is_replicated,
    is_sharded,
    units_of,
    unwrapped,
)
from zerolab.runtime.observers import Holder


class Modules:
    """Those whose passes are logged, by name; it keeps none alive."""

    def __init__(self, log: Log, ownership: Ownership) -> None:
        self._log, self._ownership = log, ownership
        # Keyed by identity: a module's class may define equality and hashing, and that would run the learner's code.
        self._names: dict[int, tuple[weakref.ref[nn.Module], str]] = {}
        self.roots = {ROOT}  # names of whole models
        self.late: set[str] = set()  # units of whose gradients nobody else tells before the whole backward is over

    def name_of(self, module: nn.Module) -> str | None:
        """Its name, if it is a unit or a model that was noted."""
        known = self._names.get(id(module))
        return known[1] if known is not None and known[0]() is module else None

    def add_engine(self, engine: Holder) -> None:
        """Notes an engine's model, whose flats say which of its modules are units."""
        module = engine.module if isinstance(engine, Native) else engine.model  # which may be a wrapper around it
        units = {flat.layout.unit for flat in engine.flats} - {ROOT}
        self._forget_parts(engine.model)
        self._note({unit: module.get_submodule(unit) for unit in units} | {ROOT: engine.model})
        self.late = self.late | units if is_replicated(engine.model) else self.late - units
        self._ownership.add_engine(engine)

    def learn(self, module: nn.Module) -> str:
        """Notes a model that is called for the first time, and returns the name of its root."""
        model = unwrapped(module)
        if is_compiled(module):
            self._log.add("note", "torch.compile", text=COMPILED_HIDDEN if self._log.times_only else COMPILED_EAGER)
        its, root = self._ownership, ROOT
        if not its.is_known(model) and its.is_part(model):  # called by itself: its units have their names
            modules = {root: module}
        else:
            if not its.is_known(model):
                self._forget_parts(model, {draft["unit"] for draft in self._log.drafts if draft["op"] == "backward"})
                its.add_model(model, module)
            prefix, own = its.models.prefixes.get(model, ""), {flat.split(" ")[0] for flat in its.units}
            root, units = prefix + ROOT, {prefix + unit: unit for unit in units_of(model)}
            parts = dict(model.named_modules(remove_duplicate=False))  # a scripted module has no `get_submodule`
            modules = {name: parts[unit] for name, unit in units.items() if name in own} | {root: module}
        self._note(modules)
        self.late |= {*modules} if not is_sharded(module) else set()
        self.roots.add(root)
        return root

    def _note(self, modules: dict[str, nn.Module]) -> None:
        self._names |= {id(module): (weakref.ref(module), name) for name, module in modules.items()}

    def _forget_parts(self, model: nn.Module, trained: Collection[str] = ()) -> None:
        """Takes back what was noted of its parts, as one is called before its model is there to learn its shapes."""
        for part in self._ownership.forget_parts(model, trained):
            for module in part.modules():
                self._names.pop(id(module), None)
