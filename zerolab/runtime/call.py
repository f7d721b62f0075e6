"""One call on the ranks, from the kernel's side: waits for results, shows prints, and finds out why if none come."""

import contextlib
import errno
import os
import pickle
import resource
import signal
import sys
import time
from collections.abc import Collection, Sequence

from zerolab.runtime import board, faults, stack
from zerolab.runtime.board import FAILED, ON_DEVICE, RESTING, Position
from zerolab.runtime.devices import Choice
from zerolab.runtime.drawing import Stop, WaitsFor
from zerolab.runtime.faults import STOPPED, Outcome, Standing
from zerolab.runtime.hang import HangWatch, is_stopped
from zerolab.runtime.interrupts import writing_to_a_rank
from zerolab.runtime.launch import START_LIMIT
from zerolab.runtime.mismatch import mismatches, waits_for
from zerolab.runtime.output import Output, show
from zerolab.runtime.ranks import CHUNK, Member, Ranks
from zerolab.runtime.waiting import SILENCE

TICK = 0.2  # seconds between looks at the clock while nothing arrives
SETTLE = 0.1  # seconds after a failure in which other ranks may still report theirs
SETTLE_FOR_CAUSE = 1.0  # the same, while every reported failure only says that a peer was lost
SETTLE_FOR_DEATH = 60.0  # the same, while such a peer has died and the fork server is too busy to say so
LOOK = 0.4  # seconds that a rank has to report where it is
DRAIN = 0.2  # seconds at most to collect prints, after the last result and between two calls


def start(choice: Choice) -> Ranks:
    """Start ranks and wait until they have joined their process group.

    RankError if one of them cannot, RuntimeError if this process may not open so many pipes.
    """
    try:
        ranks = Ranks(choice)
    except OSError as error:
        if error.errno != errno.EMFILE:
            raise
        raise RuntimeError(
            f"{choice.world_size} ranks need more files than the {resource.getrlimit(resource.RLIMIT_NOFILE)[0]} that "
            "this process may have open: ask for fewer ranks, or start Python where `ulimit -n` is higher"
        ) from None
    try:
        Call(ranks, range(choice.world_size), Output(), START_LIMIT).finish()
    except BaseException:
        ranks.kill()
        raise
    return ranks


def run(ranks: Ranks, message: bytes, chosen: Sequence[int], timeout: float) -> list[bytes]:
    """Have the chosen ranks do something; return each one's result, packed. RankError if one of them fails."""
    call = Call(ranks, chosen, Output(chosen), timeout)  # places that ranks note from now on belong to this call
    ranks.last_cell = call.cell
    for page in ranks.board:
        page.forget()
    for rank in chosen:
        with writing_to_a_rank():  # it has died, and `finish` finds out how
            ranks.members[rank].commands.send_bytes(message)
    return call.finish()


def show_late_output(ranks: Ranks) -> None:
    """Show what threads of the ranks have printed since the last call, and say where it comes from."""
    everyone, remark = range(len(ranks.members)), f"late from {ranks.last_cell}" if ranks.last_cell else "late"
    Call(ranks, everyone, Output(everyone, remark), START_LIMIT).show_output()


def death_at_rest(ranks: Ranks) -> faults.RankError:
    """The error for ranks of which at least one has died since the last call."""
    return Call(ranks, range(len(ranks.members)), Output(), START_LIMIT).death_at_rest()


class Call:
    """One call until every chosen rank has answered or one has failed."""

    def __init__(self, ranks: Ranks, chosen: Collection[int], output: Output, timeout: float) -> None:
        self._ranks, self._chosen, self._output, self._timeout = ranks, chosen, output, timeout
        self._started = time.monotonic_ns()
        _, filename, line = stack.locate(sys._getframe(1))
        self._called = f"called at {stack.place(filename, line)}" if filename else ""
        self.cell = stack.label(filename)  # or the file, outside notebooks
        self._watch = HangWatch(ranks, timeout)
        self._outcomes: dict[int, Outcome] = {}  # by rank; one that is missing is still running
        self._at_rest = "finished"
        self._told_of: set[int] = set()  # ranks that were said to be stopped

    def finish(self) -> list[bytes]:
        """What each chosen rank returned, packed. RankError if one failed, CollectiveHang if none makes progress."""
        try:
            stuck = None
            while self._unfinished() and stuck is None and time.monotonic() < self._settled():
                if not self._take(TICK):
                    self._ranks.ask(self._unfinished())  # if it is killed later, it cannot say where it was
                self._tell_of_stopped()
                stuck = self._watch.look(self._unfinished()) if self._settled() == float("inf") else None
            self._drain()
            if stuck is not None:
                raise self._hang(stuck)
            if self._failures():
                raise self._error()
            return [self._outcomes[rank].value for rank in self._chosen]
        except KeyboardInterrupt:
            with contextlib.suppress(Exception):  # a message may be half read
                show(f"stopped. The ranks at that moment:\n{faults.table(self.standings())}\n")
            raise faults.stopped() from None
        finally:
            self._output.finish()

    def show_output(self) -> None:
        """Show what the ranks have printed by now."""
        self._drain()
        self._output.finish()

    def death_at_rest(self) -> faults.RankError:
        """The error for ranks of which at least one has died since the last call."""
        self._started, self._at_rest, self._called = 0, "idle", ""
        for member in self._ranks.members:
            ending = self._ranks.ending(member.rank)
            kind, code, when = ("done", None, 0) if ending is None else ("died", *ending)
            self._outcomes[member.rank] = Outcome(member.rank, kind, code, when)
        return self._error()

    def standings(self) -> list[Standing]:
        """Where every rank stands; those still running are asked."""
        self._ranks.ask(self._unfinished())
        # With a limit: a rank in native code that holds the GIL cannot answer.
        deadline = time.monotonic() + LOOK
        while time.monotonic() < deadline and any(self._ranks.members[rank].asked for rank in self._unfinished()):
            self._take(0.05)
        positions = board.positions(dict(enumerate(self._ranks.board)), self._unfinished())
        return [self._standing(member, positions[member.rank]) for member in self._ranks.members]

    def _standing(self, member: Member, position: Position) -> Standing:
        rank, page = member.rank, self._ranks.board[member.rank]
        outcome = self._outcomes.get(rank)
        if rank not in self._chosen:
            return Standing(rank, faults.ABSENT, position)
        if outcome is not None and outcome.kind == "done":
            return Standing(rank, self._at_rest, position)
        phase, where = self._last_place(member)
        if outcome is None:
            return Standing(rank, STOPPED if is_stopped(member.pid) else "running", position, phase, where)
        if outcome.kind == "died":
            state, where = faults.ending_words(outcome.value), faults.line_of_crash(member.crash_text()) or where
            return Standing(rank, state, position, phase, where, page.read_stage())
        told, position = outcome.value, page.read_host()  # the host's: it has raised, whatever its device does
        state = "lost a peer" if outcome.blames_a_peer else f"raised {told['exception']}"
        if told["where"]:  # what the error passed through, and not the last collective's place
            phase, where = told["phase"], told["where"]
        return Standing(rank, state, position, phase, where, told["stage"])

    def _last_place(self, member: Member) -> tuple[str, str]:
        """The last known phase and line of a rank: it notes them at each collective, and reports them when asked."""
        page, seen = self._ranks.board[member.rank], member.seen
        noted = page.read_place()
        # If the device waits, the line of that collective is what matters: the host may be anywhere by now.
        waits_on_device = page.read().state == ON_DEVICE
        if not waits_on_device and seen is not None and seen[3] and seen[0] > max(noted.time, self._started):
            return seen[2:]
        if noted.time > self._started and noted.filename:
            return noted.phase, stack.place(noted.filename, noted.line)
        return "", self._called

    def _calls(self) -> dict[int, list[Position]]:
        return {rank: self._ranks.board[rank].history() for rank in self._chosen}

    def _hang(self, stuck: int) -> faults.CollectiveHang:
        standings, calls = self.standings(), self._calls()
        edges = waits_for(standings, calls)
        stops = {rank: Stop(standings[rank].doing, edges.get(rank, ())) for rank in self._chosen}
        found = mismatches(standings, calls)
        return faults.collective_hang(
            stuck, self._ranks.members[stuck].pid, self._timeout, standings, mismatches=found, drawing=WaitsFor(stops)
        )

    def _error(self) -> faults.RankError:
        cause = faults.root_cause(self._failures())
        standings = self.standings()
        member, position = self._ranks.members[cause.rank], standings[cause.rank].position
        aborted = cause.kind == "died" and cause.value == -signal.SIGABRT
        native = faults.why_aborted(member.said) if aborted else ""
        # An error inside a collective, such as gloo's about a wrong size, may come from ranks that disagree.
        disagreed = position.state == FAILED if cause.kind == "raised" else native and position.number is not None
        found = mismatches(standings, self._calls()) if disagreed else []
        return faults.rank_error(cause, member.pid, member.crash_text(), standings, mismatches=found, native=native)

    def _unfinished(self) -> list[int]:
        return [rank for rank in self._chosen if rank not in self._outcomes]

    def _failures(self) -> list[Outcome]:
        return [outcome for outcome in self._outcomes.values() if outcome.kind != "done"]

    def _settled(self) -> float:
        """When to stop waiting for further failures; infinity while there is none."""
        failures = self._failures()
        if not failures:
            return float("inf")
        # Peers notice a lost connection before the rank that caused it has formatted its traceback.
        only_consequences = all(outcome.blames_a_peer for outcome in failures)
        first = min(outcome.time for outcome in failures) / 1e9
        if only_consequences and any(self._ranks.owes_ending(rank) for rank in self._unfinished()):
            return first + SETTLE_FOR_DEATH
        return first + (SETTLE_FOR_CAUSE if only_consequences else SETTLE)

    def _tell_of_stopped(self) -> None:
        """Say once of a rank that a signal has stopped it, while no other waits in a collective: no hang ends that.

        It is no error, since somebody may be looking at the rank in a debugger.
        """
        running, before = self._unfinished(), time.monotonic() - SILENCE
        silent = [member for member in self._ranks.members if 0 < member.asked < before and member.rank in running]
        if not silent or any(self._ranks.board[rank].read().waits for rank in running):
            return
        for member in silent:
            if member.rank not in self._told_of and is_stopped(member.pid):
                self._told_of.add(member.rank)
                what = f"rank {member.rank} (pid {member.pid}) is stopped, by a debugger or by a signal such as SIGSTOP"
                show(f"{what}, and waited for; after a signal `kill -CONT {member.pid}` lets it go on\n")

    def _drain(self) -> None:
        """Take in what has been printed so far; with a limit, since a thread may never stop printing."""
        deadline = time.monotonic() + DRAIN
        while self._take(0) and time.monotonic() < deadline:
            pass

    def _take(self, limit: float) -> bool:
        """Take in what has arrived, waiting up to `limit` seconds for something; False if nothing came."""
        arrived = self._ranks.wait(limit)
        self._output.tick()
        for pipe, member in arrived:
            try:
                getattr(self, f"_take_{pipe}")(member)
            except (EOFError, OSError):
                self._ranks.forget(pipe, member)
        for rank in self._unfinished():
            ending = self._ranks.ending(rank)
            if ending is not None:
                self._take_last_answer(self._ranks.members[rank])
                self._outcomes.setdefault(rank, Outcome(rank, "died", *ending))
        return bool(arrived)

    def _take_commands(self, member: Member) -> None:
        kind, value = pickle.loads(member.commands.recv_bytes())
        # Noted here and not by the rank, which may be stopped or killed before it gets to its next line.
        self._ranks.board[member.rank].write_stage(RESTING)
        when = value["time"] if kind == "raised" else time.monotonic_ns()
        self._outcomes[member.rank] = Outcome(member.rank, kind, value, when)

    def _take_last_answer(self, member: Member) -> None:
        with contextlib.suppress(EOFError, OSError):  # there is none
            if member.commands.poll(0):
                self._take_commands(member)

    def _take_lifeline(self, member: Member) -> None:
        member.seen = pickle.loads(member.lifeline.recv_bytes())
        member.asked = 0.0

    def _take_output(self, member: Member) -> None:
        data = os.read(member.output.fileno(), CHUNK)
        if not data:
            raise EOFError
        member.said = (member.said + data)[-faults.LAST_WORDS :]
        self._output.feed(member.rank, data)
