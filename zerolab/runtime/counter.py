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
        self._owner = threading.get_ident()  # the thread that was the last to ask for a collective of all ranks
        self._last = Position()  # what it noted last; while native code's is under way the page shows that
        self._beside: dict[int, Position] = {}  # calls that other threads are in, oldest first
        self._writing = threading.RLock()  # a thread of the backend's tells when native code's is complete
        self.enqueued: Enqueued | None = None  # None on the CPU, where a call that has returned is done
        self.order: Order | None = None  # None where messages have names, as gloo's have

    def reset(self) -> None:
        """A new run: count from 0."""
        for noted in (self._next, self._pending, self._arriving):
            noted.clear()
        with self._writing:
            self._native, self._beside = {}, {}
            self._owner, self._last = threading.get_ident(), Position()
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
        if self._thread.position is not None or threading.get_ident() != self._owner:
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
            self._arriving[_address(tensor)] = position
        return result

    def wait_tensor(self, function: Callable[..., Any], tensor: torch.Tensor) -> Any:
        """Wait for what a functional collective brings; torch keeps Python's lock then, so the rank cannot be asked."""
        if self._thread.position is not None or torch.compiler.is_compiling():
            return function(tensor)
        if (position := self._arriving.pop(_address(tensor), None)) is None:  # waited for already
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
        request = request_of_native(args)  # not before: it costs as much as all else here
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
        members, numel, itemsize, peer, group = request
        number = self._next[circle := (members, group)] if numbered else None
        order = self.order if self.order is not None and dist.is_initialized() else None
        travels = travels if order is not None else ""
        position = Position(INSIDE, name, number, 0, numel, itemsize, members, peer, travels, group)
        place = stack.locate(sys._getframe(2))
        with self._writing:
            if numbered and circle == (0, 0) and self._last.state != INSIDE:
                self._owner = threading.get_ident()
            if numbered:
                self._next[circle] += 1
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
        thread = threading.get_ident()
        with self._writing:
            if thread == self._owner:
                self._last = position
                self._show()
            elif self.page.beside is not None:
                self._beside.pop(thread, None)
                if position.state == INSIDE:
                    self._beside[thread] = position._replace(state=IN_FLIGHT)  # the rank may compute meanwhile
                self.page.beside.write(next(iter(self._beside.values()), Position()))

    def _write_place(self, place: Place) -> None:
        if threading.get_ident() == self._owner:  # another thread's line is not where the rank stands
            self.page.write_place(*place)

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
_libraries: list[Any] = []  # likewise: kernels go with their library


def install(page: Page, others: Mapping[int, Page] | None = None) -> None:
    """Count this process's collectives on its page: ours as an observer, torch's by both names that it has for them.

    `others` are the pages of the other ranks, where this process sees them.
    """
    from torch.distributed import _functional_collectives as functional
    from torch.distributed import distributed_c10d

    _counter.page, _counter.others, _counter._owner = page, others or {}, threading.get_ident()
    _stack.enter_context(watching(_counter))
    noted: list[tuple[Any, str, Callable[..., Any]]] = [
        *(([distributed_c10d, dist], name, partial(_counter.call, name, True)) for name in requests.COLLECTIVES),
        *(([distributed_c10d, dist], name, partial(_counter.call, name, False)) for name in requests.POINT_TO_POINT),
        *(([functional], name, partial(_counter.functional, word)) for name, word in requests.FUNCTIONAL.items()),
    ]
    for modules, name, wrapper in noted:
        if (original := getattr(modules[0], name, None)) is not None:  # else it is a name of another torch version
            _stack.enter_context(replace(modules, name, partial(wrapper, Reader(original))))
    _stack.enter_context(replace(dist.Work, "wait", _counter.wait))
    for name in ("get", "wait"):
        _stack.enter_context(replace(dist.Store, name, partial(_counter.store, name)))
    _stack.enter_context(replace(functional, "wait_tensor", _counter.wait_tensor))
    _watch_native_code()


def _watch_native_code() -> None:
    """Count what native code starts by itself, C++ DDP's reducer above all: no function of Python's is called there.

    It passes through torch's dispatcher as `c10d` operations. A kernel of ours at its autograd level, where c10d has
    none, sees them and hands them on. That costs some 30 microseconds an operation and nothing where there is none; a
    dispatch mode, which a recorder uses, would cost that for every operation of the step.
    """
    # Once in a process: a kernel that is registered twice for one key is an error.
    library = torch.library.Library("c10d", "IMPL")
    _libraries.append(library)
    for operation, name in requests.NATIVE_OPERATIONS.items():
        overload = getattr(torch.ops.c10d, operation).default
        for key in ("AutogradCPU", "AutogradCUDA"):
            library.impl(operation, _counted(overload, name), key, with_keyset=True)


def _counted(overload: Any, name: str) -> Callable[..., Any]:
    def kernel(keyset: Any, *args: Any, **kwargs: Any) -> Any:
        follow = _counter.start_native(name, args)
        result = overload.redispatch(keyset & torch._C._after_autograd_keyset, *args, **kwargs)
        if follow is not None:
            follow(dist.Work.unbox(result[-1] if isinstance(result, tuple) else result))
        return result

    return kernel


def _address(tensor: torch.Tensor) -> int:
    """Where a functional collective's result lies: of a wrapper around it, where that lies."""
    return int(getattr(tensor, "elem", tensor).data_ptr())
