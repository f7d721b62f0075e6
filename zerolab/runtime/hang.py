"""Tells ranks that wait for each other from a long computation: by sampling what they do, not by the clock alone."""

import contextlib
import os
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

from zerolab.runtime import board
from zerolab.runtime.board import INSIDE, ON_DEVICE, Page, Position
from zerolab.runtime.machine import process_fields

STILL = 1.0  # seconds without movement after which a rank counts as standing still
_HEAD_START = 0.6  # seconds from the first sample until there is a second to compare it with
_INTERVAL = 0.2
_TICK = 10**9 // os.sysconf("SC_CLK_TCK")  # nanoseconds of the unit in /proc/*/stat
AUTOGRAD = "pt_autograd"
"""Prefix of the names of the threads in which torch runs backward on a device, one per device."""
BUSY = 0.25
"""Of a core, from which on the helpers of a rank count as working: a thread that only logs now and then does not."""
CARRIES = 10
"""How many timeouts gloo may send while ranks wait: what a group beside sends, now and then, excuses no longer wait."""
SENT = 1 << 16
"""Bytes a second from which on gloo counts as sending: threads that only tell each other now and then do not."""
LIFELINE = "zerolab-lifelin"  # Linux keeps 15 characters of a thread's name
_ADDS, _SENDS = "pt_gloo_runloop", "gloo_tcp_loop"  # the threads that gloo has for each group; the second one polls
_SERVANTS = ("zerolab-", "gloo", "pt_", "nccl", "cuda")
"""Beginnings of the names of threads that serve collectives and wake up even while nothing moves."""

Times = dict[Path, tuple[int, int]]
"""Nanoseconds that threads have run, and waited for a core, by thread."""


class Member(Protocol):
    """One rank: its process, and its last answer: when, a number that changes as the rank moves, phase, line."""

    pid: int
    seen: tuple[int, int, str, str] | None


class Ranks(Protocol):
    """What is watched: ranks that note on their pages where they stand, and answer when asked."""

    members: Any  # a Member for each rank

    @property
    def board(self) -> Mapping[int, Page] | list[Page]:
        """Each rank's page."""

    def ask(self, ranks: Collection[int]) -> None:
        """Ask ranks where they stand; the answers arrive later, as `Member.seen`."""


class HangWatch:
    """Finds a rank that has waited in one collective for too long while no other rank moves.

    A rank moves if its main thread's Python stack or CPU time has changed within the last second; while a backward runs
    in torch's own threads, as on a GPU, their CPU time counts, too. Outside collectives, it also moves while its other
    threads, or programs that it has started, keep a core busy. So a rank may compute for an hour while the others wait
    for it, whatever `timeout` is; on a busy machine it may wait for a core, and for a disk for as long as `timeout`:
    nothing tells a slow disk from one that is gone. While gloo sends, the main threads of all ranks stand still, for
    seconds if it is much; that is no hang for up to `CARRIES` times `timeout`.

    It stands still after `still` seconds without movement. `effort` takes a process id, and returns something that
    changes while that process works, or its helpers do.
    """

    def __init__(
        self, ranks: Ranks, timeout: float, *, still: float = STILL, effort: Callable[[int], object] | None = None
    ) -> None:
        self._ranks, self._timeout, self._still, self._effort = ranks, timeout, still, effort or working_cpu
        self._helpers = Helpers() if effort is None else None
        self._starving, self._carriers = Starving(), Carriers()
        self._next = 0.0
        self._unfinished: set[int] = set()
        self._changed = 0.0  # when a rank last returned
        self._last: dict[int, tuple[object, object]] = {}
        self._moved: dict[int, float] = {}
        self._acted: dict[int, float] = {}  # the same, without the time in which it only waited for a disk
        self._carried = 0.0  # when what the ranks sent each other was last seen to move

    def look(self, unfinished: Collection[int]) -> int | None:
        """The rank that has waited longest, if this is a hang, else None. Cheap while no rank waits for long."""
        now = time.monotonic()
        if now < self._next:
            return None
        self._next = now + _INTERVAL
        positions = board.positions({rank: self._ranks.board[rank] for rank in unfinished}, unfinished)
        self._ranks.ask(unfinished)  # which makes them look at their devices, too
        if set(unfinished) != self._unfinished:  # one has returned, and may just have given the others what they need
            self._unfinished, self._changed = set(unfinished), now
            self._last.clear()
        since = {rank: each.since / 1e9 for rank, each in positions.items() if self._waits(rank, each, now)}
        if not since:
            return None
        # Sampling, which reads every rank's CPU time, begins only shortly before the time is up.
        longest = min(since, key=lambda rank: since[rank])
        if now - since[longest] < self._timeout - self._still - _HEAD_START:
            self._last.clear()
            return None
        self._sample(positions, now)
        surely_waits = {longest} if positions[longest].state == INSIDE else set()  # else its host may be computing
        # Threads beside a rank's own may listen for hours; then nothing but its standing still tells how long it waits.
        is_own = positions[longest] == self._ranks.board[longest].read()
        still = self._still if is_own else self._timeout
        others_stand_still = all(now - self._moved[rank] >= still for rank in set(unfinished) - surely_waits)
        # The last rank to arrive may have returned before those that waited for it notice that it came.
        nobody_left, waited = now - self._changed >= self._still, now - since[longest]
        carries = now - self._carried < min(STILL, self._still) and waited < CARRIES * self._timeout
        is_hang = others_stand_still and nobody_left and not carries and waited >= self._timeout
        return longest if is_hang else None

    def _waits(self, rank: int, position: Position, now: float) -> bool:
        """Whether a rank waits, as far as is known now: what it says about its device is soon out of date."""
        return position.waits and (position.state != ON_DEVICE or self._answers(rank, now))

    def _answers(self, rank: int, now: float) -> bool:
        seen = self._ranks.members[rank].seen
        return seen is not None and now - seen[0] / 1e9 < STILL

    def _sample(self, positions: Mapping[int, Position], now: float) -> None:
        for rank, position in positions.items():
            member: Member = self._ranks.members[rank]
            if position.waits and self._carriers.work(member.pid, now):
                self._carried = now
            # A host that waits for its device spins, so its CPU time says nothing. But one that does not answer is
            # computing, and what it last said about its device is out of date.
            cpu = None if position.state == ON_DEVICE and self._answers(rank, now) else self._effort(member.pid)
            seen = member.seen and member.seen[1], cpu
            if self._last.get(rank) != seen or (self._helpers and cpu is not None and self._starves(member.pid)):
                self._last[rank], self._moved[rank], self._acted[rank] = seen, now, now
                if self._helpers is not None:
                    self._helpers.forget(member.pid)
            # Inside a collective it waits for other ranks, and not for its helpers. They are looked at last: that takes
            # a look at every process of the machine.
            elif self._helpers and position.state != INSIDE and cpu and self._helpers.work(member.pid, now):
                self._moved[rank] = self._acted[rank] = now
            elif position.state != INSIDE and now - self._acted[rank] < self._timeout and waits_for_a_disk(member.pid):
                self._moved[rank] = now

    def _starves(self, pid: int) -> bool:
        return self._starving.look(pid, counted(pid))


class Starving:
    """Whether threads want a core and get none: Linux counts the time of that only once they have got one."""

    def __init__(self) -> None:
        self._ready: dict[int, dict[Path, int | None]] = {}

    def look(self, pid: int, tasks: Collection[Path]) -> bool:
        """Whether one of a process's was ready to run at the last look, too, and has not run in between."""
        before = self._ready.get(pid, {})
        ready = [task for task in tasks if process_fields(task)[:1] == ["R"]]
        # Of a kernel that counts nothing all would stand still.
        self._ready[pid] = {task: spent for task in ready if (spent := _cpu(task, waits=True))}
        return bool(before.items() & self._ready[pid].items())


class Carriers:
    """The threads in which gloo sends, receives and adds up, while the main threads of the ranks wait."""

    def __init__(self) -> None:
        self._last: dict[int, tuple[float, Times, int]] = {}
        self._starving = Starving()

    def work(self, pid: int, now: float) -> bool:
        """Whether a process's have sent, or been busy, since the last look, or have waited for a core all the time."""
        tasks = {task: name for task in threads(pid) if (name := _name(task).strip()) in (_ADDS, _SENDS)}
        spent, sent = times(task for task, name in tasks.items() if name == _ADDS), sum(map(transferred, tasks))
        since, spent_before, sent_before = self._last.get(pid, (now, spent, sent))
        self._last[pid] = now, spent, sent
        starve, seconds = self._starving.look(pid, tasks), now - since
        return starve or share(spent, spent_before, seconds) >= BUSY or sent - sent_before > SENT * seconds


class Helpers:
    """What a rank may wait for besides other ranks: its threads except the main one, and programs it has started.

    Or what else `spent` counts, for a process id.
    """

    def __init__(self, spent: Callable[[int], Times] | None = None) -> None:
        self._spent = spent or _spent_by_helpers
        self._last: dict[int, tuple[float, Times]] = {}
        self._starving = Starving()

    def forget(self, pid: int) -> None:
        """Begin anew at the next look."""
        self._last.pop(pid, None)

    def work(self, pid: int, now: float) -> bool:
        """Whether they have kept `BUSY` of a core busy since the last look, or would have on a machine with more cores.

        True at the first look, when nobody knows.
        """
        since, before = self._last.get(pid, (now, None))
        spent = self._spent(pid)
        self._last[pid] = now, spent
        starve = self._starving.look(pid, [task for task in spent if task.parent.name == "task"])  # not an ended child
        return before is None or starve or share(spent, before, now - since) >= BUSY


def is_stopped(pid: int) -> bool:
    """Whether a process was halted by a signal such as SIGSTOP; False where there is no /proc."""
    return process_fields(Path(f"/proc/{pid}"))[:1] in (["T"], ["t"])


def waits_for_a_disk(pid: int) -> bool:
    """Whether a thread of a process, or of those that it has started, reads or writes what takes long.

    That may be a file, or memory that was moved to a disk. Linux calls it an uninterruptible sleep.
    """
    started, _ = _started_by(pid)
    return any(process_fields(task)[:1] == ["D"] for process in (pid, *started) for task in threads(process))


def working_cpu(pid: int) -> tuple[int | None, ...]:
    """CPU times of a process's main thread, and of its autograd threads; the others only serve these."""
    return tuple(_cpu(task, waits=False) for task in counted(pid))


def counted(pid: int) -> list[Path]:
    """Those threads."""
    return [Path(f"/proc/{pid}/task/{pid}"), *(task for task in threads(pid) if _name(task).startswith(AUTOGRAD))]


def share(spent: Times, before: Times, seconds: float) -> float:
    """How many cores threads kept busy for these seconds, of the time in which they did not wait for one.

    On a busy machine a thread that only polls waits for a core for as long as one that computes, and then runs for a
    moment; so what it waits is no work, but what it runs counts for more.
    """
    total = 0.0
    for key, now in spent.items():
        ran, waited = (max(0, each - earlier) for each, earlier in zip(now, before.get(key, (0, 0)), strict=True))
        total += ran / max(seconds * 1e9 - waited, ran, 1)
    return total


def times(tasks: Iterable[Path]) -> Times:
    """What these threads have spent, without those that have ended."""
    return {task: spent for task in tasks if (spent := _times(task)) is not None}


def _spent_by_helpers(pid: int) -> Times:
    """What the helpers of a process have spent; and those that have ended, by parent."""
    started, ended = _started_by(pid)
    return ended | spent_by_threads(pid) | times(task for process in started for task in threads(process))


def spent_by_threads(pid: int) -> Times:
    """The same of its threads alone, except the main one and those that serve collectives."""
    # No name tells Python's from those of a library, such as a pool that parses files.
    return times(
        task for task in threads(pid) if task.name != str(pid) and not _name(task).lower().startswith(_SERVANTS)
    )


def _started_by(pid: int) -> tuple[set[int], Times]:
    """The processes below a process or in its session; and what ended children had spent, by parent."""
    origins: dict[int, tuple[int, int]] = {}
    ended: Times = {}
    for process in _numbers("/proc"):
        if fields := process_fields(process):
            origins[int(process.name)] = int(fields[1]), int(fields[3])  # parent and session
            ended[process] = (int(fields[13]) + int(fields[14])) * _TICK, 0
    family = {pid}
    while more := {each for each, origin in origins.items() if origin[0] in family or origin[1] == pid} - family:
        family |= more
    return family - {pid}, {process: spent for process, spent in ended.items() if int(process.name) in family}


def threads(pid: int) -> list[Path]:
    """A process's threads in `/proc`; none if the process is just ending, for which `glob` would raise."""
    return _numbers(f"/proc/{pid}/task")


def _numbers(folder: str) -> list[Path]:
    with contextlib.suppress(OSError):
        return [path for path in Path(folder).iterdir() if path.name.isdigit()]
    return []


def _name(task: Path) -> str:
    with contextlib.suppress(OSError):  # it has ended
        return (task / "comm").read_text(errors="replace")  # Linux cuts names, also within a letter
    return ""


def transferred(process: Path) -> int:
    """Bytes that a process, or a thread, has read and written; 0 where the kernel does not count them."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        said = (process / "io").read_text().split()
        return int(said[1]) + int(said[3])
    return 0


def _cpu(task: Path, *, waits: bool) -> int | None:
    """CPU time of a thread in nanoseconds, with `waits` that in which it waited for a core, too; None without /proc."""
    spent = _times(task)
    return None if spent is None else spent[0] + spent[1] * waits


def _times(task: Path) -> tuple[int, int] | None:
    with contextlib.suppress(OSError, IndexError, ValueError):
        ran, waited, *_ = map(int, (task / "schedstat").read_text().split())  # nanoseconds
        return ran, waited
    fields = process_fields(task)
    return ((int(fields[11]) + int(fields[12])) * _TICK, 0) if fields else None  # in user and in system mode
