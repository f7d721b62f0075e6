"""The kernel's side of the ranks: `Cluster` starts them, runs functions on them, and replaces them when one fails."""

import contextlib
import math
import os
import pickle
import threading
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from zerolab.runtime import call, devices, idle, output, variables
from zerolab.runtime.cells import Cells
from zerolab.runtime.faults import RankError
from zerolab.runtime.interrupts import held_back, interruptible
from zerolab.runtime.launch import launcher
from zerolab.runtime.ranks import Ranks
from zerolab.runtime.waiting import waiting

if TYPE_CHECKING:
    from zerolab.recording.recording import Recording

DEVICES = ("auto", "cpu", "cuda")
FAILED = "the last run failed"
# Weak, so that `%%ranks` does not keep alive a cluster that the notebook has dropped.
_open: "weakref.WeakValueDictionary[int, Cluster]" = weakref.WeakValueDictionary()


class Cluster:
    """Real ranks under this process: `world_size` processes joined by torch.distributed, kept from call to call.

    They are ready, with the process group made and a first all_reduce done, when the constructor returns. A rank that
    raises, dies or hangs ends the call with an error that names it, and the next call runs on fresh ranks. Ranks that
    idle for 20 minutes (`ZEROLAB_IDLE_MINUTES`) end, and the next call starts fresh ones.

    Args:
        world_size: number of ranks; by default as many as there are GPUs if there are two or more, else 4.
        device: "cpu", "cuda", or "auto": GPUs if there are any with more than 2 GB free per rank. More ranks than
            GPUs share them, over gloo. `ZEROLAB_DEVICES=0,2` or `cpu` chooses among those that are visible.
        timeout: seconds that a rank may wait in one collective while no other rank moves.

    Raises:
        TypeError, ValueError: an invalid argument, more ranks than fit in memory or than the host allows
            (`ZEROLAB_MAX_RANKS`), or a GPU that ranks cannot use; the message has the value and the remedy.
        RankError: a rank could not join the process group.
    """

    def __init__(self, world_size: int | None = None, device: str = "auto", timeout: float = 20.0) -> None:
        _check(world_size, device, timeout)
        idle_limit = variables.idle_seconds()
        if world_size is not None:
            devices.check_limits(world_size)  # before any process is started
        if device != "cuda":  # for "cuda", there must first be a GPU
            with contextlib.suppress(OSError):  # it may open no more files, as `_start` will say
                launcher()  # it imports torch in the background while this process does the same
        self._choice = choice = devices.choose(world_size, device)
        for note in choice.notes:
            output.show(f"{note}\n")
        self.world_size, self.device = choice.world_size, choice.device
        self.timeout = float(timeout)
        # Not reentrant: a callback that calls `run` during a run is refused instead of deadlocking.
        self._busy = threading.Lock()
        # Held while idle ranks are ended: a call that arrives just then waits instead of being refused.
        self._ending = threading.Lock()
        self._owner = os.getpid()
        self._closed = False
        self._lost = ""  # how the previous ranks, and with them their memory, were lost
        self._ranks: Ranks | None = None
        try:
            self._start()
            self._idle = idle.IdleWatch(self, Cluster._end_idle_ranks, idle_limit)
        except BaseException:  # a late Stop, too: the caller has no cluster to close, and the traceback may keep it
            self._release()
            raise
        _open[id(self)] = self

    def run(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> list[Any]:
        """Calls `fn(*args, **kwargs)` on every rank; returns one result per rank, tensors as copies in CPU memory.

        `fn` may be defined in a cell and may close over values; they travel by value. What ranks print appears
        labelled. Plain tensors come back without gradient tracking; parameters remain parameters.

        Raises:
            RankError: a rank raised or died; CollectiveHang if the ranks wait for each other.
            TypeError: `fn` or an argument cannot be sent.
        """
        return self._call("run", fn, args, kwargs, range(self.world_size))

    def record(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> "Recording":
        """Like `run`, but records what the ranks do; the Recording's `results` are what `run` would return.

        Raises:
            RankError: as from `run`; its `recording` holds what the surviving ranks had recorded by then, those that
                hang included.
        """
        return self._record("record", fn, args, kwargs)

    def record_times(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> "Recording":
        """Like `record`, but only for times: those of units, updates, collectives and waits, and what these send.

        Bytes of memory and who holds what are not recorded, and torch's operations are not watched, so the run takes
        hardly longer than without recording. Raises what `record` raises.
        """
        return self._record("record times", fn, args, kwargs)

    def record_fingerprints(
        self, out: str | os.PathLike[str], fn: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> "Recording":
        """Like `record`, with fingerprints of what is trained, for `zerolab diff`; saves the recording in `out`.

        The fingerprints are saved beside it, in `out` + ".fingerprints". They take time for each element of the model
        at each of five moments of a step. Raises what `record` raises, and ValueError if `out` cannot be written.
        """
        from zerolab import files
        from zerolab.difference.watch import all_steps

        files.check_place(out)
        recording = self.record(all_steps, str(Path(out).resolve()), fn, *args, **kwargs)
        recording.save(out)
        return recording

    def _record(self, task: str, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> "Recording":
        from zerolab.recording.recording import Recording

        answers = self._call(task, fn, args, kwargs, range(self.world_size))
        return Recording.merge([part for _, part in answers], results=[result for result, _ in answers])

    def close(self) -> None:
        """Ends the ranks. Calling it again does nothing; a run under way in another thread ends in an error."""
        self._closed = True
        self._idle.stop()
        _open.pop(id(self), None)
        if not self._is_ours():
            self._release()
            return
        ranks = self._ranks
        # A thread that runs something still reads the pipes; if they were closed, other files could get their numbers.
        if not self._finish() and ranks is not None:
            ranks.end()

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = ", closed" if self._closed else ""
        return f"Cluster(world_size={self.world_size}, device={self.device!r}, timeout={self.timeout:g}{state})"

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError("a Cluster stays in the notebook: it cannot be part of a function that runs on its ranks")

    def _call(
        self, task: str, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], chosen: Sequence[int]
    ) -> list[Any]:
        from zerolab.runtime import travel

        self._refuse_if_closed()
        if not self._is_ours():  # before anything is read from the pipes, which both processes hold
            raise RuntimeError(
                f"{self!r} belongs to process {self._owner}, and this is {os.getpid()}, forked from it: use the "
                "cluster there, or make one of this process's own with Cluster()"
            )
        self._idle.touch()
        # Before the lock is taken and the ranks are checked: a call that is refused here costs nothing.
        packed = travel.pack_call(fn, args, kwargs)
        # Outside `interruptible`, Stop is deferred: it could leave this cluster busy, or some of its ranks alive.
        with held_back():
            if not self._take():
                raise RuntimeError(
                    "this cluster is running something already, one call at a time; wait for it, or make a second one"
                )
            try:
                with interruptible():
                    answers = self._answers(task, packed, chosen)
            except BaseException as error:  # Stop, too: the ranks may be in different collectives
                self._lost = FAILED
                self._release()
                if self._closed and isinstance(error, Exception):  # a consequence of `close` in another thread
                    raise RuntimeError(f"{self!r} was closed while it was running something") from None
                raise
            else:
                self._lost = ""
            finally:
                self._idle.touch()  # now, because the run itself may have taken longer than the limit
                self._busy.release()
                if self._closed:
                    self._finish()  # `close` has left that to this thread
        # Outside the block that replaces ranks: a result that cannot be unpickled here is not their fault.
        return [travel.unpack_result(answer, rank) for rank, answer in zip(chosen, answers, strict=True)]

    def _answers(self, task: str, packed: bytes, chosen: Sequence[int]) -> list[bytes]:
        self._refuse_if_closed()  # by another thread, while this call was packed
        ranks = self._usable_ranks()
        self._refuse_if_closed()  # or while fresh ranks started
        self._lost = FAILED  # until this call has returned: after any other end these ranks must not be used again
        # A pickle within a pickle, so that the rank has the text of the cells before it unpickles the call.
        message = pickle.dumps((task, self._sent_cells.news(), packed))
        try:
            return call.run(ranks, message, chosen, self.timeout)
        except RankError as error:
            if task != "run" and (parts := ranks.recorded()):
                from zerolab.recording.recording import Recording

                error.recording = Recording.merge(parts)
            raise

    def _usable_ranks(self) -> Ranks:
        """The present ranks, or fresh ones if the last call failed; raises RankError if one has died since."""
        if self._lost:
            self._release()  # in case Stop prevented it earlier
        if self._ranks is not None:
            call.show_late_output(self._ranks)  # before this run prints, or the two could not be told apart
            if not self._ranks.are_all_alive():
                raise call.death_at_rest(self._ranks)  # what the ranks held is lost, which must not go unnoticed
        ranks = self._ranks or self._start()
        if self._lost:
            output.show(f"fresh ranks: what the ranks held in memory was lost when {self._lost}\n")
            self._lost = ""
        return ranks

    def _start(self) -> Ranks:
        self._sent_cells = Cells()  # fresh ranks have been sent none
        # Stop takes effect only where the start waits: elsewhere it could leave ranks or pipes behind.
        with held_back(), waiting(f"starting {self.world_size} rank{'s' * (self.world_size > 1)}"):
            self._ranks = call.start(self._choice)
            # A method of the ranks, since one of this object would keep it alive.
            self._finalizer = weakref.finalize(self, self._ranks.kill)
            self._finalizer.atexit = False  # as the process exits, the launcher ends all ranks at once
        return self._ranks

    def _take(self) -> bool:
        """Claims the ranks for this thread; returns False if another one is running something on them."""
        with self._ending:
            return self._busy.acquire(blocking=False)

    def _end_idle_ranks(self) -> None:
        """Ends idle ranks to free their memory, unless a call is running; the next call starts fresh ones."""
        with self._ending:  # no call begins now; but one may have begun or ended since the clock was checked
            if self._ranks is None or self._busy.locked() or self._idle.left > 0:
                return
            minutes = f"{self._idle.seconds / 60:g} minutes"
            self._lost = f"they idled for {minutes}"
            self._release()
            output.show(f"{self.world_size} idle ranks ended after {minutes}; the next call starts fresh ones\n")

    def _is_ours(self) -> bool:
        return os.getpid() == self._owner

    def _refuse_if_closed(self) -> None:
        if self._closed:
            raise RuntimeError(f"{self!r} was closed; make a new one with Cluster()")

    def _finish(self) -> bool:
        """Releases a closed cluster's ranks; returns False if another thread uses them, which then releases them."""
        with held_back():  # Stop may be pressed just then
            if not self._take():
                return False
            try:
                if self._ranks is not None:
                    with interruptible():
                        call.show_late_output(self._ranks)
            finally:
                self._release()
                self._busy.release()
        return True

    def _release(self) -> None:
        with held_back():
            ranks, self._ranks = self._ranks, None
            if ranks is not None:
                self._finalizer()


def most_recent() -> Cluster | None:
    """The open cluster that was made last; None if there is none."""
    return list(_open.values())[-1] if _open else None


def _check(world_size: object, device: object, timeout: object) -> None:
    if world_size is not None and (isinstance(world_size, bool) or not isinstance(world_size, int)):
        raise TypeError(f"world_size is {world_size!r}, not a whole number; give the number of ranks, such as 4")
    if isinstance(world_size, int) and world_size < 1:
        raise ValueError(f"world_size is {world_size}, but a cluster needs at least one rank; give 1 or more")
    if device not in DEVICES:
        raise ValueError(f"device is {device!r}, which is not known; give one of {', '.join(map(repr, DEVICES))}")
    if isinstance(timeout, bool) or not isinstance(timeout, int | float):
        raise TypeError(f"timeout is {timeout!r}, not a number; give seconds, such as 20.0")
    if math.isnan(timeout) or timeout <= 0:
        raise ValueError(f"timeout is {timeout!r}, but waiting takes time; give seconds above 0, such as 20.0")
