"""The process next to a node's ranks: it reads their notes, and says which rank a hang comes from. No torch.

It is not one of the ranks, so it can still report when they are stopped, killed or in native code.
"""

import contextlib
import json
import os
import shlex
import signal
import sys
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any, NamedTuple

from zerolab import files
from zerolab.runtime import board, faults, hang, stack
from zerolab.runtime.board import FAILED, IN_FLIGHT, INSIDE, ON_DEVICE, Page, Position
from zerolab.runtime.faults import STOPPED, Outcome, Standing
from zerolab.runtime.hang import HangWatch, Helpers, Times, is_stopped
from zerolab.runtime.machine import process_fields
from zerolab.runtime.mismatch import Calls
from zerolab.why import verdict
from zerolab.why.nodes import Nodes
from zerolab.why.notes import Notes, in_folder
from zerolab.why.verdict import ELSEWHERE, GONE, INIT, Verdict

HANG = "hang.json"
TICK = 0.2  # seconds between two looks at all ranks
SETTLE = 1.0  # seconds after a rank's end in which others may still tell theirs
QUIET = 1.0  # seconds of silence after which a rank's thread counts as shut out by Python's lock
COMPUTES = 10  # how many timeouts a rank may compute while others wait, before we report that, too
WORK, READ = 0.05, 1 << 20  # the part of a second that a rank works, and bytes a second, that count as computing
COMES_LATE = 60.0  # seconds in which all ranks of a node begin
WORDLESS = "is gone without a word: it was killed or aborted, or called os._exit"
GO_ON = "the ranks go on: that was no hang, but took long"
NEVER = "not begun under zerolab.why"


class Options(NamedTuple):
    """What this process is told, as JSON on its command line."""

    folder: str
    job: str
    run: str
    world_size: int
    timeout: float
    end: bool
    born: int = 0  # when the rank that has started this began


def born(pid: int) -> int:
    """When a process began, in its kernel's ticks: numbers are used again. 0 if it is gone, or nobody knows."""
    fields = process_fields(Path(f"/proc/{pid}"))
    return 0 if fields[:1] in ([], ["Z"], ["X"]) else int(fields[19])


class _Rank:
    """A rank as this process knows it: a Member of HangWatch."""

    def __init__(self, notes: Notes, said: dict[str, Any], timeout: float) -> None:
        self.notes, self.said, self.pid, self._timeout = notes, said, said["pid"], timeout
        self.seen: tuple[int, int, str, str] | None = None
        self.ending: Outcome | None = None
        self._helpers, self._starving = Helpers(hang.spent_by_threads), hang.Starving()
        self._work, self._works = 0, False
        self._spent: tuple[float, Times, int] = (time.monotonic(), {}, 0)
        self._position, self._since, self._worked = notes.page.read(), time.monotonic(), 0.0

    def look(self) -> None:
        """Takes in what it says."""
        self.said = self.notes.said() or self.said
        if "where" in self.said:
            self.seen = self.said["time"], self.said.get("places", 0), self.said["phase"], self.said["where"]

    def effort(self) -> object:
        """What changes while it works: its collectives, and that it computes, up to some times the timeout."""
        now, position = time.monotonic(), self.notes.page.read()
        if position != self._position:
            self._position, self._since = position, now
        then, spent, read = self._spent
        if now - then >= (every := min(0.5, self._timeout / 3)):
            self._spent = now, _spent(self.pid), hang.transferred(Path(f"/proc/{self.pid}"))
            computes = hang.share(self._spent[1], spent, now - then) > WORK
            reads = self._spent[2] - read > READ * (now - then)
            helped, starves = self._helpers.work(self.pid, now), self._starving.look(self.pid, hang.counted(self.pid))
            self._works = computes or reads or helped or starves or bool(self.said.get("device"))
            # Within a collective a rank waits, but ranks that join connect to each other. Outside, a loop of a few
            # lines of Python does not count, however busy.
            is_quiet = self._silence() > min(QUIET, self._timeout / 2)  # if the timeout is short, it may only be late
            counts = position.name == INIT if position.state == INSIDE else is_quiet or self.said.get("native")
            if self._works and counts:
                self._worked = now
                # What follows the last movement, before it is reported, is the timeout less a look of either kind.
                self._work += now - self._since < (COMPUTES - 1) * self._timeout + TICK + every
        return self._work, position

    def _silence(self) -> float:
        """Seconds since its thread said something."""
        return float(time.monotonic_ns() - self.said.get("time", 0)) / 1e9

    @property
    def remark(self) -> str:
        """What it does, as far as its line does not tell."""
        if self.notes.page.read().state in (INSIDE, ON_DEVICE):
            return ""
        if time.monotonic() - self._worked < 0.8 * self._timeout:  # of one that stands still that is longer ago
            lock = "its native code keeps Python's lock, and this line may be an old one"
            return lock if self._silence() > QUIET else "it computes"
        return "it goes round a loop there" if self._works else ""

    def standing(self, rank: int, position: Position) -> Standing:
        """Where it is."""
        noted = self.notes.page.read_place()
        phase, where = noted.phase, _place(noted.filename, noted.line) if noted.filename else ""
        if self.seen is not None and position.state != ON_DEVICE and self.seen[0] > noted.time:
            phase, where = self.seen[2:]
            called = self.said.get("called", "")
            if called and not (position.state in (INSIDE, IN_FLIGHT) and called.startswith("torch")):
                where = f"{where or 'no line of the script'} (in {called})"
        state = STOPPED if is_stopped(self.pid) else "running"
        if self.ending is not None:
            state = "lost a peer" if self.ending.blames_a_peer else str(self.said.get("ended", GONE)).split(":")[0]
        return Standing(rank, state, position, phase, where)


class _Ranks:
    """The ranks of this node, as HangWatch asks for them."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self.members: dict[int, _Rank] = {}
        self.local = options.world_size

    @property
    def board(self) -> dict[int, Page]:
        return {rank: member.notes.page for rank, member in self.members.items()}

    @property
    def elsewhere(self) -> int:
        """How many ranks other nodes have."""
        return self._options.world_size - self.local

    def find(self) -> None:
        """Looks for ranks that have begun since, also in the place of one that was an earlier run's."""
        for rank, path in in_folder(Path(self._options.folder)).items():
            with contextlib.suppress(OSError, ValueError):
                member = self.members.get(rank)
                if member is not None and member.notes.file == path.stat().st_ino:
                    continue
                notes = Notes(path)
                said = notes.said()
                if self._is_ours(rank, said) and (member is None or self._apart(said) < self._apart(member.said)):
                    self.members[rank], self.local = _Rank(notes, said, self._options.timeout), said["local"]

    def _is_ours(self, rank: int, said: dict[str, Any]) -> bool:
        """Whether a rank of this run says so."""
        size = self._options.world_size
        if rank >= size or said.get("world_size") != size:
            return False
        # Each may have a parent of its own, such as a shell. What an earlier run has left has ended, or hangs.
        lives = (born(said["pid"]) or -1) == said["born"]
        begins = self._options.born - COMES_LATE * os.sysconf("SC_CLK_TCK")
        return bool(said["run"] == self._options.run or (lives and said["born"] >= begins))

    def _apart(self, said: dict[str, Any]) -> int:
        """How long before or after the first rank it began."""
        return int(abs(said["born"] - self._options.born))

    def ask(self, ranks: Collection[int]) -> None:
        for rank in ranks:
            self.members[rank].look()

    def effort(self, pid: int) -> object:
        (member,) = (each for each in self.members.values() if each.pid == pid)
        return member.effort()

    def unfinished(self) -> list[int]:
        """The ranks that still run, after a look at who has ended."""
        for rank, member in self.members.items():
            if member.ending is None:
                is_gone = born(member.pid) != member.said["born"]
                member.look()
                if is_gone or "ended" in member.said:
                    kind = "raised" if member.said.get("failed") else "done" if "ended" in member.said else "died"
                    when = member.said["time"] if "ended" in member.said else time.monotonic_ns()
                    member.ending = Outcome(rank, kind, {"peer": member.said.get("peer", False)}, when)
        return [rank for rank, member in self.members.items() if member.ending is None]

    def positions(self) -> dict[int, Position]:
        """Where the ranks of this node are."""
        return board.positions(self.board, [rank for rank, member in self.members.items() if member.ending is None])

    def standings(self) -> list[Standing]:
        """Where every rank of the run stands, those included that are not known."""
        missing, at = ELSEWHERE if self.elsewhere else NEVER, self.positions()
        return [
            self.members[rank].standing(rank, at[rank]) if rank in at else Standing(rank, missing, Position())
            for rank in range(self._options.world_size)
        ]

    def calls(self) -> Calls:
        """The last collectives of each rank; none of one that has not begun."""
        calls: dict[int, list[Position]] = {rank: page.history() for rank, page in self.board.items()}
        if not self.elsewhere:
            calls |= {rank: [] for rank in range(self.local) if rank not in calls}
        return calls


class Watch:
    """Looks at the ranks until all of them have ended."""

    def __init__(self, options: Options) -> None:
        self._options, self._ranks = options, _Ranks(options)
        self._nodes = Nodes(Path(options.folder), options.job, options.run)
        # Waiting ranks that poll for a key, and loops that wait for a file, move a little: only work and news count.
        still = max(0.0, options.timeout - TICK)
        self._hang = HangWatch(self._ranks, options.timeout, still=still, effort=self._ranks.effort)
        self._told: tuple[Verdict, dict[int, Position]] | None = None  # of a hang, and where the ranks stood
        self._told_end = False

    def run(self) -> None:
        """Returns once nothing is left to watch."""
        started = time.monotonic()
        while True:
            self._ranks.find()
            unfinished = self._ranks.unfinished()
            self._look_at_ends(unfinished)
            self._look_at_waits(unfinished)
            all_came = len(self._ranks.members) >= self._ranks.local and self._ranks.members
            if not unfinished and (all_came or time.monotonic() - started > COMES_LATE):
                return
            if not self._nodes.has_told and self._ranks.elsewhere and self._nodes.others():
                self._nodes.tell(self._ranks.standings(), self._ranks.calls())
            time.sleep(TICK)

    def _look_at_waits(self, unfinished: list[int]) -> None:
        own = {rank: page.read() for rank, page in self._ranks.board.items()}
        if self._told is not None:
            # An error that ends a wait is no step forward, nor is what another thread than a rank's own goes on with.
            if any(now != self._told[1].get(rank) and now.state != FAILED for rank, now in own.items()):
                self._tell(self._told[0], GO_ON)
                self._nodes.forget()
                self._told = None
            return
        stuck = self._hang.look(unfinished) if unfinished else None
        if stuck is None:
            return
        waited = time.monotonic() - self._ranks.positions()[stuck].since / 1e9
        remarks = {rank: member.remark for rank, member in self._ranks.members.items() if member.remark}
        standings, calls = self._ranks.standings(), dict(self._ranks.calls())
        if self._ranks.elsewhere:
            self._nodes.tell(standings, calls)
            for rank, (standing, history) in self._nodes.wait(self._ranks.elsewhere).items():
                if rank < len(standings) and rank not in calls:
                    standings[rank], calls[rank] = standing, history
        found = verdict.of_hang(standings, calls, waited, remarks)
        if found is not None:
            self._tell(found)
            self._told = found, own
            if self._options.end:
                self._end(unfinished)

    def _look_at_ends(self, unfinished: list[int]) -> None:
        """Says, once, which rank's end made the others end."""
        endings = [member.ending for member in self._ranks.members.values() if member.ending is not None]
        failures = [ending for ending in endings if ending.kind != "done"]
        if self._told_end or not failures:
            return
        first = min(ending.time for ending in failures)
        if unfinished and time.monotonic_ns() - first < SETTLE * 1e9:
            return
        self._told_end = True
        if len(failures) == len(self._ranks.members) and all(each.kind == "died" for each in failures):
            return  # they were all ended from outside
        cause = faults.root_cause(failures)
        if cause.blames_a_peer:  # of one that went before, without an error
            cause = min(endings, key=lambda each: (each.blames_a_peer, each.time))
        how = self._ranks.members[cause.rank].said.get("ended", WORDLESS)
        if len(self._ranks.members) > 1 and not how.startswith("raised KeyboardInterrupt"):
            found = verdict.of_end(cause.rank, how, self._ranks.standings(), self._ranks.calls())
            if self._told is None:
                self._tell(found)
            else:  # what a hang ends in, such as the signals of a launcher, stands below it: it is not the cause
                self._tell(self._told[0], found.text.splitlines()[0])

    def _tell(self, found: Verdict, news: str | None = None) -> None:
        """Says what was found, or what has come of it, and keeps both in a file."""
        self._say(news or found.text)
        found = found._replace(text=f"{found.text}\n{news}") if news else found
        with contextlib.suppress(OSError, ValueError):  # the folder may be gone
            files.write_json(Path(self._options.folder) / HANG, found.as_json)

    def _say(self, text: str) -> None:
        with contextlib.suppress(OSError):  # nobody may be left who reads it
            print(f"zerolab why: {text}", file=sys.stderr, flush=True)

    def _end(self, ranks: list[int]) -> None:
        # What torchrun prints is the last that a person sees, and names whichever rank it misses first.
        self._say(
            "the ranks are ended, as --end asks; a launcher may call that SIGKILL the root cause, and it is not: "
            f"`{shlex.join(['zerolab', 'why', str(self._options.folder)])}` says again what is"
        )
        pids = [self._ranks.members[rank].pid for rank in ranks]
        below = [child for pid in pids for child in _below(pid) if child != os.getpid()]
        for pid in pids + below:  # a worker of a DataLoader that sleeps would not notice
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _spent(pid: int) -> Times:
    """What the main thread, autograd's and those of the processes below have spent."""
    processes = [pid, *(child for child in _below(pid) if child != os.getpid())]  # a rank has started this
    return hang.times(task for process in processes for task in hang.counted(process))


def _below(pid: int) -> list[int]:
    """The processes that a process has started, and what those have."""
    found = []
    for task in hang.threads(pid):
        with contextlib.suppress(OSError):
            found += [int(child) for child in (task / "children").read_text().split()]
    return found + [child for each in found for child in _below(each)]


def _place(filename: str, line: int) -> str:
    """A line in words; this process does not import from the script's folder."""
    words = stack.place(filename, line)
    return words.removeprefix(f"{Path(filename).parent}{os.sep}")


if __name__ == "__main__":
    Watch(Options(*json.loads(sys.argv[1]))).run()
