"""Records what one rank does, from outside: the recorded code does not know about it.

When off, nothing is patched, hooked or watched; everything is installed on entering and removed on leaving.
"""

import gc
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import chain, compress
from time import monotonic_ns
from types import TracebackType
from typing import Any, Self

import torch

from zerolab.recording import streams
from zerolab.recording.dispatch import Watch
from zerolab.recording.events import CATEGORIES, RankRecording
from zerolab.recording.exchanges import Exchanges
from zerolab.recording.info import Membership, describe, membership
from zerolab.recording.kernels import watch_collectives
from zerolab.recording.ledger import Ledger
from zerolab.recording.log import Draft, Log
from zerolab.recording.ownership import Ownership
from zerolab.recording.passes import Passes
from zerolab.recording.patches import replace
from zerolab.recording.sources import Sources
from zerolab.runtime.observers import holders, within
from zerolab.theory.allocator import Allocator


@contextmanager
def evaluation() -> Iterator[None]:
    """Marks an evaluation in your own training loop: nothing within it counts towards a recorded step.

    You do not need it where gradients are off, nor for a forward in evaluation mode (`model.eval()`) that no backward
    follows: those are recognised. Mark anything else that is not training, such as a forward in training mode whose
    loss you only print. Use it between an update and the next forward: a step that has not made its update yet
    continues within it. It does nothing if nothing is being recorded.
    """
    with within(lambda observer: observer.evaluating()):
        yield


class Recorder:
    """Records everything that happens within `with Recorder() as recorder:`; `finish()` returns it as plain data.

    It works with and without a process group. Tensors that already exist are noted, but count only if they are state
    of a model that is being trained.

    Args:
        clock: returns nanoseconds; the times of the events are on this clock.
        simulated: whether this is a simulated rank. It shares its process with tensors that are not its own, so older
            tensors are not searched for; its shapes and its few real numbers count as if they were on one device.
        times_only: whether to leave out the bytes of memory and who holds what. Then only modules, optimizers and
            collectives are watched, and no other operation, so the run is hardly slower.
    """

    def __init__(
        self, *, clock: Callable[[], int] = monotonic_ns, simulated: bool = False, times_only: bool = False
    ) -> None:
        self._clock, self._simulated = clock, simulated
        self._ledger, self._sources = Ledger(clock, apart=not simulated), Sources()
        self._log = Log(self._ledger, self._sources, clock, times_only=times_only)
        self._ownership = Ownership(self._log)
        self._passes = Passes(self._log, self._ownership)
        self._exchanges = Exchanges(self._log, self._ownership)
        self._stack = ExitStack()
        self._started = 0
        self._member = Membership()
        # Made on leaving: by the time of `finish` the process group may be gone.
        self._finished: RankRecording | None = None

    def __enter__(self) -> Self:
        if self._started:
            raise RuntimeError("this Recorder has been used already: make a new one for each recording")
        self._started = self._clock()
        self._member = membership(self._member)
        stack = self._stack
        with ExitStack() as undo:  # if one step fails, the earlier ones are undone
            undo.callback(stack.close)
            # Before anything is patched, so that the search itself is not recorded.
            if not self._simulated:
                self._count_what_exists()
            timer = streams.find_timer() if self._clock is monotonic_ns else None
            self._log.streams = streams.Streams(timer, self._clock) if timer is not None else None
            self._passes.install(stack)
            self._exchanges.install(stack)
            # Last: what the others do to install themselves is not part of the run.
            if self._log.times_only:
                watch_collectives(self._exchanges.communicate, stack)
            else:
                # Not an operation, so the dispatcher never sees it; and it is how ZeRO-3 frees its flats.
                stack.enter_context(replace(torch.UntypedStorage, "resize_", self._resize))
                stack.enter_context(Watch(self._log, self._exchanges.communicate, above=self._simulated))
            undo.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stack.close()
        self._log.drop_tentative_step()
        self._log.end_step()
        try:
            on_device = self._on_device(failed=kind is not None)
            self._finished = self._so_far(self._passes.saves_under_way(), complete=kind is None, on_device=on_device)
        finally:
            self._ledger.close()  # last: describing the run still needs its figures

    def finish(self) -> RankRecording:
        """What was recorded, as plain values that can be pickled and written as JSON."""
        if self._finished is None:
            raise RuntimeError("the recording is still going on: call finish() after the with block has ended")
        return self._finished

    def add_optimizers(self, optimizers: Iterable[torch.optim.Optimizer]) -> None:
        """Notes optimizers of a hand-written loop that made updates before the recording."""
        self._ownership.add_optimizers(optimizers)

    def count(self, tensors: Iterable[torch.Tensor]) -> None:
        """Counts tensors that already exist, such as buffers and a batch: a simulation does not search for them."""
        for tensor in tensors:
            self._ledger.see(tensor)

    def lay_out(self, *allocators: Allocator) -> None:
        """From now on each of them has a block for every storage, those that exist first: for a simulated GPU."""
        self._ledger.lay_out(allocators)

    def live(self) -> dict[str, int]:
        """The current live bytes by category, on the device of a simulated rank."""
        self._ledger.settle()
        return dict(zip(CATEGORIES, self._ledger.host.live, strict=True))

    def forward_begins(self, module: torch.nn.Module, inputs: Any) -> None:
        """For callers that start recording in a forward pre-hook: torch has by then chosen its hooks, without ours."""
        self._passes.forward_begins(module, inputs)

    def backward_begins(self) -> None:
        """For callers that see a backward begin: it is of a step, whether or not anybody has seen its forward."""
        self._passes.backward_begins()

    def so_far(self) -> RankRecording:
        """What has been recorded so far; any thread may ask, since a rank that hangs never leaves the with block."""
        under_way = [*self._passes.under_way(), *self._exchanges.under_way()]
        return self._finished or self._so_far(under_way, complete=False)

    def _on_device(self, *, failed: bool) -> dict[int, streams.OnDevice]:
        """When the device executed each event; empty after an error: the device may never finish its work then."""
        marks, self._log.streams = self._log.streams, None
        if failed:
            return {}
        self._log.read_losses()
        if marks is None or (self._ownership.units and self._log.device != marks.kind):
            return {}
        return marks.times()

    def _so_far(
        self, under_way: list[Draft], *, complete: bool, on_device: dict[int, streams.OnDevice] | None = None
    ) -> RankRecording:
        self._member = membership(self._member)
        return RankRecording(
            rank=self._member.rank,
            world_size=self._member.world_size,
            events=tuple(self._log.events(self._member.rank, under_way, on_device or {})),
            sources=self._sources.texts.copy(),
            units=tuple(self._ownership.units.copy().values()),
            info=describe(self._log, self._ownership, self._member, self._started),
            complete=complete,
        )

    def _count_what_exists(self) -> None:
        """Shows the ledger every tensor that already exists, and registers every engine."""
        gc.collect()  # an engine and its hooks refer to each other, so an unused one may still be alive
        kinds = [] if self._log.times_only else [torch.Tensor, torch.nn.Parameter]
        nbytes = sum(map(self._ledger.note_existing, _all_of(kinds)))
        if nbytes:
            text = f"{nbytes} bytes existed before; what is used of them counts"
            self._log.add("note", "before recording", text=text, source=None)
        for engine in list(holders):
            self._passes.made(engine)
        self._ledger.start_peak()

    def _resize(self, original: Any, storage: torch.UntypedStorage, size: int) -> Any:
        before = storage.size()
        result = original(storage, size)
        unit = self._ledger.resized(storage)
        # A release is an event of its own; where a storage grows, the gather that fills it is the event.
        if size == 0 < before:
            self._ownership.released(unit)
        return result


def _all_of(kinds: Iterable[type]) -> list[Any]:
    """Every object whose type is exactly one of these and that has survived a garbage collection."""
    wanted = {id(kind) for kind in kinds}  # ids, since a class may have a metaclass that cannot be hashed

    def oldest() -> Iterable[Any]:
        return chain.from_iterable(map(gc.get_objects, [2]))  # the list is made when its first element is asked for

    collects = gc.isenabled()
    gc.disable()
    try:
        # All of this happens in C within the call of `list`, so no other thread runs while its objects are held here: a
        # tuple that it is building from an iterator could not grow, and Python would raise SystemError there. Both
        # lists are the same, since nothing new enters the oldest generation.
        return list(compress(oldest(), map(wanted.__contains__, map(id, map(type, oldest())))))
    finally:
        if collects:
            gc.enable()
