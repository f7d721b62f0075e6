"""When a unit must be whole, for an engine that keeps no parameters but its shards.

A unit is gathered before the outermost module runs that holds parameters of it, and again when the first gradient
comes back to what such a module gave. It is released after the module, and in backward when it owes no gradient any
more: all of its parameters have theirs, and so have the inputs that the unit was given. A unit that has no forward of
its own, a `ModuleList` of attention and MLP say, runs in parts: it is released when another unit is used.
"""

from collections import Counter, defaultdict
from functools import partial
from typing import Any
from weakref import WeakSet

import torch
from torch import nn

from zerolab.engines.checks import check_prefetch, check_same_on_all_ranks, check_switches, has_forward
from zerolab.engines.collectives import Exchange
from zerolab.engines.engine import Engine
from zerolab.engines.flat import Flat
from zerolab.engines.graph import is_running, number_of, numbers_behind, tensors_needing_gradient
from zerolab.engines.hooks import Hook
from zerolab.engines.order import Order
from zerolab.engines.partition import ROOT, ParamGroups


class Owed:
    """A gradient that a unit has yet to give to one of its inputs; autograd's graph keeps it, and it goes with it.

    Args:
        number: of the operation that made the input (`graph.number_of`).
    """

    def __init__(self, number: int) -> None:
        self.number = number


class UnitByUnit(Engine):
    """Calls `gather` before a unit is used and `release` when it is done; a stage says what these do.

    Args:
        release_after_forward: False keeps a unit from its forward to its backward.
        prefetch: how many units to gather ahead of the one that is used.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer_cls: type,
        *,
        units: list[str] | None = None,
        param_groups: ParamGroups = (),
        precision: str = "fp32",
        reduce_dtype: torch.dtype | None = None,
        overlap: bool = True,
        offload: bool = False,
        release_after_forward: bool = True,
        prefetch: int = 1,
        **optimizer_keywords: Any,
    ) -> None:
        check_switches(release_after_forward=release_after_forward)
        check_prefetch(prefetch)
        self.release_after_forward = release_after_forward
        # Backward is no mirror of forward where a model branches, so each pass learns from its own last one.
        self._forward_order, self._backward_order = Order(ahead=prefetch), Order(ahead=prefetch)
        # Earlier, the exchange of the unit before would still hold its buffers: three units' worth at once.
        self._after_half: dict[str, list[str]] = {}  # what to gather when a unit has half its gradients
        self._compared: list[str] = []
        self._has_other_graphs = False
        self._arriving: dict[Flat, Exchange] = {}  # gathers that have started
        super().__init__(
            model,
            optimizer_cls,
            units=units,
            param_groups=param_groups,
            precision=precision,
            reduce_dtype=reduce_dtype,
            overlap=overlap,
            offload=offload,
            **optimizer_keywords,
        )

    def start_gather(self, flat: Flat) -> None:
        """Starts making the flat whole."""
        raise NotImplementedError

    def gather(self, flat: Flat) -> None:
        """Makes the flat whole on every rank."""
        raise NotImplementedError

    def release(self, flat: Flat) -> None:
        """Gives the memory back."""
        raise NotImplementedError

    def is_whole(self, flat: Flat) -> bool:
        """Whether the flat has been gathered."""
        raise NotImplementedError

    def backward(self, loss: torch.Tensor) -> None:
        """Runs autograd, then releases what is still whole, because no gradient told that its unit was done."""
        self._backward_order.begin()
        try:
            self._keep_owed_behind(loss)
            super().backward(loss)
        finally:  # a unit whose inputs need no gradient, a frozen first block say, is never told that it is done
            self.release_everything()

    def _keep_owed_behind(self, loss: torch.Tensor) -> None:
        """Forgets what units owe in graphs of other forwards, whose backward never came or failed.

        When those graphs go may depend on the garbage collector, which runs on each rank at another time, and the
        ranks would then start their exchanges in different orders.
        """
        if self._has_other_graphs and isinstance(loss, torch.Tensor) and loss.requires_grad:
            reached = {-1} | numbers_behind(loss)
            for unit, owed in self._owed.items():
                self._owed[unit] = WeakSet(each for each in owed if each.number in reached)
        self._has_other_graphs = False

    def release_everything(self) -> None:
        """Leaves nothing whole."""
        # A graph that the learner keeps alive would otherwise hold its units for ever.
        self._owed.clear()
        self._after_half.clear()
        for flat in self.flats:
            self.release(flat)

    def release_if_done(self, unit: str) -> None:
        """Releases a unit that owes no gradient any more, neither to its parameters nor to its inputs."""
        if torch.is_grad_enabled():  # a backward of which a backward will be taken, and that needs the unit, too
            return
        # Its inputs' gradients need the weights, too: the last parameter's gradient may come before them.
        if not self._owed[unit] and not any(flat.awaited for flat in self._units[unit]):
            for flat in self._units[unit]:
                self.release(flat)

    def _watch(self) -> None:
        """Gathers each unit before a module runs that holds parameters of it, and releases it after."""
        super()._watch()
        # A count, because modules of one unit run inside one another: only the outermost gathers and releases.
        self._running: Counter[str] = Counter()  # how deep we are inside a unit
        self._owed: defaultdict[str, WeakSet[Owed]] = defaultdict(WeakSet)
        self._units: dict[str, list[Flat]] = {}
        for flat in self.flats:
            self._units.setdefault(flat.layout.unit, []).append(flat)
        # What has no forward of its own is used by its parts, one after the other.
        self._in_parts = {unit for unit in self._units if not has_forward(self._module_of(unit))}
        self._between_parts: set[str] = set()  # whole, because the next part of it may come
        for module, units in self._users().items():
            for unit in units:  # our hook first: hooks of the model may read its parameters
                before, after = (
                    Hook.of(self, UnitByUnit._before_forward, unit),
                    Hook.of(self, UnitByUnit._after_forward, unit),
                )
                module.register_forward_pre_hook(before, prepend=True, with_kwargs=True)
                module.register_forward_hook(after)
        self.model.register_forward_pre_hook(Hook.of(self, UnitByUnit._begin_forward), prepend=True)
        self.model.register_forward_hook(Hook.of(self, UnitByUnit._end_forward))

    def _module_of(self, unit: str) -> nn.Module:
        return self.model.get_submodule("" if unit == ROOT else unit)

    def _users(self) -> dict[nn.Module, dict[str, None]]:
        """The units that each module needs: a unit's own module, and every module with parameters of its own."""
        unit_of = {id(parameter): flat.layout.unit for flat in self.flats for parameter in flat.parameters}
        # Tied weights: the module that uses a parameter need not be the one whose unit it lies in.
        users = {self._module_of(unit): {unit: None} for unit in self._units}
        for module in self.model.modules():
            for parameter in module.parameters(recurse=False):
                users.setdefault(module, {})[unit_of[id(parameter)]] = None
        return users

    def _begin_forward(self, module: nn.Module, inputs: Any) -> None:
        # Checkpointing calls the model's blocks again in backward; that is no new forward.
        if not is_running():
            self._has_other_graphs |= any(self._owed.values())
            self._forward_order.begin()
            self._running.clear()  # a forward that raised left it as it was

    def _end_forward(self, module: nn.Module, inputs: Any, outputs: Any) -> None:
        self._release_between_parts()

    def _release_between_parts(self) -> None:
        while self._between_parts:
            for flat in self._units[self._between_parts.pop()]:
                self.release(flat)

    def _use(self, unit: str, order: Order) -> list[str]:
        """Gathers the unit; returns what comes after it, to be gathered meanwhile."""
        for flat in self._units[unit]:
            self.gather(flat)
        return order.use(unit)

    def _start_gathering(self, units: list[str]) -> None:
        for unit in units:
            for flat in self._units[unit]:
                self.start_gather(flat)

    def _before_forward(self, unit: str, module: nn.Module, inputs: Any, keywords: dict[str, Any]) -> Any:
        if is_running():  # activation checkpointing runs a forward again, out of order
            for flat in self._units[unit]:
                self.gather(flat)
            return None
        self._running[unit] += 1
        if self._running[unit] > 1:
            return None
        self._between_parts.discard(unit)
        self._release_between_parts()
        if not self._forward_order.expects(unit):  # a new order: all ranks must have it, or they wait for each other
            check_same_on_all_ranks([unit], "the units that a forward uses next")
        # Its own gather is awaited first: what is fetched ahead must not delay what is needed now.
        self._start_gathering(self._use(unit, self._forward_order))
        own = tuple(_own(value) for value in inputs), {name: _own(value) for name, value in keywords.items()}
        for tensor in tensors_needing_gradient(own):
            self._owe(unit, tensor)
        return own

    def _after_forward(self, unit: str, module: nn.Module, inputs: Any, outputs: Any) -> None:
        if is_running():  # its backward comes next, so the unit stays
            return
        for tensor in tensors_needing_gradient(outputs):
            # On the outputs, not on the module: a full backward hook would break an inplace ReLU that follows.
            tensor.register_hook(partial(self._before_backward, unit))
        self._running[unit] -= 1
        if self._running[unit] or not self.release_after_forward:
            return
        if unit in self._in_parts:
            self._between_parts.add(unit)
        else:
            for flat in self._units[unit]:
                self.release(flat)

    def _owe(self, unit: str, tensor: torch.Tensor) -> None:
        """Notes the gradient that the unit will owe one of its inputs, under a name that only this unit uses."""
        owed = Owed(number_of(tensor))
        self._owed[unit].add(owed)
        tensor.register_hook(partial(self._after_backward, unit, owed))

    def _before_backward(self, unit: str, output_gradient: torch.Tensor) -> None:
        # A unit of several outputs hears of several gradients; only the first has to gather.
        if not all(self.is_whole(flat) for flat in self._units[unit]):
            self._after_half[unit] = self._use(unit, self._backward_order)
            if not any(flat.awaited for flat in self._units[unit]):  # a frozen unit has no gradients to wait for
                self._start_gathering(self._after_half.pop(unit))

    def _at_half(self, flat: Flat) -> None:
        """Gathers the next unit in the second half of this one, when the exchange of the one before has made room."""
        super()._at_half(flat)
        expected = self._after_half.pop(flat.layout.unit, [])
        # One that backward has already used would be gathered for nothing, and stay until the end.
        self._start_gathering([unit for unit in expected if unit not in self._backward_order.now])

    def _after_backward(self, unit: str, owed: Owed, input_gradient: torch.Tensor) -> None:
        self._owed[unit].discard(owed)
        self.release_if_done(unit)
        self._reduce_what_is_ready()

    def _is_ready(self, flat: Flat) -> bool:
        return super()._is_ready(flat) and not self._owed[flat.layout.unit]

    def _await_gradients(self, parameters: set[int]) -> None:
        """Ranks that gather different units would wait for each other: compares at first, and after each change."""
        reached = [unit for unit, flats in self._units.items() if any(flat.has_any_of(parameters) for flat in flats)]
        used = [*self._forward_order.now, "backward:", *reached]
        if used != self._compared:
            self._compared = used
            check_same_on_all_ranks(used, "the units that a forward used and a backward needs")
        super()._await_gradients(parameters)


def _own(value: Any) -> Any:
    """An input of a unit as a tensor of its own, whose gradient is complete when this unit, not all, has given it."""
    needs = isinstance(value, torch.Tensor) and value.requires_grad and torch.is_grad_enabled()
    return value.view_as(value) if needs else value
