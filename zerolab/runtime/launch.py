"""The kernel's end of the fork server: starts ranks, kills them, and knows how each ended."""

import atexit
import contextlib
import importlib
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from multiprocessing.connection import wait
from pathlib import Path
from typing import IO

from zerolab.runtime.handover import NO_ROOM
from zerolab.runtime.hang import working_cpu
from zerolab.runtime.interrupts import held_back, interruptible
from zerolab.runtime.machine import process_fields

START_LIMIT = 120.0  # seconds for which a fork server that imports torch may stand still, as on a slow disk
WORK = 0.005  # of a core, from which on it does not stand still: on a busy box it may import for minutes
LOOK = 1.0  # seconds after which a server that says nothing is looked after: a signal may have stopped it
FIRST_FILE = 3  # below it are stdin, stdout and stderr
_IS_EXITING = 0x4  # of a process's flags in Linux: it has closed its files, or is about to
EXIT_WAIT = 2.0  # seconds that the kernel, as it exits, waits for the server to end its ranks and what they started

Ending = tuple[int | None, int]
"""How a process ended: exit code, or minus the signal, or None if unknown; and when, in monotonic nanoseconds."""


class ForkLauncher:
    """Starts ranks from a fork server that outlives every cluster and dies with the kernel."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # reentrant, because the garbage collector may call in while a thread holds it
        self._requests = itertools.count()
        self._started: dict[int, int] = {}  # process numbers by request; of one that was refused, minus the errno
        self._ended: dict[int, Ending] = {}
        self._living: set[int] = set()  # ranks whose end was not reported
        # Packets and not a stream: a message is read whole or not at all, in spite of Stop.
        self._control, inherited = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for end in (self._control, inherited):
            end.setblocking(True)  # whatever socket.setdefaulttimeout says in this notebook
        # What the server prints, for the error if it does not come up.
        self._log = nameless_file(0)
        bound = threading.current_thread() is threading.main_thread()
        program = (
            f"import sys; sys.path[:] = {import_path()!r}; from zerolab.runtime import server; "
            f"server.main({inherited.fileno()}, {os.getpid()}, {bound})"
        )
        self._process = subprocess.Popen(
            [sys.executable, "-c", program],
            pass_fds=[inherited.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            start_new_session=True,  # the stop button reaches the kernel's group, and must not reach this
        )
        inherited.close()
        # The server takes longer over its imports than the kernel over torch, which the first call needs. In a thread:
        # Stop in the midst of it would leave half a torch, which cannot be imported again.
        self._import = threading.Thread(target=_import_torch, name="zerolab imports torch", daemon=True)
        self._import.start()

    def fileno(self) -> int:
        """Readable when a rank has ended; call `ending` then."""
        return self._control.fileno()

    def start(self, fds: Sequence[int]) -> int:
        """Fork a rank that inherits these; its process number. The first one waits for the imports.

        RuntimeError if the system allows no further process, or the server is not there.
        """
        with interruptible():
            self._import.join()
        with self._lock:
            request = next(self._requests)
            message = [json.dumps({"op": "start", "request": request}).encode()]
            with contextlib.suppress(ConnectionError):  # the server has gone; its log, which is read below, says why
                socket.send_fds(self._control, message, fds, socket.MSG_NOSIGNAL)
            began = moved = time.monotonic()
            spent = self._cpu()
            # Answers are kept by number: Stop may have interrupted an earlier caller before it took its answer.
            while request not in self._started:
                with interruptible():
                    arrived = self._is_readable(LOOK)
                now = time.monotonic()
                if self._cpu() - spent > WORK * (now - moved) and now - began < 10 * START_LIMIT:
                    spent, moved = self._cpu(), now
                waits = self._control.fileno() >= 0 and self.is_alive() and now - moved < START_LIMIT
                if not (self._receive() if arrived else waits):
                    self._log.seek(0)
                    reason = self._log.read()[-4000:].decode(errors="replace") or "it gave no reason"
                    raise RuntimeError(f"the process that starts the ranks did not come up:\n{reason}")
            started = self._started.pop(request)
        if started < 0:
            raise RuntimeError(f"no process can be started for a rank: {os.strerror(-started)}; {NO_ROOM}")
        return started

    def preload(self, *modules: str) -> None:
        """Have the server import modules that each rank would import anew; returns at once."""
        self._tell({"op": "import", "modules": modules})

    def kill(self, pids: list[int]) -> None:
        """Kill ranks and what they started; returns at once. Takes no lock: a garbage collector may call it."""
        self._tell({"op": "kill", "pids": pids})
        if not self.is_alive():
            self._kill_what_is_left_of(pids)

    def _tell(self, message: dict[str, object]) -> None:
        with contextlib.suppress(OSError):  # the server has gone, and its ranks with it; `start` will say so
            self._control.send(json.dumps(message).encode(), socket.MSG_NOSIGNAL)

    def _kill_what_is_left_of(self, pids: list[int]) -> None:
        """After the server's death, which is that of its ranks: kill what they had started, which nobody else does."""
        deadline = time.monotonic() + EXIT_WAIT
        for pid in self._living.intersection(pids):
            self._living.discard(pid)
            while _lives(pid) and time.monotonic() < deadline:
                time.sleep(0.005)
            # No new process gets this number while one of the rank's session is there: if one has it, nothing is left.
            if not _lives(pid):
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(pid, signal.SIGKILL)

    def ending(self, pid: int) -> Ending | None:
        """How a rank ended, (exit code or minus the signal, time in ns); None while it lives."""
        with self._lock:
            while self._is_readable(0) and self._receive():
                pass
            # Only the server knows exit codes.
            if pid not in self._ended and not self.is_alive():
                return None, time.monotonic_ns()
            return self._ended.get(pid)

    def _cpu(self) -> float:
        """Seconds that the server has computed; 0 where there is no /proc."""
        return (working_cpu(self._process.pid)[0] or 0) / 1e9

    def owes_ending(self, pid: int) -> bool:
        """Whether a rank has ended, or is about to, and the server has not told how: it may be busy, or get no core."""
        if not Path("/proc/self").exists():
            return False
        fields = process_fields(Path(f"/proc/{pid}"))  # first: once it has told, they are gone
        ends = fields[:1] in ([], ["Z"], ["X"]) or bool(int(fields[6]) & _IS_EXITING)
        return ends and self.ending(pid) is None

    def is_alive(self) -> bool:
        """Whether the fork server is there; without it its ranks are gone, too. One that was stopped goes on."""
        self._process.send_signal(signal.SIGCONT)  # or no rank would start, and nobody hear of one that has ended
        return self._process.returncode is None

    def close(self) -> None:
        """Makes the server end its ranks, what they had started, and itself. Called as the kernel exits.

        If that takes longer than the kernel waits, as on a busy box, the server finishes alone. It is not killed: only
        it can find what ranks have started.
        """
        with contextlib.suppress(OSError):  # the server has gone
            self._control.shutdown(socket.SHUT_RDWR)  # a fork of the kernel may hold it open, too
        self._control.close()
        if self._living or self._ended:  # it has started ranks
            self._process.send_signal(signal.SIGCONT)  # it may be stopped, and nobody will continue it later
        else:  # it may go on importing torch for a minute, and has nothing to clean up
            self._process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(EXIT_WAIT)
            if self._process.returncode != 0:  # it was killed, and could not clean up
                self._kill_what_is_left_of(list(self._living))
        self._log.close()

    def _is_readable(self, limit: float) -> bool:
        """Whether a report, or the server's end, comes within `limit` seconds."""
        return self._control.fileno() >= 0 and bool(wait([self._control], max(0.0, limit)))

    @held_back()  # or Stop could lose a report that was read and not yet noted
    def _receive(self) -> bool:
        """Take in one report; False if none ever comes again."""
        try:
            data = self._control.recv(1 << 12, socket.MSG_DONTWAIT)
        except BlockingIOError:  # a finalizer has taken it, which the garbage collector called since we looked
            return True
        except OSError:
            return False
        if not data:
            return False
        # JSON, not a pickle: the server is ours, but there is no need to trust it with more than numbers.
        report = json.loads(data)
        if "started" in report:
            # Process numbers are reused: how an earlier one ended must not count for this one.
            self._ended.pop(report["started"], None)
            self._started[report["request"]] = report["started"]
            self._living.add(report["started"])
        elif "refused" in report:
            self._started[report["request"]] = -report["refused"]
        else:
            self._living.discard(report["ended"])
            self._ended[report["ended"]] = report["code"], report["time"]
        return True


def import_path() -> list[str]:
    """The folders that this process imports from: Python passes over what is no text, such as a `Path`."""
    return [str(folder) for folder in sys.path if isinstance(folder, str)]


def folder() -> str:
    """The folder in which this process works. FileNotFoundError if it was deleted."""
    try:
        return str(Path.cwd())
    except FileNotFoundError:
        raise FileNotFoundError(
            "the folder in which this notebook works was deleted, and ranks cannot start in it; "
            "os.chdir(...) to one that exists, or restart the kernel"
        ) from None


def _import_torch() -> None:
    # Whoever needs it imports it again, and hears there what is wrong.
    with contextlib.suppress(Exception):
        importlib.import_module("torch")


def _lives(pid: int) -> bool:
    """Whether there is a process of this number; a zombie is none."""
    return process_fields(Path(f"/proc/{pid}"))[:1] not in ([], ["Z"], ["X"])


def nameless_file(size: int) -> IO[bytes]:
    """A file that processes inherit; on Linux it is memory with no name in any folder.

    So it leaves nothing on disk, nobody else can open it, and a full disk does not matter.
    """
    if sys.platform == "linux":
        file: IO[bytes] = os.fdopen(os.memfd_create("zerolab", os.MFD_CLOEXEC), "r+b")
    else:
        file = tempfile.NamedTemporaryFile(prefix="zerolab-")  # noqa: SIM115  # 0600, removed when it is closed
    # Zeros: an untouched page of the board reads as "idle, no collective yet".
    file.truncate(size)
    return file


class SpawnLauncher:
    """Starts each rank as a fresh Python: slow, but macOS allows no fork once torch is loaded."""

    def __init__(self) -> None:
        self._processes: dict[int, subprocess.Popen[bytes]] = {}

    def fileno(self) -> None:
        """None: only closed pipes tell that a rank has ended."""

    def start(self, fds: Sequence[int]) -> int:
        """Start a rank that inherits these; its process number."""
        program = (
            f"import sys; sys.path[:] = {import_path()!r}; from zerolab.runtime import handover, worker; "
            f"worker.main(handover.Fds(*{list(fds)!r}))"
        )
        process = subprocess.Popen(
            [sys.executable, "-c", program], pass_fds=fds, stdin=subprocess.DEVNULL, start_new_session=True
        )
        self._processes[process.pid] = process
        return process.pid

    def preload(self, *modules: str) -> None:
        """Nothing: a fresh Python has to import them itself."""

    def kill(self, pids: list[int]) -> None:
        """Kill ranks and what they started; returns at once."""
        for pid in pids:
            if self.ending(pid) is None:
                os.killpg(pid, signal.SIGKILL)

    def ending(self, pid: int) -> Ending | None:
        """How a rank ended; None while it lives."""
        code = self._processes[pid].poll()
        return None if code is None else (code, time.monotonic_ns())

    def owes_ending(self, _: int) -> bool:
        """Never: we ask the system."""
        return False

    def is_alive(self) -> bool:
        """There is no server that could be gone."""
        return True

    def close(self) -> None:
        """Kill every rank that is left."""
        self.kill(list(self._processes))


Launcher = ForkLauncher | SpawnLauncher
_launchers: dict[int, Launcher] = {}  # by the process that owns it: a forked copy of the kernel starts its own
_locks: dict[int, threading.RLock] = {}  # likewise: the copy may be made while a thread holds its parent's


def launcher() -> Launcher:
    """This process's launcher, started at first use and again if it has died."""
    # Stop could leave a server behind that was started and not yet noted.
    with held_back(), _locks.setdefault(os.getpid(), threading.RLock()):
        current = _launchers.get(os.getpid())
        if current is None or not current.is_alive():
            if current is not None:
                current.close()
            _open_streams()
            folder()  # in one that was deleted, MKL ends each process that imports torch
            current = _launchers[os.getpid()] = ForkLauncher() if sys.platform == "linux" else SpawnLauncher()
        return current


def _open_streams() -> None:
    """Open what this process has closed of its own streams, or was started without.

    A pipe would get such a number, and a process that is started has its streams there.
    """
    while (fd := os.open(os.devnull, os.O_RDWR)) < FIRST_FILE:
        os.set_inheritable(fd, True)
    os.close(fd)


@atexit.register
def _close() -> None:
    current = _launchers.pop(os.getpid(), None)
    if current is not None:
        current.close()
