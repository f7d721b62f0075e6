"""Tells ranks that wait for each other from a long computation: by sampling what they do, not by the clock alone."""

import contextlib
import time
from collections.abc import Collection
from pathlib import Path

from zerolab.runtime.board import IN_FLIGHT, INSIDE
from zerolab.runtime.ranks import Ranks

STILL = 1.0  # seconds without a movement after which a rank counts as standing still
_HEAD_START = 0.6  # seconds from the first sample until there is a second to compare it with
_INTERVAL = 0.2


class HangWatch:
    """Finds a rank that has waited in one collective for too long while no other rank's main thread moves.

    A thread moves if its Python stack or its CPU time changed within the last second. So a rank may compute for an
    hour while the others wait for it, whatever `timeout` is.
    """

    def __init__(self, ranks: Ranks, timeout: float) -> None:
        self._ranks, self._timeout = ranks, timeout
        self._next = 0.0
        self._last: dict[int, tuple[object, object]] = {}
        self._moved: dict[int, float] = {}

    def look(self, unfinished: Collection[int]) -> int | None:
        """The rank that waits longest if this is a hang, else None. Cheap while no rank waits for long."""
        now = time.monotonic()
        if now < self._next:
            return None
        self._next = now + _INTERVAL
        positions = {rank: self._ranks.board[rank].read() for rank in unfinished}
        waiting = (INSIDE, IN_FLIGHT)
        since = {rank: position.since / 1e9 for rank, position in positions.items() if position.state in waiting}
        if not since:
            return None
        # Sampling, which asks every rank, begins only shortly before the time is up.
        longest = min(since, key=lambda rank: since[rank])
        if now - since[longest] < self._timeout - STILL - _HEAD_START:
            self._last.clear()
            return None
        self._sample(unfinished, now)
        surely_waits = {longest} if positions[longest].state == INSIDE else set()  # in flight, it may be computing
        others_stand_still = all(now - self._moved[rank] >= STILL for rank in set(unfinished) - surely_waits)
        return longest if others_stand_still and now - since[longest] >= self._timeout else None

    def _sample(self, unfinished: Collection[int], now: float) -> None:
        self._ranks.ask(unfinished)
        for rank in unfinished:
            member = self._ranks.members[rank]
            seen = member.seen and member.seen[1], _main_thread_cpu(member.pid)
            if self._last.get(rank) != seen:
                self._last[rank], self._moved[rank] = seen, now


def is_stopped(pid: int) -> bool:
    """Whether a process was halted by a signal such as SIGSTOP; False where there is no /proc."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in ("T", "t")
    except (OSError, IndexError):
        return False


def _main_thread_cpu(pid: int) -> int | None:
    """CPU time of a process's main thread, in whatever its kernel counts; None where there is no /proc."""
    task = Path(f"/proc/{pid}/task/{pid}")
    with contextlib.suppress(OSError, IndexError, ValueError):
        return int((task / "schedstat").read_text().split()[0])  # nanoseconds
    with contextlib.suppress(OSError, IndexError, ValueError):
        fields = (task / "stat").read_text().rpartition(")")[2].split()
        return int(fields[11]) + int(fields[12])  # clock ticks in user and in system mode
    return None
