"""The way of the gradients through one backward: awaited, arrived, laid out in their flat, reduced over ranks, kept.

Backward brings the last units first, and every rank reduces in that order, whichever gradients it gets and when: a
flat that is early waits for its turn. One exchange is in flight at a time: its buffers are all that overlap costs.
"""

import weakref
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch.utils.hooks import RemovableHandle

from zerolab.engines.collectives import Exchange
from zerolab.engines.flat import Flat
from zerolab.engines.graph import running_backward
from zerolab.engines.partition import Slot

NONE, ANNOUNCED = -2, -1  # in place of a backward's number


class _InFlight(NamedTuple):
    flat: Flat
    gradient: torch.Tensor
    exchange: Exchange


class Reduction:
    """Reduces each flat's gradient as soon as the last part of it exists, while autograd goes on.

    Args:
        flats: those that are trained, in the model's order.
        start: a stage's `reduce`.
        keep: a stage's `keep`.
        overlap: whether autograd goes on while an exchange is in flight.
    """

    def __init__(
        self,
        flats: list[Flat],
        start: Callable[[Flat, torch.Tensor], Exchange],
        keep: Callable[[Flat, torch.Tensor], None],
        *,
        overlap: bool,
    ) -> None:
        self._flats = flats
        self._start = start
        self._keep = keep
        self._overlap = overlap
        self.backward = NONE  # the number of the one that is under way, or has failed and nobody has noticed
        self._exchanges = True  # False: this backward only adds gradients up
        self._waiting: list[Flat] = []  # in the order in which every rank reduces them
        self._in_flight: _InFlight | None = None
        self._hooks: list[tuple[Any, RemovableHandle]] = []  # ours, among a parameter's others
        self.at_unannounced: Callable[[], None] = _do_nothing
        # ZeRO-3 compares first, has more to wait for, gathers when an exchange has made room, and cleans up.
        self.at_start: Callable[[set[int]], None] = _do_nothing
        self.is_ready: Callable[[Flat], bool] = _has_arrived
        self.at_half: Callable[[Flat], None] = _do_nothing
        self.at_end: Callable[[], None] = _do_nothing

    def watch(self) -> None:
        """Hears of each gradient as soon as autograd has finished it."""
        reduction = weakref.proxy(self)  # no garbage collector sees these hooks: they must not keep the engine
        for number, flat in enumerate(self._flats):
            for slot, parameter in flat.members():
                hook = partial(Reduction._arrived, reduction, number, slot)
                handle = parameter.register_post_accumulate_grad_hook(hook)
                self._hooks.append((parameter._post_accumulate_grad_hooks, handle))  # noqa: SLF001

    def expect(self, reached: set[int], *, exchanges: bool) -> None:
        """A backward begins.

        Args:
            reached: the ids of the parameters that it brings gradients for.
            exchanges: whether to reduce them; else they are added up where they are.
        """
        self.at_start(reached)
        for flat in self._flats:
            flat.take_back()
            flat.awaited = {slot for slot, parameter in flat.members() if id(parameter) in reached}
        self.come_last()
        self._exchanges = exchanges
        # Autograd would add up micro-batches in its own dtype: where that is too narrow, they are laid out each time.
        self._waiting = [flat for flat in reversed(self._flats) if exchanges or flat.widens_gradients]
        self.backward = ANNOUNCED

    def come_last(self) -> None:
        """Has gradients come here when the model's own hooks, registered since, have changed them."""
        for hooks, handle in self._hooks:
            if next(reversed(hooks)) != handle.id:
                hooks[handle.id] = hooks.pop(handle.id)  # `move_to_end` would not do: torch goes by the plain dict

    def notice(self) -> None:
        """Called by a hook of autograd's: another backward than the one that is awaited begins with this."""
        if self.backward == ANNOUNCED:
            self.backward = running_backward()
        elif self.backward != running_backward():
            self.at_unannounced()

    def _arrived(self, number: int, slot: Slot, parameter: torch.Tensor) -> None:
        flat = self._flats[number]
        if self.backward != running_backward():
            try:
                self.notice()
            except BaseException:  # Ctrl-C too
                parameter.grad = None
                raise
        flat.awaited.discard(slot)
        if flat.has_half_its_gradients:
            # The exchange of the flat before has had half a flat's time: it makes room for the rest of this one.
            self._finish_exchange()
            self.at_half(flat)
        self.start_ready()

    def start_ready(self) -> None:
        """Reduces the flats that are complete, as far as it is their turn."""
        while self._waiting and self.is_ready(self._waiting[0]):
            self._start_next()

    def finish(self) -> None:
        """Autograd is done: reduces what no gradient came for, too, because another rank may have one."""
        for flat in self._flats:  # a function of the graph may give None instead of a gradient
            flat.awaited.clear()
        while self._waiting:
            self._start_next()
        self._finish_exchange()
        self._end()

    def drop(self) -> None:
        """Forgets what this backward and those since the last step have brought."""
        if self._in_flight is not None:
            self._in_flight.exchange.wait()  # until then nothing of it may be freed
        self._in_flight = None
        self._waiting = []
        for flat in self._flats:
            flat.drop_gradients()
        if self.backward != NONE:
            self._end()

    def _end(self) -> None:
        self.backward = NONE
        self.at_end()

    def _start_next(self) -> None:
        flat = self._waiting.pop(0)
        self._finish_exchange()
        gradient = flat.lay_out_gradients()
        if not self._exchanges:
            return
        self._in_flight = _InFlight(flat, gradient, self._start(flat, gradient))
        if not self._overlap:
            self._finish_exchange()

    def _finish_exchange(self) -> None:
        if self._in_flight is not None:
            flat, gradient, exchange = self._in_flight
            self._in_flight = None
            exchange.wait()
            flat.usage.learn(gradient)
            self._keep(flat, gradient)


def _has_arrived(flat: Flat) -> bool:
    """Whether this backward has brought all gradients of the flat that it can bring."""
    return not flat.awaited


def _do_nothing(*_: object) -> None:
    """In stages that gather nothing."""
