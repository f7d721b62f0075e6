"""A recording of anybody's training: of a script that knows nothing of it, or of a loop in a `with` block.

    torchrun --nproc-per-node 4 -m zerolab.trace --steps 2:4 --out run.json train.py ...

    with zerolab.recording("run.json", steps=(2, 4)):
        train()

Steps outside of these are not watched. Ranks that are ended leave what they have recorded. What cannot be known, such
as the unit of a bucket that holds gradients of several, is left out, never guessed.
"""

import operator
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any

from zerolab import files
from zerolab.difference.fingerprint import folder_of
from zerolab.recording.events import RankRecording, count
from zerolab.recording.info import Membership, membership
from zerolab.trace.ending import leaving
from zerolab.trace.parts import Parts
from zerolab.trace.window import Window
from zerolab.why.rank import launched

PATIENCE = 60.0  # seconds that rank 0 waits for the others' parts
MANY = 20_000  # events: to write more takes longer than a third of a second, and the training goes on meanwhile
NO_STEPS = (
    "a step is a backward and the update of an optimizer from torch.optim; in processes that the script starts by "
    "itself, as with mp.spawn, nothing is recorded: start such ranks with torchrun"
)
LAST_SECONDS = 5.0  # the same, of ranks that are being ended: torchrun kills those that take 30


@contextmanager
def recording(
    out: str | os.PathLike[str],
    steps: tuple[int, int] = (2, 4),
    *,
    times_only: bool = False,
    fingerprints: bool = False,
) -> Iterator[Window]:
    """Records the steps from the first to the last of `steps`, both included, of whatever trains within the block.

    Every rank enters it. Rank 0 writes `out` as soon as all ranks have passed the last step, or at the end of the block
    with what there is; where it cannot, a line on stderr says so, and the training goes on. The first step is 1; the
    second is the first that shows everything, for Adam makes its state in the first.

    Args:
        out: the file of the recording, in a folder that all ranks see.
        steps: the first and the last to be recorded; a step ends with an update.
        times_only: no bytes of memory and no owners, and hardly slower.
        fingerprints: whether to take those of parameters, gradients and batches, too, into a folder beside `out`;
            `zerolab diff` compares those of two runs.

    Raises:
        ValueError: `steps` that are no pair, begin before 1 or end before they begin; a file that cannot be written.
    """
    try:
        first, last = map(operator.index, steps)  # NumPy's whole numbers are such, too
    except (TypeError, ValueError):
        first, last = 0, 0
    if not 1 <= first <= last:
        raise ValueError(f"steps are {steps!r}: give the first and the last to be recorded, from 1, as (2, 4)")
    files.check_place(out)
    at, parts = membership(Membership(*launched(os.environ)[:2])), Parts(Path(out))
    told = _Told(parts, first, last, fingerprints=fingerprints)
    window = Window(first, last, told.finished, times_only=times_only)
    prints: AbstractContextManager[Any] = nullcontext()
    if fingerprints:
        from zerolab.difference.watch import Fingerprints

        prints = Fingerprints(folder_of(parts.out), steps)
    else:
        try:
            for older in folder_of(parts.out).glob("rank-*.json"):  # of another run: this one's recording has none
                older.unlink(missing_ok=True)
        except OSError as error:
            print(f"zerolab: fingerprints of an earlier run stay beside this one's recording: {error}", file=sys.stderr)
    with ExitStack() as ending:
        try:
            parts.forget(at)
            ending.enter_context(prints)
        except OSError as error:
            way = f"what an earlier run left is in the way ({error}); remove that, or choose another file"
            raise ValueError(f"cannot write {str(out)!r}: {way}") from error
        ending.enter_context(leaving(lambda: told.interrupted(window.so_far())))
        ending.callback(lambda: told.ended(at.rank, window.steps))
        ending.enter_context(window)
        # It ends first: after an error the window waits for others, and may be ended meanwhile.
        ending.callback(prints.__exit__, None, None, None)
        yield window


class _Told:
    """What becomes of a rank's recording, and what a person is told of it."""

    def __init__(self, parts: Parts, first: int, last: int, *, fingerprints: bool = False) -> None:
        self._parts, self._first, self._last, self._fingerprints = parts, first, last, fingerprints
        self._recorded, self._left = False, -1  # and the last step that was left
        self._pid = os.getpid()
        self._hurry, self._leaving = threading.Event(), threading.Lock()
        self._writing: threading.Thread | None = None

    def finished(self, mine: RankRecording | None) -> None:
        """The steps are over, or the training has failed within them."""
        if mine is None or self._is_child:
            return
        self._recorded = True
        if not mine.complete:
            self._leave(mine)
            return
        if len(mine.events) > MANY:
            self._go_on_with(self._write, mine)
        elif self._has_written(mine) and mine.rank == 0:  # it is on the disk if the script now ends by os._exit
            self._go_on_with(self._merge, mine.world_size, PATIENCE, self._hurry)

    def _go_on_with(self, target: Callable[..., None], *arguments: Any) -> None:
        self._writing = threading.Thread(target=target, args=arguments, name="zerolab-writing", daemon=True)
        try:
            self._writing.start()
        except RuntimeError:  # Python 3.12.0 and 3.12.1 start none once the script has come to its end
            self._writing = None
            target(*arguments)

    def interrupted(self, mine: RankRecording | None) -> None:
        """The process is being ended, by torchrun because another rank has failed, or by a person."""
        self._hurry.set()
        if self._writing is not None:
            self._writing.join()
        elif mine is not None:
            if self._fingerprints:  # which are written when the last step is over
                print(f"zerolab: no fingerprints came from rank {mine.rank}: it was ended", file=sys.stderr)
            self._leave(mine)
        with self._leaving:  # the main thread may be about to
            return

    def _leave(self, mine: RankRecording) -> None:
        """Writes what there is, and puts it together with what others left, unless one of them has just done so.

        Again only if it has another step: a training often fails while its process is ended, and what the others left
        is then gone already.
        """
        step = max((event.step for event in mine.events), default=0)
        with self._leaving:
            if step <= self._left:
                return
            self._left = step
            if self._has_written(mine):
                self._merge(mine.world_size, LAST_SECONDS, threading.Event())

    @property
    def _is_child(self) -> bool:
        """Whether this is a process that the script has forked, which leaves the block when it ends."""
        return os.getpid() != self._pid

    def ended(self, rank: int, steps: int) -> None:
        if self._is_child:
            return
        if rank == 0 and not self._recorded:
            ran = f"{count(steps, 'step')} ran, and none of steps {self._first} to {self._last}"
            why = "" if steps else f": {NO_STEPS}"
            print(f"zerolab: nothing was recorded: {ran}{why}", file=sys.stderr)
        if self._writing is not None:
            self._writing.join()

    def _write(self, mine: RankRecording) -> None:
        if self._has_written(mine) and mine.rank == 0:
            self._merge(mine.world_size, PATIENCE, self._hurry)

    def _has_written(self, mine: RankRecording) -> bool:
        """Writes a rank's part, or says why not: no training ends because of it."""
        try:
            self._parts.write(mine, self._first)
        except (OSError, ValueError) as error:
            print(f"zerolab: no recording came from rank {mine.rank}: {error}", file=sys.stderr)
            return False
        return True

    def _merge(self, world_size: int, seconds: float, hurry: threading.Event) -> None:
        self._parts.wait(world_size, seconds, hurry)
        try:
            merged = self._parts.merge()
        except (OSError, ValueError) as error:
            print(f"zerolab: {error}", file=sys.stderr)
            return
        if merged is None:
            return
        missing = [str(rank) for rank in range(world_size) if rank not in {each.rank for each in merged.ranks}]
        without = f"; nothing came from rank {', '.join(missing)}" if missing else ""
        ran = f"{count(merged.info.steps, 'step')} of {count(world_size, 'rank')}, from step {self._first} on"
        print(f"zerolab: {ran}, in {self._parts.given}{without}", file=sys.stderr)
