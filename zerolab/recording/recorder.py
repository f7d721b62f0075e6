"""Records what one rank does, from outside: the recorded code does not know about it.

When off, nothing is patched, hooked or watched; everything is installed on entering and removed on leaving, but for
the kernels of `watch_collectives`, which pass on what they get. They take time of each collective; where bytes are
recorded, they are not there until another thread can communicate.
"""

import dataclasses
import gc
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import chain, compress
from threading import get_ident
from time import monotonic_ns
from typing import Any, Self

import torch
import torch.distributed as dist

from zerolab.recording import streams
from zerolab.recording.dispatch import Watch, watch_collectives
from zerolab.recording.events import CATEGORIES, RankRecording
from zerolab.recording.exchanges import Exchanges
from zerolab.recording.info import Membership, describe, membership
from zerolab.recording.ledger import Ledger
from zerolab.recording.log import Draft, Log, StepFigures
from zerolab.recording.others import before_others_communicate
from zerolab.recording.ownership import Ownership
from zerolab.recording.passes import Passes
from zerolab.recording.patches import replace
from zerolab.recording.raising import Left
from zerolab.recording.sources import Sources
from zerolab.runtime.observers import holders, within


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
    of a model that is being trained. Who begins within a training tells `ownership` and `passes` what came before.

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
        self.ledger, self._sources = Ledger(clock, apart=not simulated), Sources()
        self._log = Log(self.ledger, self._sources, clock, times_only=times_only)
        self.ownership = Ownership(self._log)
        self.passes = Passes(self._log, self.ownership)
        self._exchanges = Exchanges(self._log, self.ownership)
        self._stack = ExitStack()
        self._started = 0
        self._member = Membership()
        # Made on leaving: by the time of `finish` the process group may be gone.
        self._finished: RankRecording | None = None

    def __enter__(self) -> Self:
        if self._started:
            raise RuntimeError("this Recorder has been used already: make a new one for each recording")
        self._started = self._clock()
        self.ledger.thread = get_ident()
        self._member = membership(self._member)
        stack = self._stack
        with ExitStack() as undo:  # if one step fails, the earlier ones are undone
            undo.callback(stack.close)
            # Before anything is patched, so that the search itself is not recorded.
            if not self._simulated:
                self._count_what_exists()
            timer = streams.find_timer() if self._clock is monotonic_ns else None
            self._log.streams = None if timer is None else streams.Streams(timer, self._clock)
            self.passes.install(stack)
            self._exchanges.install(stack)
            # Last: what the others do to install themselves is not part of the run.
            if self._log.times_only:
                watch_collectives(self._exchanges.communicate, stack)
            else:
                # Not an operation, so the dispatcher never sees it; and it is how ZeRO-3 frees its flats.
                stack.enter_context(replace(torch.UntypedStorage, "resize_", self._resize))
                # Nor is this: checkpointing keeps a state of the generator for each part that it computes again. It is
                # in main memory, which nobody simulates beside a GPU.
                if not self._simulated or self._member.backend == dist.Backend.FAKE:
                    stack.enter_context(replace([torch, torch.random], "get_rng_state", self._get_rng_state))
                # Nor does it see a bucket of DDP's in whose place a communication hook sends another tensor.
                for name in ("buffer", "gradients"):
                    stack.enter_context(replace(dist.GradBucket, name, self._from_bucket))
                watch = Watch(self._log, self._exchanges.communicate, above=self._simulated)
                stack.enter_context(replace(torch, "set_autocast_enabled", watch.note_autocast))
                stack.enter_context(watch)
                if not self._simulated:  # or what is simulated is seen twice
                    see = partial(watch_collectives, self._exchanges.communicate, stack, but=watch.is_here)
                    before_others_communicate(see, stack)
            undo.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None = None, *_: object) -> None:
        left = [] if kind is None else self._under_way(Left(error))  # before they are forgotten
        self._stack.close()
        self.ledger.thread = get_ident()  # another thread may end it
        self._log.drop_tentative_step()
        self._log.end_step()
        try:
            marks, self._log.streams = self._log.streams, None
            if kind is None:  # after an error the device may never finish its work
                self._log.read_losses()
                if marks is not None and (not self.ownership.units or self._log.device == marks.timer.kind):
                    for seq, found in marks.times().items():
                        self._log.drafts[seq] |= found._asdict()
            self._finished = self._so_far(self._log.steps, [*left, *self.passes.saves], complete=kind is None)
        finally:
            self.ledger.close()  # last: describing the run still needs its figures

    def finish(self) -> RankRecording:
        """What was recorded, as plain values that can be pickled and written as JSON."""
        if self._finished is None:
            raise RuntimeError("the recording is still going on: call finish() after the with block has ended")
        return self._finished

    def count(self, tensors: Iterable[torch.Tensor]) -> None:
        """Counts tensors that already exist, such as buffers and a batch: a simulation does not search for them."""
        for tensor in tensors:
            self.ledger.see(tensor)

    def live(self) -> dict[str, int]:
        """The current live bytes by category, on the device of a simulated rank."""
        self.ledger.settle()
        return dict(zip(CATEGORIES, self.ledger.host.live, strict=True))

    def so_far(self) -> RankRecording:
        """What has been recorded so far; any thread may ask, since a rank that hangs never leaves the with block."""
        steps = self._log.steps.copy() if self.passes.is_updating else self._log.steps_over()
        return self._finished or self._so_far(steps, self._under_way(), complete=False)

    def _under_way(self, left: Left | None = None) -> list[Draft]:
        return [*self.passes.under_way(left), *self._exchanges.under_way(left)]

    def _so_far(self, steps: list[StepFigures], under_way: list[Draft], *, complete: bool) -> RankRecording:
        self._member = membership(self._member)
        now = self._clock()
        info = describe(self._log, steps, self.ownership, self._member, self._started)
        return RankRecording(
            rank=self._member.rank,
            world_size=self._member.world_size,
            events=tuple(self._log.events(self._member.rank, under_way, now)),
            sources=self._sources.texts.copy(),
            units=tuple(self.ownership.described()),
            info=info if complete else dataclasses.replace(info, cut_ns=now),
            complete=complete,
        )

    def _count_what_exists(self) -> None:
        """Shows the ledger every tensor that already exists, and registers every engine."""
        gc.collect()  # an engine and its hooks refer to each other, so an unused one may still be alive
        kinds = [] if self._log.times_only else [torch.Tensor, torch.nn.Parameter]
        nbytes = sum(map(self.ledger.note_existing, _all_of(kinds)))
        if nbytes:
            text = f"{nbytes} bytes existed before; what models, optimizers and collectives use of them counts"
            self._log.add("note", "before recording", text=text, source=None)
        for engine in list(holders):
            self.passes.made(engine)
        self.ledger.start_peak()

    def _resize(self, original: Any, storage: torch.UntypedStorage, size: int) -> Any:
        before = storage.size()
        result = original(storage, size)
        unit = self.ledger.resized(storage)
        # A release is an event of its own; where a storage grows, the gather that fills it is the event.
        if size == 0 < before:
            self.ownership.released(unit)
        return result

    def _from_bucket(self, original: Any, bucket: Any) -> Any:
        found = original(bucket)
        if self.ledger.is_mine():  # gloo's threads go on with the hook
            for tensor in [found] if isinstance(found, torch.Tensor) else found:
                self.ledger.travels(tensor)
        return found

    def _get_rng_state(self, original: Any) -> Any:
        state = original()
        if self._log.counts():
            self.ledger.operation = "get_rng_state"
            self.ledger.see(state)
        return state


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
