"""The way of the gradients through one backward: awaited, arrived, laid out in their flat, reduced over ranks, kept.

Backward brings the last units first, and every rank reduces in that order, whichever gradients it gets and when: a
flat that is early waits for its turn. One exchange is in flight at a time: a whole gradient and one set of buffers lie
beside what backward goes on to compute.
Where a wait blocks this process, over gloo, it comes when the next flat has half its gradients, to make room for the
other half. Where it has the compute stream wait, over NCCL, it comes when the next flat is complete, as in FSDP2: until
then a reduction may take as long as a unit's backward, and at most two units' gradients exist, a flat and what comes.

`engine.backward` announces its backward. One that a loop runs by `loss.backward()` itself is noticed when it brings the
first gradient, or under ZeRO-3 when it comes to the first unit. autograd is asked then which parameters it will bring
gradients for, and to say when it is done, as torch's DDP and FSDP2 ask it. If it fails, it says nothing: what it has
brought is dropped by whatever comes next.
"""

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from zerolab.engines.collectives import Exchange, has_streams
from zerolab.engines.flat import Flat
from zerolab.engines.graph import beside_checkpointing, is_running, parameters_to_come, running_backward
from zerolab.engines.partition import Slot

if TYPE_CHECKING:
    from zerolab.engines.engine import Engine

NONE, ANNOUNCED = -3, -2  # in place of a backward's number; -1 is autograd's own word for: none runs here


class Hook(partial[Any]):
    """Calls a method, which neither torch.compile nor checkpointing sees: gathers are no part of a model's graph."""

    def __new__(cls, method: Callable[..., Any], *arguments: Any) -> Self:
        """Calls it with these arguments, and then with what a module gives its hooks."""
        return super().__new__(cls, torch.compiler.disable(beside_checkpointing(method)), *arguments)

    def __reduce__(self) -> Any:
        """Refuses to be copied or sent, and with it the module: a copy would train the engine's model, not itself."""
        raise TypeError("an engine's model cannot be copied or pickled: load engine.state_dict() into another module")


class Units:
    """What a backward means for the units. Here, where all of them are always whole, nothing; see `Residency`."""

    def watch(self, reduction: "Reduction") -> None:
        """Hears of forwards and backwards; `reduction` is what brings the gradients."""

    def begin_backward(self, reached: set[int], loss: torch.Tensor | None) -> None:
        """A backward begins (see `Reduction.expect`)."""

    def owes_inputs(self, unit: str) -> bool:
        """Whether the unit has gradients of its inputs yet to compute, for which it needs its weights."""
        return False

    def reach_half(self, flat: Flat) -> None:
        """A flat has at least half of its gradients."""

    def end_backward(self) -> None:
        """It is done, or has failed."""


class _InFlight(NamedTuple):
    flat: Flat
    gradient: torch.Tensor
    exchange: Exchange


class Reduction:
    """Reduces each flat's gradient as soon as the last part of it exists, while autograd goes on.

    autograd calls `_arrived` with each parameter's gradient. The one that completes a flat has it laid out end to end,
    and starts its exchange; that one is finished and kept before the next begins. With `overlap` autograd goes on
    meanwhile. `units` hear of a backward that passes through them.
    """

    def __init__(self, engine: "Engine", units: Units, *, overlap: bool) -> None:
        self._engine = engine
        self._flats = engine.trainable  # in the model's order
        self._rules = {flat: engine.rules(flat.layout) for flat in self._flats}
        self._units = units
        self._overlap = overlap
        streams = has_streams(engine.flats[0].shard.device)
        self._waits_at_half = not streams
        self.overlaps_streams = overlap and streams
        self.backward = NONE  # the number of the one that is under way, or has failed and nobody has noticed
        self._of_others = NONE  # the number of one that brings no gradients for us
        self._exchanges = True  # False: this backward only adds gradients up
        self.is_last = True  # False: another one will add to what it brings
        self._waiting: list[Flat] = []  # in the order in which every rank reduces them
        self._in_flight: _InFlight | None = None
        self._hooks: list[tuple[Any, RemovableHandle]] = []  # ours, among a parameter's others

    def watch(self, model: nn.Module) -> None:
        """Hears of each gradient as soon as autograd has finished it, and before of the model's forward."""
        model.register_forward_pre_hook(Hook(Reduction._begin_forward, self), prepend=True)
        reduction = weakref.proxy(self)  # no garbage collector sees these hooks: they must not keep the engine
        for number, flat in enumerate(self._flats):
            for slot, parameter in flat.members():
                hook = partial(Reduction._arrived, reduction, number, slot)
                handle = parameter.register_post_accumulate_grad_hook(hook)
                self._hooks.append((parameter._post_accumulate_grad_hooks, handle))  # noqa: SLF001

    # A backward begins.

    def _begin_forward(self, *_: object) -> None:
        if not is_running():  # else it is a recomputation
            if self.backward != NONE:  # it has failed
                self.drop()
            self._come_last()  # now, because a backward that is not announced begins with a gradient

    def expect(self, reached: set[int], loss: torch.Tensor | None, *, is_last: bool) -> None:
        """A backward begins, from this loss if it is known; it brings gradients for the parameters with these ids.

        If it is the last one, an update comes after it, and no other backward.
        """
        self.is_last, self._exchanges = is_last, is_last or self._engine.reduces_every_backward
        self._units.begin_backward(reached, loss)
        for flat in self._flats:
            flat.take_back()
            flat.awaited = {slot for slot, parameter in flat.members() if id(parameter) in reached}
        self._come_last()
        # Autograd would add up micro-batches in its own dtype: where that is too narrow, they are laid out each time.
        self._waiting = [flat for flat in reversed(self._flats) if self._exchanges or flat.widens_gradients]
        self.backward = ANNOUNCED

    def notice(self) -> None:
        """Called by hooks of autograd's, which only say that some backward is running."""
        if self.backward == ANNOUNCED:
            self.backward = running_backward()
        elif running_backward() not in (self.backward, self._of_others):
            self._begin_unannounced()

    def _come_last(self) -> None:
        """Moves our hooks behind all others of their parameters, because we empty `.grad`.

        torch calls a parameter's hooks in the order in which they were registered. One that a user registered after the
        engine was made, to clip each gradient say, would find nothing there.
        """
        for hooks, handle in self._hooks:
            if next(reversed(hooks)) != handle.id:
                hooks[handle.id] = hooks.pop(handle.id)  # `move_to_end` would not do: torch goes by the plain dict

    def _begin_unannounced(self) -> None:
        """Takes the backward that is running, if it brings gradients for the model.

        Raises:
            RuntimeError: the engine could not take it, as `engine.backward` could not.
        """
        ours = [parameter for flat in self._engine.flats for parameter in flat.parameters]
        # The model's, too: one that it has only since the engine was made is to be refused by name.
        each_once = {id(parameter): parameter for parameter in [*ours, *self._engine.model.parameters()]}
        reached = parameters_to_come(each_once.values())
        if not reached:  # torch.autograd.grad, which returns the gradients instead of leaving them in `.grad`
            self._of_others = running_backward()
            return
        if torch.is_grad_enabled():
            raise RuntimeError(
                "backward(create_graph=True): take gradients to go on computing with by "
                "torch.autograd.grad(..., create_graph=True), and call backward() for the loss made of them"
            )
        self._engine.refuse_second_backward()
        with self.dropping():
            self._engine.begin_backward(reached)
            self.backward = running_backward()
            # To be called when it is done, and not if it fails; torch's DDP asks for the same.
            torch.autograd.Variable._execution_engine.queue_callback(self._end_unannounced)  # noqa: SLF001

    def _end_unannounced(self) -> None:
        with self.dropping():
            self._engine.end_backward()

    # It brings gradients.

    def _arrived(self, number: int, slot: Slot, parameter: torch.Tensor) -> None:
        flat = self._flats[number]
        if self.backward != running_backward():
            try:
                self.notice()
            except BaseException:
                parameter.grad = None  # nothing of a backward that is refused may stay there
                raise
        flat.awaited.discard(slot)
        if flat.has_half_its_gradients:
            if self._waits_at_half:  # the exchange of the flat before has had half a flat's time
                self._finish_exchange()
            self._units.reach_half(flat)
        self.start_ready()

    def start_ready(self) -> None:
        """Reduces the flats that are complete, as far as it is their turn."""
        while self._waiting and not (self._waiting[0].awaited or self._units.owes_inputs(self._waiting[0].layout.unit)):
            self._start_next()

    def _start_next(self) -> None:
        flat = self._waiting.pop(0)
        self._finish_exchange()
        gradient = flat.lay_out_gradients()
        if not self._exchanges:
            return
        self._in_flight = _InFlight(flat, gradient, self._rules[flat].reduce(flat, gradient))
        if not self._overlap:
            self._finish_exchange()

    def _finish_exchange(self) -> None:
        if self._in_flight is not None:
            flat, gradient, exchange = self._in_flight
            self._in_flight = None
            exchange.wait()
            flat.usage.learn(gradient)  # before `keep` divides it: a sum of -0.0 says that no rank had a gradient
            self._rules[flat].keep(flat, gradient)
            if self.is_last and flat.has_update and flat.mean is not None:
                flat.way.send(flat.mean, flat.owned)

    # It ends.

    def finish(self) -> None:
        """Autograd is done: reduces what no gradient came for, too, because another rank may have one."""
        for flat in self._flats:  # a function of the graph may give None instead of a gradient
            flat.awaited.clear()
        while self._waiting:
            self._start_next()
        self._finish_exchange()
        self._end()

    @contextmanager
    def dropping(self) -> Iterator[None]:
        """Drops the gradients if what runs within it fails."""
        try:
            yield
        except BaseException:  # Ctrl-C too
            self.drop()
            raise

    def drop(self) -> None:
        """Forgets what this backward and those since the last step have brought."""
        if self._in_flight is not None:
            self._in_flight.exchange.wait()  # until then nothing of it may be freed
        self._in_flight, self._waiting = None, []
        for flat in self._flats:
            flat.drop_gradients()
        if self.backward != NONE:
            self._end()

    def _end(self) -> None:
        self.backward = NONE
        self._units.end_backward()
