"""When a unit must be whole, for an engine that keeps no parameters but its shards.

A unit is gathered before the outermost module runs that holds parameters of it, and again in backward, when the first
gradient of that module's output arrives. It is released after the module, and in backward once all of its parameters
and all of its inputs have their gradients. A unit that has no forward of its own, a `ModuleList` of attention and MLP
say, runs in parts: it is released when another unit is used.
"""

import weakref
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.hooks import RemovableHandle

from zerolab.engines.agreement import check_same_on_all_ranks
from zerolab.engines.checks import check_prefetch, check_switches
from zerolab.engines.flat import Flat, Presence
from zerolab.engines.graph import is_running, number_of, numbers_behind, running_backward, tensors_needing_gradient
from zerolab.engines.partition import has_forward
from zerolab.engines.reduction import Hook, Reduction, Units
from zerolab.engines.views import share_memory
from zerolab.names import ROOT

if TYPE_CHECKING:
    from zerolab.engines.engine import Engine


class Order:
    """Remembers the order of the last pass, and says what came next in it.

    A pass that leaves the remembered order (a model that branches) gets no advice until it returns to it.
    """

    def __init__(self, ahead: int) -> None:
        self._ahead = ahead
        self._last: list[str] = []
        self.now: list[str] = []

    def begin(self) -> None:
        """A new pass begins, if the last one was none yet."""
        if self.now:
            self._last, self.now = self.now, []

    def expects(self, unit: str) -> bool:
        """Whether `unit` came at this place in the last pass, too."""
        return self._last[len(self.now) : len(self.now) + 1] == [unit]

    def use(self, unit: str) -> list[str]:
        """Notes that `unit` is used now; returns up to `ahead` units that are expected next, the nearest first."""
        # After a surprise no guess: a unit gathered for nothing costs its traffic, and its memory until it is used.
        ahead = self._ahead if self.expects(unit) else 0
        self.now.append(unit)
        return self._last[len(self.now) : len(self.now) + ahead]


class Residency(Units):
    """Has a stage gather each unit before a module runs that holds parameters of it, and release it after.

    Four hooks say when: two of torch's modules, before and after a forward; and two on tensors, which autograd calls in
    backward with a gradient: that of a unit's output, before it runs backwards, and that of its input, after it.
    The options are those of `Zero3`.
    """

    def __init__(self, stage: "Engine", release_after_forward: bool, prefetch: int) -> None:
        check_switches(release_after_forward=release_after_forward)
        check_prefetch(prefetch)
        self._stage = stage
        self._weakly = weakref.proxy(self)  # no garbage collector sees hooks in a graph, which a model may keep
        self._releases_after_forward = release_after_forward
        # Backward is no mirror of forward where a model branches, so each pass learns from its own last one.
        self._forward_order = Order(ahead=prefetch)
        self._backward_order = Order(ahead=prefetch)
        # What to gather when a unit has half its gradients. By then gloo has freed the buffers of the exchange
        # before; at the unit's start, parts of three units would be there at once.
        self._after_half: dict[str, list[str]] = {}
        self._compared: list[str] = []
        self._has_other_graphs = False  # a forward came before the last one's backward: a GAN's other loss, say
        self._behind: set[int] | None = None  # the numbers of all operations of this backward, where there are others
        # A count, because modules of one unit run inside one another: only the outermost gathers and releases.
        self._running: Counter[str] = Counter()  # how deep we are inside a unit
        # The gradients that a unit has yet to give to its inputs, each with the number of the operation that made the
        # input (`graph.number_of`). Not weakly: a graph may go by the garbage collector, which runs on each rank at
        # another time, and the ranks would start their exchanges in different orders.
        self._due: defaultdict[str, dict[object, int]] = defaultdict(dict)
        self._on_leaves: list[RemovableHandle] = []  # of hooks on tensors that outlive a step
        self._between_parts: set[str] = set()  # whole, because the next part of it may come
        # Whole, because `autograd.grad(create_graph=True)` ran through it: no hook says when a backward of that does.
        self._in_double_graphs: set[str] = set()

    def watch(self, reduction: Reduction) -> None:
        """Hears of forwards and backwards, which the reduction does not hear of."""
        self._reduction = reduction
        self._flats_of: dict[str, list[Flat]] = {}
        self._unit_of: dict[int, str] = {}  # by the id of each parameter
        for flat in self._stage.flats:
            if not flat.layout.replicated:  # which neither comes nor goes
                self._flats_of.setdefault(flat.layout.unit, []).append(flat)
                self._unit_of |= {id(parameter): flat.layout.unit for parameter in flat.parameters}
        # What has no forward of its own is used by its parts, one after the other.
        self._in_parts = {unit for unit in self._flats_of if not has_forward(self._module_of(unit))}
        for module, units in self._users().items():
            for unit in units:  # our hook first: hooks of the model may read its parameters
                before = Hook(Residency._before_forward, self, unit)
                module.register_forward_pre_hook(before, prepend=True, with_kwargs=True)
                module.register_forward_hook(Hook(Residency._after_forward, self, unit))
        model = self._stage.model
        model.register_forward_pre_hook(Hook(Residency._begin_forward, self), prepend=True)
        model.register_forward_hook(Hook(Residency._release_between_parts, self))

    def begin_backward(self, reached: set[int], loss: torch.Tensor | None) -> None:
        """Compares with the other ranks; and learns which units owe nothing, for they ran in forwards of other losses.

        A loop that calls `loss.backward()` itself does not tell us its loss. Then units that still owe gradients in
        other graphs are reduced at the end.
        """
        self._backward_order.begin()
        units = dict.fromkeys(unit for number, unit in self._unit_of.items() if number in reached)
        used = [*self._forward_order.now, "backward:", *units]
        if used != self._compared:  # ranks that gather different units would wait for each other
            self._compared = used
            check_same_on_all_ranks(used, "the units that a forward used and a backward needs")
        self._behind = None
        if self._has_other_graphs and loss is not None:
            self._behind = {-1} | numbers_behind(loss)  # -1: an input that no operation made

    def owes_inputs(self, unit: str) -> bool:
        """Whether the unit has gradients of its inputs yet to compute, for which it needs its weights."""
        due, behind = self._due[unit], self._behind
        return bool(due) and (behind is None or not behind.isdisjoint(due.values()))

    def reach_half(self, flat: Flat) -> None:
        """Gathers the next unit in the second half of this one: by then gloo's exchange before has made room."""
        if flat.layout.replicated:  # it is small, and its unit has just begun
            return
        expected = self._after_half.pop(flat.layout.unit, [])
        # One that backward has already used would be gathered for nothing, and stay until the end.
        self._start_gathering([unit for unit in expected if unit not in self._backward_order.now])

    def end_backward(self) -> None:
        """Leaves nothing whole: a unit whose inputs need no gradient is never told that it is done."""
        self._behind = None
        self._after_half.clear()
        self._running.clear()  # a forward that raised left it as it was
        if self._reduction.is_last:  # else they may be for another micro-batch's backward
            self._in_double_graphs.clear()
        for unit in self._flats_of:
            self._release(unit)

    def _release(self, unit: str) -> None:
        if unit in self._in_double_graphs or self._stage.keeps_whole:
            return
        for flat in self._flats_of[unit]:
            self._stage.release(flat)

    def forget_everything(self) -> None:
        """Leaves nothing whole and nothing owed: after an update no backward comes for a forward from before it."""
        self.end_backward()
        if self._stage.keeps_whole:  # what has to stay is brought anew
            for flat in chain.from_iterable(self._flats_of.values()):
                self._stage.release(flat)
                self._stage.gather(flat)
        self._forward_order.begin()  # a model that is used by its methods alone never says so
        self._due.clear()
        for handle in self._on_leaves:
            handle.remove()
        self._on_leaves.clear()
        self._has_other_graphs = False

    def release_if_done(self, unit: str) -> None:
        """Releases a unit that owes no gradient any more, neither to its parameters nor to its inputs."""
        if torch.is_grad_enabled():  # create_graph=True: a backward of this one will need the unit, too
            return
        # Its inputs' gradients need the weights, too: the last parameter's gradient may come before them.
        if not self.owes_inputs(unit) and not any(flat.awaited for flat in self._flats_of[unit]):
            self._release(unit)

    def _module_of(self, unit: str) -> nn.Module:
        return self._stage.model.get_submodule("" if unit == ROOT else unit)

    def _users(self) -> dict[nn.Module, dict[str, None]]:
        """The units that each module needs: a unit's own module or its parts, and every module with its own parameters.

        In dictionaries, which keep the order: all ranks must gather alike.
        """
        users = {self._module_of(unit): {unit: None} for unit in self._flats_of}
        for unit in self._in_parts:
            for part in _parts(self._module_of(unit)):
                if any(self._unit_of.get(id(parameter)) == unit for parameter in part.parameters()):
                    users.setdefault(part, {})[unit] = None  # it may use a weight of its children without calling them
        # Tied weights: the module that uses a parameter need not be the one whose unit it lies in.
        for module in self._stage.model.modules():
            for parameter in module.parameters(recurse=False):
                if id(parameter) in self._unit_of:
                    users.setdefault(module, {})[self._unit_of[id(parameter)]] = None
        return users

    def _begin_forward(self, module: nn.Module, inputs: Any) -> None:
        # Checkpointing calls the model's blocks again in backward; that is no new forward.
        if not is_running():
            self._has_other_graphs |= any(self._due.values())
            self._forward_order.begin()
            self._running.clear()  # a forward that raised left it as it was

    def _release_between_parts(self, *_: object) -> None:
        while self._between_parts:
            self._release(self._between_parts.pop())

    def _gather(self, unit: str) -> None:
        for flat in self._flats_of[unit]:
            self._stage.gather(flat)

    def _start_gathering(self, units: list[str]) -> None:
        for unit in units:
            for flat in self._flats_of[unit]:
                self._stage.start_gather(flat)

    def _before_forward(self, unit: str, module: nn.Module, inputs: Any, keywords: dict[str, Any]) -> Any:
        if is_running():  # activation checkpointing runs a forward again, out of order
            self._gather(unit)
            return None
        self._running[unit] += 1
        if self._running[unit] > 1:
            return None
        self._between_parts.discard(unit)
        self._release_between_parts()
        if not self._forward_order.expects(unit):  # a new order: all ranks must have it, or they wait for each other
            check_same_on_all_ranks([unit], "the units that a forward uses next")
        self._gather(unit)  # first: what is fetched ahead must not delay what is needed now
        self._start_gathering(self._forward_order.use(unit))
        aliases = tuple(_alias(value) for value in inputs), {name: _alias(value) for name, value in keywords.items()}
        for tensor in tensors_needing_gradient(aliases):
            owed = object()
            self._due[unit][owed] = number_of(tensor)
            self._hook(tensor, Residency._after_backward, unit, owed)
        return aliases

    def _hook(self, tensor: torch.Tensor, method: Any, *arguments: object) -> None:
        handle = tensor.register_hook(partial(method, self._weakly, *arguments))
        if tensor.is_leaf:  # it does not go with the graph: a parameter that is handed from unit to unit, say
            self._on_leaves.append(handle)

    def _after_forward(self, unit: str, module: nn.Module, inputs: Any, outputs: Any) -> Any:
        if is_running():  # its backward comes next, so the unit stays
            return None
        self._running[unit] -= 1
        needing = tensors_needing_gradient(outputs)
        if not self._running[unit] and _within([*tree_leaves(outputs), *needing], self._flats_of[unit]):
            outputs = _outlasting(outputs, self._flats_of[unit])
            needing = tensors_needing_gradient(outputs)
        for tensor in needing:
            # On the outputs, not on the module: a full backward hook would break an inplace ReLU that follows.
            self._hook(tensor, Residency._before_backward, unit)
        if self._running[unit] or not self._releases_after_forward:
            return outputs
        if unit in self._in_parts:
            self._between_parts.add(unit)
        else:
            self._release(unit)
        return outputs

    def _before_backward(self, unit: str, output_gradient: torch.Tensor) -> None:
        if self._reduction.backward != running_backward():
            self._reduction.notice()
        if torch.is_grad_enabled():
            self._in_double_graphs.add(unit)
        # A unit of several outputs hears of several gradients; only the first has to gather.
        if not all(flat.presence is Presence.WHOLE for flat in self._flats_of[unit]):
            self._gather(unit)
            self._after_half[unit] = self._backward_order.use(unit)
            if not any(flat.awaited for flat in self._flats_of[unit]):  # a frozen unit has no gradients to wait for
                self._start_gathering(self._after_half.pop(unit))

    def _after_backward(self, unit: str, owed: object, input_gradient: torch.Tensor) -> None:
        self._due[unit].pop(owed, None)
        self.release_if_done(unit)
        self._reduction.start_ready()


def _parts(module: nn.Module) -> Iterator[nn.Module]:
    """The outermost modules that can be called in one that cannot."""
    for child in module.children():
        yield from [child] if has_forward(child) else _parts(child)


def _within(values: list[Any], flats: list[Flat]) -> bool:
    """Whether one of the values lies in the memory of the flats' parameters."""
    for value in values:
        if isinstance(value, torch.Tensor) and torch._C._has_storage(value):  # noqa: SLF001  (a sparse one has none)
            for flat in flats:
                if share_memory(value, flat.whole):
                    return True
    return False


def _outlasting(outputs: Any, flats: list[Flat]) -> Any:
    """A unit's outputs; what lies in its parameters' memory, which goes before the outputs do, as copies."""
    outputs = tree_map(lambda value: value.clone() if _within([value], flats) else value, outputs)
    # A parameter itself says that it is released.
    if _within([each for each in tensors_needing_gradient(outputs) if not isinstance(each, nn.Parameter)], flats):
        raise RuntimeError(
            f"{flats[0].layout.unit!r} gives a part of its parameters to others in a {type(outputs).__name__}, whose "
            "memory goes before they use it: give a clone() of it"
        )
    return outputs


def _alias(value: Any) -> Any:
    """An input of a unit as another tensor with the same numbers, which this unit alone uses.

    A tensor's gradient comes when all that used it have given theirs; an alias's, when this one unit has.
    """
    needs = isinstance(value, torch.Tensor) and value.requires_grad and torch.is_grad_enabled()
    return value.view_as(value) if needs else value
