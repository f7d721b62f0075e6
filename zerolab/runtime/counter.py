"""The counter, which is always on: which collective each rank is in, readable by the kernel after the rank has died.

A rank notes every collective on its page in shared memory: number, name, size, line, since when. That costs some
microseconds. Our collectives tell it as an observer; torch's are wrapped.
"""

import sys
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from zerolab.recording.patches import replace
from zerolab.runtime import requests, stack
from zerolab.runtime.board import DONE, FAILED, IN_FLIGHT, INSIDE, Page, Position
from zerolab.runtime.enqueued import Enqueued, Entry, Gpu, Place
from zerolab.runtime.observers import Call, Observer, Within, tell, watching
from zerolab.runtime.order import Order
from zerolab.runtime.requests import Reader, Request, circle_of, request_of_native


class _Thread(threading.local):
    """What is noted of a thread: backward may run hooks in other threads, each inside another collective."""

    position: Position | None = None  # the collective that it is inside
    entry: Entry  # the one that it handed to the device last, or is handing over

    def __init__(self) -> None:
        self.key = object()  # a thread's ident may be a later one's, too


_SETS_UP = ("", "init_process_group", "new_group")
"""What the main thread may have called last, or nothing, where the training runs in another one."""


class _Counter(Observer):
    """This process's own count, on the page that `install` gives it."""

    def __init__(self) -> None:
        self.page: Page
        self.others: Mapping[int, Page] = {}
        self._next: Counter[tuple[int, int]] = Counter()  # by the group, for only its ranks agree on the number
        self._thread = _Thread()
        # Weak, so that a Work that nobody waits for is freed when the learner drops it.
        self._pending: weakref.WeakKeyDictionary[Any, tuple[Position, Entry | None]] = weakref.WeakKeyDictionary()
        self._arriving: dict[int, Position] = {}  # by the address that a functional collective fills
        self._native: dict[int, Position] = {}  # started by native code and not complete, oldest first
        self._main = self._owner = self._thread.key  # whose calls are the rank's
        self._last = Position()  # what the owner noted last; while native code's is under way the page shows that
        self._beside: dict[object, Position] = {}  # calls that other threads are in, oldest first
        self._writing = threading.RLock()  # a thread of the backend's tells when native code's is complete
        self.enqueued: Enqueued | None = None  # None on the CPU, where a call that has returned is done
        self.order: Order | None = None  # None where messages have names, as gloo's have

    def reset(self) -> None:
        """A new run: count from 0."""
        for noted in (self._next, self._pending, self._arriving):
            noted.clear()
        with self._writing:
            self._native, self._beside = {}, {}
            self._main = self._owner = self._thread.key
            self._last = Position()
            for page in filter(None, (self.page, self.page.beside)):
                page.reset()
        for each in (self.enqueued, self.order):
            if each is not None:
                each.reset()

    def starting(self, call: Call) -> Within:
        """Note a collective of ours, unless this rank is not in the group."""
        group: Any = call.group
        if self._thread.position is not None or group is dist.GroupMember.NON_GROUP_MEMBER:
            return nullcontext()
        members, number = circle_of(group)
        request = Request(members, call.flat.numel(), call.flat.element_size(), group=number)
        position = self._enter(call.op, True, request, call.name)
        self._pending[call] = position, None
        return self._inside(position)

    def waiting(self, call: Call) -> Within:
        """Note that the rank is in it again."""
        position, _ = self._pending.pop(call, (None, None))
        return nullcontext() if position is None or self._thread.position is not None else self._inside_again(position)

    def call(
        self, name: str, numbered: bool, reader: Reader, function: Callable[..., Any], /, *args: Any, **kwargs: Any
    ) -> Any:
        """Call a function of torch.distributed, noted unless it is part of one that is noted already."""
        # torch calls itself: all_gather_object is two all_gathers. The learner wrote the outermost call.
        if (outer := self._thread.position) is not None:
            return self._remember(function(*args, **kwargs), outer)
        if (request := reader.read(args, kwargs)) is None:
            return function(*args, **kwargs)
        if not numbered:
            reader.refuse_what_crashes_gloo(name, args, kwargs)
        position = self._enter(name, numbered, request)
        with self._inside(position):
            result = self._remember(function(*args, **kwargs), position)
        if not numbered:
            tell(lambda observer: observer.messaged((args, kwargs, result)))
        return result

    def wait(self, function: Callable[..., Any], work: Any, *args: Any, **kwargs: Any) -> Any:
        """Wait for something that a noted call returned: the rank is inside that collective again."""
        # Once only: a second wait on the same Work returns at once, and is no collective any more.
        position, entry = self._pending.pop(work, (None, None))
        if entry is not None:
            entry.ends.clear()  # from here on the wait tells; and NCCL's Work would keep the tensors that it has filled
        # Not by `waiting`: a step comes here for every message.
        if position is None or self._thread.position is not None:
            return function(work, *args, **kwargs)
        with self._inside_again(position, entry):
            return function(work, *args, **kwargs)

    def store(self, name: str, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Wait for a key of a store, unless that is part of a noted call, or another thread's, which only listens."""
        if self._thread.position is not None or not (self._thread.key is self._owner or self._speaks()):
            return function(*args, **kwargs)
        self.page.write_place(*stack.locate(sys._getframe(1)))
        with self._inside(Position(INSIDE, f"store.{name}")):
            return function(*args, **kwargs)

    def functional(self, name: str, reader: Reader, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Call a functional collective, noted unless it is part of one that is noted already, or is only compiled."""
        if self._thread.position is not None or torch.compiler.is_compiling():
            return function(*args, **kwargs)
        if (request := reader.read(args, kwargs)) is None:
            return function(*args, **kwargs)
        position = self._enter(name, True, request)
        with self._inside(position):
            result = function(*args, **kwargs)
        for tensor in result if isinstance(result, list) else [result]:
            self._arriving[requests.address_of(tensor)] = position
        return result

    def wait_tensor(self, _: Reader, function: Callable[..., Any], tensor: torch.Tensor) -> Any:
        """Wait for what a functional collective brings; torch keeps Python's lock then, so the rank cannot be asked."""
        if self._thread.position is not None or torch.compiler.is_compiling():
            return function(tensor)
        if (position := self._arriving.pop(requests.address_of(tensor), None)) is None:  # waited for already
            return function(tensor)
        self._write_place(stack.locate(sys._getframe(1)))
        with self._inside_again(position):
            return function(tensor)

    def start_native(self, name: str, args: tuple[Any, ...]) -> Callable[[Any], None] | None:
        """Note a collective that no Python function was asked for, by its arguments; what to call with its Work.

        None if it belongs to a call that is noted already.
        """
        if self._thread.position is not None:
            return None
        request = request_of_native(name, args)  # not before: it costs as much as all else here
        position = self._enter(name, True, request)._replace(state=IN_FLIGHT, since=time.monotonic_ns())
        if self.enqueued is not None:
            return partial(self._hand_over_native, self.enqueued, position)
        # This run's table: the next run has a new one, and may begin before the callback comes.
        flying, key = self._native, id(position)
        with self._writing:
            flying[key] = position
            self._pass(position)

        def complete() -> None:
            with self._writing:
                flying.pop(key, None)
                if flying is self._native and self._last.state == DONE:
                    self._show()

        def watch(work: Any) -> None:
            try:
                work.get_future().add_done_callback(lambda _: complete())
            except (AttributeError, RuntimeError):  # a backend that does not tell, or a torch without these
                complete()

        return watch

    def _hand_over_native(self, enqueued: Enqueued, position: Position, work: Any) -> None:
        self._thread.entry.ends += [work.is_completed] if work is not None else []
        enqueued.end(self._thread.entry)
        self._pass(position)

    def _enter(self, name: str, numbered: bool, request: Request, travels: str = "") -> Position:
        """Notes where a call begins. Raises RuntimeError if another rank has asked for another one instead."""
        members, numel, itemsize, peer, group, parts = request
        order = self.order if self.order is not None and dist.is_initialized() else None
        travels = (travels or parts) if order is not None else ""  # gloo adds up what is sent as one, however it is cut
        place = stack.locate(sys._getframe(2))
        with self._writing:
            if self._thread.key is not self._owner:
                self._speaks(of_all=numbered and members == group == 0)
            number = self._next[members, group] if numbered else None
            position = Position(INSIDE, name, number, 0, numel, itemsize, members, peer, travels, group)
            if numbered:
                self._next[members, group] += 1
                self.page.enter(position)
        self._write_place(place)
        if numbered and order is not None:
            try:
                order.check(position)
            except RuntimeError:
                self._write(position._replace(state=FAILED))
                raise
        if self.enqueued is not None:
            self._thread.entry = self.enqueued.begin(position, place)
        return position

    def _inside_again(self, position: Position, entry: Entry | None = None) -> Within:
        """Waiting for what was handed over; on a device the wait is the one thing that lies behind the collective."""
        if self.enqueued is not None:
            self._thread.entry = self.enqueued.begin(position, entry.place if entry else stack.locate(sys._getframe(2)))
        return self._inside(position)

    @contextmanager
    def _inside(self, position: Position) -> Iterator[None]:
        self._thread.position = position
        self._write(position._replace(since=time.monotonic_ns()))
        try:
            yield
        except BaseException:
            self._write(position._replace(state=FAILED))
            if self.enqueued is not None:
                self.enqueued.end(self._thread.entry, failed=True)
            raise
        finally:
            self._thread.position = None
        self._write(position._replace(state=DONE))
        if self.enqueued is not None:
            self.enqueued.end(self._thread.entry)

    def _write(self, position: Position) -> None:
        """Write a position, which for a thread beside the rank's own goes to a page beside the rank's."""
        with self._writing:
            if self._thread.key is self._owner or self._speaks():
                self._last = position
                self._show()
            else:
                self._write_beside(self._thread.key, position)

    def _write_beside(self, thread: object, position: Position) -> None:
        self._beside.pop(thread, None)
        if position.state == INSIDE:
            self._beside[thread] = position._replace(state=IN_FLIGHT)  # the rank may compute meanwhile
        if self.page.beside is not None:
            self.page.beside.write(next(iter(self._beside.values()), Position()))

    def _write_place(self, place: Place) -> None:
        if self._thread.key is self._owner or self._speaks():  # another thread's line is not where the rank stands
            self.page.write_place(*place)

    def _speaks(self, *, of_all: bool = False) -> bool:
        """Whether this thread's calls are the rank's own: the main thread's always, another's if that only sets up.

        And always those of autograd's threads, which Python has not started: they run a part of a backward.
        """
        if torch._C._current_graph_task_id() != -1 and isinstance(threading.current_thread(), threading._DummyThread):
            return True
        thread = self._thread.key
        with self._writing:
            if thread is self._main and self._owner is not thread:
                self._write_beside(self._owner, self._last)
                self._owner, self._last = thread, Position()
            elif of_all and self._last.state != INSIDE:
                is_free = self._owner is not self._main or self._last.name in _SETS_UP
                self._owner = thread if is_free else self._owner
            return self._owner is thread

    def _pass(self, position: Position) -> None:
        """Note what native code has begun, in whatever thread; the rank's own may be inside another call."""
        with self._writing:
            if self._last.state != INSIDE:
                self._last = position._replace(state=DONE)
                self._show()

    def _show(self) -> None:
        """Write what was noted last, or in place of one that is done native code's oldest collective under way."""
        self.page.write(next(iter(self._native.values()), self._last) if self._last.state == DONE else self._last)

    def _remember(self, result: Any, position: Position) -> Any:
        for work in result if isinstance(result, list) else [result]:
            if hasattr(work, "wait"):
                entry = None if self.enqueued is None else self._thread.entry
                self._pending[work] = position, entry
                if entry is not None:
                    entry.ends.append(work.is_completed)
        return result


_counter = _Counter()
reset = _counter.reset


def follow(device: Gpu, in_order: bool) -> None:
    """From here on the rank's collectives are handed to a device, which is done with them later.

    `in_order`: it executes them as they come, and tells none from another; so they are compared with the other ranks'.
    """
    _counter.enqueued = Enqueued(device, _counter.page.device or _counter.page)
    _counter.order = Order(_counter.page, _counter.others) if in_order else None


def look() -> bool:
    """Writes on the board which collective the rank's device waits in; True if it computes. From any thread."""
    return _counter.enqueued is not None and _counter.enqueued.look()


def finish() -> None:
    """Waits until the rank's device is done with everything. Raises what went wrong on it."""
    if _counter.enqueued is not None:
        _counter.enqueued.finish()


_stack = ExitStack()  # never closed: in place for as long as the process lives


def install(page: Page, others: Mapping[int, Page] | None = None) -> None:
    """Count this process's collectives on its page: ours as an observer, torch's by all names that it has for them.

    `others` are the pages of the other ranks, where this process sees them.
    """
    from torch.distributed import _functional_collectives as functional
    from torch.distributed import distributed_c10d

    _counter.page, _counter.others = page, others or {}
    _counter._main = _counter._owner = _counter._thread.key
    _stack.enter_context(watching(_counter))
    noted: list[tuple[Any, str, Callable[..., Any]]] = [
        *(([distributed_c10d, dist], name, partial(_counter.call, name, True)) for name in requests.COLLECTIVES),
        *(([distributed_c10d, dist], name, partial(_counter.call, name, False)) for name in requests.POINT_TO_POINT),
        *(([functional], name, partial(_counter.functional, word)) for name, word in requests.FUNCTIONAL.items()),
        ([functional], "wait_tensor", _counter.wait_tensor),
    ]
    for modules, name, wrapper in noted:
        if (original := getattr(modules[0], name, None)) is not None:  # else it is a name of another torch version
            _stack.enter_context(replace(modules, name, partial(wrapper, Reader(original))))
            getattr(modules[0], name)._torchdynamo_inline = original  # what torch's compiler takes into its graphs
    _stack.enter_context(replace(dist.Work, "wait", _counter.wait))
    for name in ("get", "wait"):
        _stack.enter_context(replace(dist.Store, name, partial(_counter.store, name)))
    requests.watch_native_code(_counter.start_native)
