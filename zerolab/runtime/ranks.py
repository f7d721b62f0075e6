"""One generation of ranks, as the kernel sees it: their processes and the pipes to them."""

import contextlib
import os
import pickle
import selectors
import time
from collections.abc import Collection
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe
from typing import IO

from zerolab.recording.events import RankRecording
from zerolab.runtime import board, machine
from zerolab.runtime.devices import Choice
from zerolab.runtime.handover import RECORDED, WHERE, Fds, Setup
from zerolab.runtime.interrupts import held_back, interruptible, writing_to_a_rank
from zerolab.runtime.launch import Ending, folder, import_path, launcher, nameless_file

RECORDING_LIMIT = 5.0  # seconds that all ranks get to hand over what they have recorded; one in native code never does
KILL_LIMIT = 2.0  # seconds that `kill` waits for killed ranks to disappear
CHUNK = 1 << 16


@dataclass
class Member:
    """One rank: its process, the kernel's ends of its pipes, and what it last said of itself."""

    rank: int
    pid: int
    commands: Connection
    lifeline: Connection
    output: Connection
    crash: IO[bytes]
    asked: float = 0.0  # since when a question is under way, in seconds; 0: none is
    seen: tuple[int, int, str, str] | None = None  # the last answer: time, fingerprint of the stack, phase, line
    said: bytes = b""  # the last that it wrote

    def crash_text(self) -> str:
        """The Python stack that it wrote as it died; empty if it ended without a word."""
        return os.pread(self.crash.fileno(), CHUNK, 0).decode(errors="replace")

    def close(self) -> None:
        """Close the kernel's ends of its pipes."""
        for end in (self.commands, self.lifeline, self.output, self.crash):
            end.close()


class Ranks:
    """World-size processes in one process group. After a failure they are replaced, never repaired."""

    def __init__(self, choice: Choice) -> None:
        world_size = choice.world_size
        self._launcher, self._owner = launcher(), os.getpid()
        self._selector = selectors.DefaultSelector()
        if (news := self._launcher.fileno()) is not None:
            self._selector.register(news, selectors.EVENT_READ)
        # The board, and the store in which the ranks find each other.
        self._files = [nameless_file(board.size(world_size)), nameless_file(0)]
        self.board = board.pages(self._files[0].fileno(), world_size)
        self.members: list[Member] = []
        self.last_cell = ""  # that has called them
        try:
            for rank in range(world_size):
                member = self._start(rank)
                self.members.append(member)
                for pipe in ("commands", "lifeline", "output"):
                    self._selector.register(getattr(member, pipe), selectors.EVENT_READ, (pipe, member))
                surroundings = choice.gpus, choice.backend, dict(os.environ), folder(), import_path(), machine.cores()
                with writing_to_a_rank():  # it has died already, as is noticed while it is waited for
                    member.commands.send_bytes(pickle.dumps(Setup(rank, world_size, *surroundings)))
        except BaseException:
            self.kill()
            raise

    def are_all_alive(self) -> bool:
        """Whether no rank has ended."""
        return all(self.ending(member.rank) is None for member in self.members)

    def ending(self, rank: int) -> Ending | None:
        """How a rank ended; None while it lives."""
        return self._launcher.ending(self.members[rank].pid)

    def owes_ending(self, rank: int) -> bool:
        """Whether it has ended, or is about to, and we have not been told how."""
        return self._launcher.owes_ending(self.members[rank].pid)

    def ask(self, ranks: Collection[int]) -> None:
        """Ask ranks where they stand; the answers come in with everything else, as `Member.seen`."""
        for member in (self.members[rank] for rank in ranks):
            if not member.asked:
                with writing_to_a_rank():
                    member.lifeline.send_bytes(WHERE)
                    member.asked = time.monotonic()

    def recorded(self) -> list[RankRecording]:
        """What each rank has recorded in a call that failed; of one that has died, or cannot answer, there is none."""
        asked = [member for member in self.members if self.ending(member.rank) is None]
        for member in asked:
            with writing_to_a_rank():
                member.lifeline.send_bytes(RECORDED)
        answers: list[object] = []
        deadline = time.monotonic() + RECORDING_LIMIT
        for member in asked:
            count = 1 + bool(member.asked)  # the answer to `ask` may still be on its way, before the recording
            with contextlib.suppress(EOFError, OSError):
                for _ in range(count):
                    ready = member.lifeline.poll(max(0.0, deadline - time.monotonic()))
                    answers += [pickle.loads(member.lifeline.recv_bytes())] if ready else []
        return [answer for answer in answers if isinstance(answer, RankRecording)]

    def wait(self, limit: float) -> list[tuple[str, Member]]:
        """Which pipes have something to read, waiting up to `limit` seconds: `commands`, `lifeline` or `output`."""
        with interruptible():
            arrived = self._selector.select(limit)
        return [key.data for key, _ in arrived if key.data is not None]

    def forget(self, pipe: str, member: Member) -> None:
        """Stop waiting for a pipe that has come to its end."""
        self._selector.unregister(getattr(member, pipe))

    def end(self) -> None:
        """End all ranks and what they started, but leave the pipes to them open: another thread may be reading."""
        self._end(self.members)

    def kill(self) -> None:
        """End all ranks and what they started, and close everything that leads to them. Harmless when repeated.

        In a process that was forked from the one that started them it only closes: the ranks are its parent's.
        """
        with held_back():  # a second Stop would leave the rest of it open
            # Emptied first: the garbage collector may call this method while it runs.
            members, self.members = self.members, []
            self._selector.close()
            if os.getpid() == self._owner:
                self._end(members)
            for member in members:
                member.close()
            for file in self._files:
                file.close()

    def _end(self, members: list[Member]) -> None:
        pids = [member.pid for member in members]
        self._launcher.kill(pids)
        deadline = time.monotonic() + KILL_LIMIT
        while time.monotonic() < deadline and any(self._launcher.ending(pid) is None for pid in pids):
            time.sleep(0.005)

    def _start(self, rank: int) -> Member:
        # They wait, whatever timeout sockets have.
        ours, theirs = zip(Pipe(), Pipe(), Pipe(duplex=False), strict=True)
        member = Member(rank, 0, *ours, nameless_file(0))
        try:
            files = [file.fileno() for file in (member.crash, *self._files)]
            member.pid = self._launcher.start(Fds(*(end.fileno() for end in theirs), *files))
        except BaseException:
            # Stop may have come after the rank was forked: once its lifeline is closed it ends by itself.
            member.close()
            raise
        finally:
            for end in theirs:
                end.close()
        return member
