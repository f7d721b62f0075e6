"""Observers of the engines: the recorder, the counter that is always on, the exercises, the simulation.

An engine reports what it does, by `tell` and by the decorators on its collectives; it does not know its observers, and
nothing of it is patched. An observer overrides the methods for what it wants to hear of, and `watching` registers it. A
collective within another one is not reported. Without observers, all of this costs a look at an empty list.
"""

import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any, Protocol, TypeVar
from weakref import WeakSet

if TYPE_CHECKING:
    from torch import Tensor
    from torch.distributed import ProcessGroup

    from zerolab.engines.collectives import Collective, Exchange
    from zerolab.engines.holdings import Holding

Within = AbstractContextManager[Any]
Function = TypeVar("Function", bound=Callable[..., Any])
_NOTHING = nullcontext()


@dataclass(slots=True, weakref_slot=True, eq=False, repr=False)
class Call:
    """One call of a collective, the same object from its start to the end of its wait."""

    op: str  # its word, such as `all_gather`
    flat: "Tensor"  # the whole buffer, shape [N * part]
    group: "ProcessGroup | None"  # the ranks that take part; None for all
    name: str  # what travels, as the caller says it: an engine gives the flat's name
    sizes: "Sequence[int] | None" = None  # elements of each rank's part; None for equal ones


class Holder(Protocol):
    """What can say which model state this rank holds: an engine, another system's, or the test bed of an exercise."""

    model: Any  # what is called with a batch
    stage: str  # what it shards
    precision: Any  # as engines take it; None for the parameters' own
    offload: bool  # whether its optimizer updates copies in main memory
    flats: Any  # each with a `layout`
    matrix_numel: int  # elements of the matrices that Muon updates

    @property
    def optimizer(self) -> Any:
        """What updates the parameters; None before there is one."""

    def holdings(self, flats: "Collection[str] | None" = None) -> "Iterator[Holding]":
        """Everything that this rank holds right now; with names of flats, at least what it holds of those.

        A system that is not ours may leave out its optimizer's state then, which only updates change.
        """


class Observer:
    """What can be observed. A method does nothing unless overridden; a context that it returns surrounds the event."""

    def starting(self, call: Call) -> Within:
        """A collective is started."""
        return _NOTHING

    def started(self, call: Call, exchange: "Exchange") -> None:
        """It is under way."""

    def waiting(self, call: Call) -> Within:
        """It is waited for, for the first time."""
        return _NOTHING

    def comparing(self) -> Within:
        """The ranks compare something; what they send meanwhile is no part of the training."""
        return _NOTHING

    def evaluating(self) -> Within:
        """What follows is evaluation, not training, says a loop that has no engine to say so."""
        return _NOTHING

    def made(self, holder: Holder) -> None:
        """There is a new engine, or something else that can say what it holds."""

    def beginning(self) -> None:
        """A training step begins, as a loop says that has no engine to say it."""

    def saving(self, op: str, nbytes: int) -> Within:
        """A rank's part of a checkpoint is copied ("copy"), written while it waits ("save") or in a thread ("write").

        The last is entered where the thread is started, and left in it.
        """
        return _NOTHING

    def updating(self) -> None:
        """An engine is about to update its parameters."""

    def updated(self, engine: Holder) -> None:
        """Its step is over; it has updated nothing if it accumulates gradients."""

    def trained(self, loss: "Tensor") -> None:
        """An engine's training step has ended, with this loss."""

    def messaged(self, message: tuple[Any, ...]) -> None:
        """A send or receive of torch's was called outside of a collective: its arguments, and what came back."""


class _Here(threading.local):
    inside = False  # whether this thread is in a collective


_observers: list[Observer] = []  # the latest is the outermost
_here = _Here()
holders: "WeakSet[Any]" = WeakSet()
"""All that were made in this process and still live, for observers that are registered later."""


@contextmanager
def watching(observer: Observer) -> Iterator[None]:
    """Registers the observer for the duration of the block."""
    _observers.append(observer)
    try:
        yield
    finally:
        _observers.remove(observer)


def tell(moment: Callable[[Observer], None]) -> None:
    """Notifies all observers of a moment, such as `lambda observer: observer.updating()`."""
    for observer in _observers.copy():
        moment(observer)


def tell_made(holder: Holder) -> None:
    """Notifies all observers of an engine, and those that are registered while it lives."""
    holders.add(holder)
    tell(lambda observer: observer.made(holder))


def tell_updated(engine: Holder) -> None:
    """Notifies all observers that an engine's step is over."""
    tell(lambda observer: observer.updated(engine))


def then(tells: Callable[[Any], None]) -> Callable[[Function], Function]:
    """Decorates a method of an engine: `tells` is called with the engine after it, without a line in the method."""

    def decorate(method: Function) -> Function:
        @wraps(method)
        def call(engine: Any, *args: Any, **keywords: Any) -> Any:
            result = method(engine, *args, **keywords)
            tells(engine)
            return result

        return call  # type: ignore[return-value]

    return decorate


@contextmanager
def within(moment: Callable[[Observer], Within]) -> Iterator[None]:
    """Enters all observers' contexts for a moment (`lambda observer: observer.comparing()`); also a decorator."""
    with ExitStack() as stack:
        for observer in reversed(_observers):
            stack.enter_context(moment(observer))
        yield


def told(op: str) -> "Callable[[Collective], Collective]":
    """Decorates a function that starts a collective: all observers are notified of each call, under this word."""

    def decorate(collective: "Collective") -> "Collective":
        @wraps(collective)
        def start(
            flat: "Tensor", group: "ProcessGroup | None" = None, name: str = "", sizes: "Sequence[int] | None" = None
        ) -> "Exchange":
            more = () if sizes is None else (sizes,)  # an all_reduce takes none
            if not _observers or _here.inside:
                return collective(flat, group, name, *more)
            call = Call(op, flat, group, name, sizes)
            contexts = [observer.starting(call) for observer in _observers]
            exchange: Exchange = _surrounded(contexts, collective, flat, group, name, *more)
            exchange.call = call
            for observer in _observers.copy():
                observer.started(call, exchange)
            return exchange

        return start

    return decorate


def told_of_wait(wait: "Callable[[Exchange], None]") -> "Callable[[Exchange], None]":
    """Decorates the wait for an exchange: all observers are notified of the first one."""

    @wraps(wait)
    def wait_for(exchange: "Exchange") -> None:
        call, exchange.call = exchange.call, None  # the flat goes with it
        if call is None or _here.inside:
            wait(exchange)
            return
        _surrounded([observer.waiting(call) for observer in _observers], wait, exchange)

    return wait_for


def _surrounded(contexts: list[Within], function: Callable[..., Any], *args: Any) -> Any:
    """Calls a function within the contexts; collectives that it uses are not reported."""
    _here.inside = True
    try:
        return _call_within(contexts, function, *args)
    finally:
        _here.inside = False


def _call_within(contexts: list[Within], function: Callable[..., Any], *args: Any) -> Any:
    # As `within`, for a tenth of its time: a step of six units comes here 36 times.
    if not contexts:
        return function(*args)
    with contexts[-1]:
        return _call_within(contexts[:-1], function, *args)
