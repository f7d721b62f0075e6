"""What each rank does under zerolab.why: it notes its collectives, and a thread reports where its main thread is.

The thread needs nothing from the main one. While native code in the main thread holds Python's lock, the thread is
silent, and the note about the last collective remains.
"""

import json
import os
import re
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from itertools import takewhile
from pathlib import Path
from typing import Any

from zerolab.recording.dispatch import beside_compiler
from zerolab.runtime import counter, report, stack
from zerolab.runtime.board import Position
from zerolab.why.notes import NAME, Notes
from zerolab.why.verdict import FINISHED
from zerolab.why.watch import HANG, Options, born

SAYS = 0.25  # seconds from one look at the main thread to the next
LOOKS = 8  # three quarters of them must find Python's lock taken for a loop in Python
GIVES_UP = 0.02  # seconds without Python's lock: on a busy machine a loop needs about as long for a core to take it on
MOST_PLACES = 10_000  # stacks that are remembered between two collectives
# By torchrun, Open MPI's and MPICH's mpirun, and srun, below which an mpirun may run: it comes last.
# Of Slurm's numbers those of a step: a batch script, or the shell of an allocation, is one process of no step.
_LAUNCHERS = (
    ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE"),
)
_STDLIB = str(Path(os.__file__).parent)
_LONGEST = 1_000  # characters of an error, of a line


@contextmanager
def watched(folder: Path, timeout: float, *, end: bool = False) -> Iterator[None]:
    """Within it, this rank can be asked why it hangs. The first rank of a node starts the process that asks.

    Args:
        folder: where the notes are, the same for all ranks; it is there.
        timeout: seconds that a rank may wait for others that do not move.
        end: end the ranks when they hang.
    """
    speaker = _Speaker(folder)
    counter.install(speaker.notes.page)
    speaker.start()
    if speaker.is_first:
        (folder / HANG).unlink(missing_ok=True)  # of an earlier run
        run, world_size = speaker.about["run"], speaker.about["world_size"]
        options = Options(str(folder.resolve()), _job(), run, world_size, timeout, end, speaker.about["born"])
        # In its own session: torchrun ends its ranks' process groups, and this process still has something to say then.
        command = [sys.executable, "-m", "zerolab.why.watch", json.dumps(options)]
        subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=sys.__stderr__, start_new_session=True)  # noqa: S603
    with ExitStack() as leaving:
        leaving.enter_context(beside_compiler())
        leaving.push(lambda _kind, error, _trace: speaker.end(error))
        yield


def _job() -> str:
    """What the nodes of a run have in common."""
    names = ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE")
    return " ".join(os.environ.get(name, "") for name in names)


def launched(said: Mapping[str, str]) -> tuple[int, int, int, int]:
    """Rank, number of ranks, and both within the node, by what the launcher said; without one a process is alone.

    A launcher that says nothing of nodes has started all ranks on this one.
    """
    asked = [[said.get(name) for name in names] for names in _LAUNCHERS]
    known = [*(each for each in asked if all(each[:2])), ["0", "1", None, None]]
    # A script may set RANK by what srun told it, which tells what is then missing, too.
    same = [each for each in known if each[:2] == known[0][:2]]
    rank, total, local_rank, local = (next(filter(None, column), None) for column in zip(*same, strict=True))
    number, ranks = int(rank or 0), int(total or 1)
    # Slurm counts tasks node by node: 4(x2),3 are two nodes of four and one of three.
    nodes = [
        int(one) for one, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", local or "") for _ in range(int(times or 1))
    ]
    here = nodes[min(int(said.get("SLURM_NODEID", "0")), len(nodes) - 1)] if nodes else ranks
    return number, ranks, number if local_rank is None else int(local_rank), here


class _Speaker(threading.Thread):
    """Says where the main thread stands, as long as the process lives."""

    def __init__(self, folder: Path) -> None:
        super().__init__(name="zerolab-why", daemon=True)
        (rank, world_size, local_rank, local), pid = launched(os.environ), os.getpid()
        self.is_first = local_rank == 0
        """Of its node."""
        self.notes = Notes(folder / f"{NAME}{rank}", new=True)
        # Ranks that one launcher has started at one time are a run's.
        run = f"{os.getppid()}-{born(os.getppid())}-{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"
        self.about: dict[str, Any] = {
            "rank": rank, "world_size": world_size, "local": local, "pid": pid, "born": born(pid), "run": run,
        }  # fmt: skip
        self._watched, self._places, self._position = threading.get_ident(), set[int](), Position()
        self._native: deque[bool] = deque(maxlen=LOOKS)
        self._lock, self._ended = threading.Lock(), False
        self.notes.say(**self.about)

    def run(self) -> None:
        with suppress(OSError):  # so that its work does not count as the script's; elsewhere there is no /proc
            Path("/proc/thread-self/comm").write_text(self.name)
        while not self._ended:
            with suppress(Exception):  # looking must not disturb a training
                self._look()
            time.sleep(SAYS)

    def _look(self) -> None:
        (number, lines), now = stack.look(self._watched), time.monotonic_ns()
        position = self.notes.page.read()
        if position != self._position:
            self._places.clear()
            self._native.clear()
            self._position = position
        if len(self._places) < MOST_PLACES:
            self._places.add(number)
        self._native.append(_is_free())
        phase, where = stack.describe(lines)
        busy, native = counter.look(), len(self._native) < LOOKS or sum(self._native) > LOOKS // 4
        with self._lock:
            if not self._ended:
                self.notes.say(
                    **self.about, time=now, places=len(self._places), native=busy or native,
                    device=busy, phase=phase, where=where[:_LONGEST], called=_called(lines),
                )  # fmt: skip

    def end(self, error: BaseException | None) -> None:
        """Say how the script has ended."""
        with self._lock:
            self._ended = True
            if os.getpid() != self.about["pid"]:  # a process that the script has forked
                return
            self.notes.say(**self.about, time=time.monotonic_ns(), **_ending(error))


def _is_free() -> bool:
    """Whether Python's lock is free: the main thread is in native code, or waits; one in a loop gives it up late."""
    began, queued = time.perf_counter(), _queued()  # in this order, and below in the other: reading gives it up, too
    gives_up = 0.0 if queued is None else GIVES_UP  # of a longer sleep the end may be late
    time.sleep(gives_up)  # without the lock, which it then asks for again
    waited = 0.0 if queued is None else (_queued() or queued) - queued
    return time.perf_counter() - began - gives_up - waited < sys.getswitchinterval() / 2


def _queued() -> float | None:
    """Seconds that this thread has waited for a core; None where the kernel does not count them."""
    with suppress(OSError, IndexError, ValueError):
        return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9
    return None


def _called(lines: list[stack.Line]) -> str:
    """The function of a library that the script's line calls, how deep that library is, and what it waits for.

    A loop of a library's is one line of the script, whether it trains, evaluates or waits for a batch.
    """
    inner = takewhile(lambda line: not stack.is_a_lesson(line[0]), lines)
    called = [(stack.label(file), name, file) for file, _, name in inner]
    called = [each for each in called if not each[0].startswith("zerolab/")]
    if not called:
        return ""
    begins, library = called[-1], called[-1][0].split("/")[0]
    last = next(each for each in called if each[0].split("/")[0] == library)
    waits = next((each for each in called if not each[2].startswith(_STDLIB) or "-packages" in each[2]), called[0])
    places, file = [], ""
    for place in dict.fromkeys((begins, last, waits)):
        places.append(place[1] if place[0] == file else f"{place[0]}, {place[1]}")
        file = place[0]
    return " > ".join(places)


def _ending(error: BaseException | None) -> dict[str, Any]:
    if error is None:
        return {"ended": FINISHED}
    phase, where = stack.describe_error(error.__traceback__)
    said = {"phase": phase, "where": where[:_LONGEST]}
    if isinstance(error, SystemExit):
        return said | {"ended": f"ended by sys.exit({error.code!r:.40})", "failed": error.code not in (None, 0)}
    text = report.text_of(error)[:_LONGEST]
    ended = f"raised {report.name_of(error)}" + (f": {text}" if text else "")
    return said | {"ended": ended, "failed": True, "peer": report.blames_a_peer(error)}
