"""Each rank leaves its part in a file, and rank 0 makes one recording of them: no collective is added to a training.

The parts of `run.json` lie in `run.json.parts`, until they are one. Ranks on several nodes need a folder that all of
them see; where they have none, the parts can be copied to one place and merged there.
"""

import fcntl
import hashlib
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from zerolab import files
from zerolab.recording import clocks, jsonfile
from zerolab.recording.events import RankRecording, RunInfo
from zerolab.recording.info import Membership
from zerolab.recording.recording import Recording

BOOT = Path("/proc/sys/kernel/random/boot_id")
POLL_SECONDS = 0.2
_OF_A_RUN = ("TORCHELASTIC_RUN_ID", "MASTER_PORT")  # the same on all of its ranks, and different in two at one time
MERGED = "merged"  # names the parts that have been put together


class Parts:
    """The files of one run's ranks, beside `out`."""

    def __init__(self, out: Path) -> None:
        self.given, self.out = out, out.absolute()  # a script may change its working directory
        self.folder = self.out.with_name(f"{out.name}.parts")

    def forget(self, at: Membership) -> None:
        """Removes what this rank left in an earlier run; rank 0 also what that one's further ranks left."""
        for older in self._every():
            if _rank(older) == at.rank or (at.rank == 0 and _rank(older) >= at.world_size):
                older.unlink(missing_ok=True)
        (self.folder / MERGED).unlink(missing_ok=True)

    def write(self, recording: RankRecording, first_step: int) -> None:
        """Writes one rank's part. Raises OSError or ValueError where that is not possible."""
        self.folder.mkdir(exist_ok=True)
        mine = replace(recording, info=replace(recording.info, first_step=first_step))
        contents = jsonfile.Contents(mine.world_size, RunInfo(first_step=first_step), mine.units, mine.sources, [mine])
        files.write_text(self.folder / f"rank-{mine.rank}-{_run()}-{_host()}.json", jsonfile.text(contents))

    def ranks(self) -> list[int]:
        """The ranks of which there is a part."""
        return [_rank(path) for path in self._found()]

    def _found(self) -> list[Path]:
        """This run's parts, for another one may write into the same file; of none, as where they were copied, all."""
        every = self._every()
        return [path for path in every if f"-{_run()}-" in path.name] or every

    def _every(self) -> list[Path]:
        """The parts of all runs; other files may have names that begin alike."""
        return sorted(path for path in self.folder.glob("rank-*.json") if path.stem.split("-")[1].isdecimal())

    def wait(self, world_size: int, seconds: float, hurry: threading.Event) -> None:
        """Waits until there is a part of each rank, but no longer than this, nor when told to hurry."""
        until = time.monotonic() + seconds
        while len(self.ranks()) < world_size and time.monotonic() < until and not hurry.wait(POLL_SECONDS):
            pass

    def merge(self) -> Recording | None:
        """Makes one recording of the parts that are there, writes it, and removes them if none is missing.

        None if another rank has made it of the same parts. Raises ValueError if they do not belong together.
        """
        with _alone(self.folder):
            found = self._found()
            names = "\n".join(path.name for path in found)
            done = self.folder / MERGED
            if not found or (done.exists() and done.read_text() == names):
                return None
            merged = _merged(found)
            merged.save(self.out)
            with suppress(OSError, ValueError):  # the recording is there; the same parts may be merged once more
                if len(merged.ranks) == merged.world_size:
                    for path in (*found, done):
                        path.unlink(missing_ok=True)
                    self.folder.rmdir()  # unless another run's parts are in it
                else:
                    files.write_text(done, names)
            return merged


def _rank(part: Path) -> int:
    return int(part.stem.split("-")[1])


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """One process at a time is in the block; the folder need not be there any more."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except FileNotFoundError:
        yield
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _merged(found: list[Path]) -> Recording:
    hosts = [path.stem.rpartition("-")[2] for path in found]
    ranks = [rank for path in found for rank in jsonfile.read(path).ranks]
    aligned, clock = clocks.on_one_clock(ranks, hosts)
    merged = Recording.merge(aligned)
    merged.info = replace(merged.info, clocks=clock)
    return merged


def _host() -> str:
    """A name for this machine since it was started, which says nothing of it: to know whose clocks are the same."""
    known = ""
    with suppress(OSError):
        known = BOOT.read_text()
    return _hash(known or os.uname().nodename)


def _run() -> str:
    """A name for the run; not to be taken early, for Lightning chooses the port when its training begins."""
    return _hash(" ".join(os.environ.get(name, "") for name in _OF_A_RUN))


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]
