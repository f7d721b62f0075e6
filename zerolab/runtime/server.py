"""The fork server: one process that has imported everything once, and forks a rank from it in milliseconds.

We have our own instead of `multiprocessing`'s, because that one leaves a socket and a folder in /tmp when the kernel is
killed, brings a resource tracker, imports the caller's `__main__` and shares its preload with everybody in the process.
Here requests arrive on a socket pair that the server inherits: nothing lies on disk, and nobody can connect to it.
The process has a single thread, as a process that forks should. Nothing that it imports may touch CUDA.
"""

import contextlib
import ctypes
import errno
import gc
import importlib
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Iterator
from multiprocessing.connection import wait
from pathlib import Path

from zerolab.runtime import malloc
from zerolab.runtime.handover import Fds

PRELOAD = (
    "torch",
    "torch.distributed",
    "torch._dynamo",  # the first step of any torch optimizer imports it; by far the longest import of all
    "cloudpickle",
    "zerolab.engines",
    "zerolab.recording.recorder",
    "zerolab.engines.native",  # this and the next are imported by a recording that begins, in every rank at once
    "zerolab.theory.systems",
    "zerolab.runtime.worker",
)
PARENT_CHECK = 1.0  # seconds; a forked child of the kernel may hold our socket open after the kernel has gone
# Seconds at most that the server stays, once the kernel has gone, to end what ranks had started. It takes milliseconds,
# or seconds on a busy box; nobody else would end those programs.
CLEANUP_LIMIT = 60.0
LARGEST_REQUEST = 1 << 16
_SET_PARENT_DEATH_SIGNAL, _SET_CHILD_SUBREAPER = 1, 36  # of prctl(2)


def main(control_fd: int, parent: int, bound: bool) -> None:
    """Serve until the kernel `parent` ends. `bound`: the thread that started us lives as long as the kernel does."""
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # what the kernel blocks is inherited, and would be here: SIGCHLD
    if bound:
        die_with_parent(parent)
    control = socket.socket(fileno=control_fd)
    preload()
    malloc.keep()
    ForkServer(control, parent).serve(bound)
    os._exit(0)  # Python would spend a second on taking torch apart


def preload() -> None:
    """Import what a first training step needs."""
    # torch._dynamo makes its cache folder when it is imported; told to use one that exists, it leaves nothing in /tmp,
    # and a full /tmp does not matter. The ranks do not see this: they take over the kernel's environment.
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", sys.prefix)
    with _shared():
        for name in PRELOAD:
            importlib.import_module(name)
        # Else the first recording on fresh ranks would show the text as memory of theirs, and no later one would.
        importlib.import_module("zerolab.models").text()
        importlib.import_module("zerolab.recording.dispatch").leave_to_python()


@contextlib.contextmanager
def _shared() -> Iterator[None]:
    """Marks what comes into being within it as long-lived, so that forked ranks share its memory.

    The garbage collector would look through half a million objects again and again: a tenth of the time.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def die_with_parent(parent: int) -> None:
    """Asks Linux to kill this process when the thread that started it ends; elsewhere a closed socket has to do."""
    _ask_linux(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def _ask_linux(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value)


class ForkServer:
    """Forks ranks on request, reports how each ended, kills them on request and when the kernel has gone."""

    def __init__(self, control: socket.socket, parent: int) -> None:
        self._control = control
        self._parent = parent
        self._children: set[int] = set()
        self._orphans: set[int] = set()  # what ranks had started and left behind: killed, and not yet gone
        self._wake, self._wake_writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._is_stopping = False

    def serve(self, bound: bool = False) -> None:
        """Answer requests until the kernel closes its end or dies, then end every rank and what it started."""
        for number in (signal.SIGCHLD, signal.SIGTERM):
            signal.signal(number, self._on_signal)  # a handler must exist for the wake-up pipe to be written
        signal.set_wakeup_fd(self._wake_writer, warn_on_full_buffer=False)
        # A rank's descendant that loses its parent becomes our child, and even its own session is no way out.
        _ask_linux(_SET_CHILD_SUBREAPER, 1)
        if bound:  # from here on the kernel's death is a signal to clean up after the ranks, and no longer SIGKILL
            _ask_linux(_SET_PARENT_DEATH_SIGNAL, signal.SIGTERM)
        # One thread and one loop: a fork copies only the thread that calls it, with whatever locks others hold.
        while os.getppid() == self._parent and not self._is_stopping:
            ready = wait([self._control, self._wake], PARENT_CHECK)
            if self._wake in ready:
                os.read(self._wake, 1 << 12)
                self._reap()
            if self._control in ready and not self._answer():
                break
        self._end()

    def _on_signal(self, number: int, _: object) -> None:
        self._is_stopping |= number == signal.SIGTERM

    def _end(self) -> None:
        """Kill the ranks, and stay until nothing is left of what they had started."""
        self._kill(self._children)
        deadline = time.monotonic() + CLEANUP_LIMIT
        while (self._children or self._orphans) and time.monotonic() < deadline:
            self._reap()
            time.sleep(0.005)

    def _answer(self) -> bool:
        """Handle one request; False when the kernel has closed its end."""
        try:
            data, fds, _, _ = socket.recv_fds(self._control, LARGEST_REQUEST, len(Fds._fields), socket.MSG_CMSG_CLOEXEC)
        except ConnectionResetError:  # it had not read our last report
            return False
        if not data:
            return False
        request = json.loads(data)
        if request["op"] == "start":
            answer = self._start(Fds(*fds))  # from which only this process returns
            for fd in fds:
                os.close(fd)
            self._report(answer | {"request": request["request"]})
        elif request["op"] == "import":
            with _shared(), contextlib.suppress(Exception):  # a rank imports it again, and says what is wrong
                for name in request["modules"]:
                    importlib.import_module(name)
        elif request["op"] == "kill":
            self._kill(request["pids"])
        return True

    def _start(self, fds: Fds) -> dict[str, int]:
        """Fork a rank: its process number, or the errno if the system allows none."""
        server = os.getpid()
        try:
            pid = os.fork()
        except OSError as error:  # the ranks that there are go on
            return {"refused": error.errno or errno.EAGAIN}
        if pid == 0:
            self._become_rank(fds, server)
        self._children.add(pid)
        return {"started": pid}

    def _become_rank(self, fds: Fds, server: int) -> None:
        """In the forked child: drop what belongs to the server and never come back."""
        try:
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGCHLD, signal.SIGTERM):
                signal.signal(number, signal.SIG_DFL)
            os.close(self._wake)
            os.close(self._wake_writer)
            self._control.close()
            os.setsid()  # the stop button's signal goes to the kernel's group; a rank's children end with its own
            die_with_parent(server)
            from zerolab.runtime import worker

            worker.main(fds)
        finally:
            os._exit(1)

    def _reap(self) -> None:
        """Report every rank that has ended, and end what it has left behind."""
        has_orphaned = False
        with contextlib.suppress(ChildProcessError):  # there is no child at all
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                # An orphan's own children become ours only now, so we look again; others end in the middle of a run.
                has_orphaned |= ended[0] in self._children or ended[0] in self._orphans
                self._on_exit(*ended)
        if has_orphaned:
            self._kill_orphans()

    def _on_exit(self, pid: int, status: int) -> None:
        self._orphans.discard(pid)
        if pid not in self._children:
            return
        self._children.discard(pid)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)  # what the rank had started and left behind
        self._report({"ended": pid, "code": os.waitstatus_to_exitcode(status), "time": time.monotonic_ns()})

    def _kill_orphans(self) -> None:
        """Kill the children that we did not fork; those in the session of a rank that lives will end with it."""
        for pid in _children_of_this_process() - self._children:
            with contextlib.suppress(ProcessLookupError):
                if os.getsid(pid) not in self._children:
                    os.kill(pid, signal.SIGKILL)
                    self._orphans.add(pid)

    def _kill(self, pids: "set[int] | list[int]") -> None:
        for pid in self._children.intersection(pids):  # a child that is not reaped yet keeps its number
            try:
                os.killpg(pid, signal.SIGKILL)
            except ProcessLookupError:
                os.kill(pid, signal.SIGKILL)  # it has not made its own session yet

    def _report(self, message: dict[str, int]) -> None:
        with contextlib.suppress(OSError):  # the kernel has gone; the next turn of the loop notices
            self._control.send(json.dumps(message).encode())


def _children_of_this_process() -> set[int]:
    """Numbers of our children, zombies included; none where Linux was built without this list."""
    try:
        return set(map(int, Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()))
    except OSError:
        return set()
