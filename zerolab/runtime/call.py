"""One call on the ranks, from the kernel's side: waits for results, shows prints, and finds out why if none come."""

import contextlib
import os
import pickle
import time
from collections.abc import Collection
from typing import TYPE_CHECKING

from zerolab.runtime import faults
from zerolab.runtime.faults import Outcome, Standing
from zerolab.runtime.hang import HangWatch
from zerolab.runtime.output import Output

if TYPE_CHECKING:
    from zerolab.runtime.ranks import Member, Ranks

TICK = 0.2  # seconds between looks at the clock while nothing arrives
SETTLE = 0.25  # seconds after a failure in which other ranks may still tell theirs
SETTLE_FOR_CAUSE = 1.0  # the same while all that is known is that somebody lost a peer
LOOK = 0.4  # seconds that a rank has to say where it stands
DRAIN = 0.2  # seconds at most in which prints are collected after the last result
CHUNK = 1 << 16


class Call:
    """What the chosen ranks come to. They have been told already what to do."""

    def __init__(self, ranks: "Ranks", chosen: Collection[int], output: Output, timeout: float) -> None:
        self._ranks, self._chosen, self._output, self._timeout = ranks, chosen, output, timeout
        self._watch = HangWatch(ranks, timeout)
        self._outcomes: dict[int, Outcome] = {}

    def finish(self) -> list[bytes]:
        """What each chosen rank returned, packed. RankError if one failed, CollectiveHang if none gets any further."""
        try:
            stuck = None
            while self._unfinished() and stuck is None and time.monotonic() < self._settled():
                self._take(TICK)
                stuck = self._watch.look(self._unfinished()) if self._settled() == float("inf") else None
            self._drain()
            if stuck is not None:
                raise faults.collective_hang(stuck, self._pid(stuck), self._timeout, self.standings())
            if self._failures():
                raise self._error()
            return [self._outcomes[rank].value for rank in self._chosen]
        except KeyboardInterrupt:
            with contextlib.suppress(Exception):  # whatever was half read does not matter any more
                print(f"stopped. The ranks at that moment:\n{faults.table(self.standings())}")
            raise faults.stopped() from None
        finally:
            self._output.finish()

    def standings(self) -> list[Standing]:
        """Where every rank stands; those that still run are asked."""
        self._ranks.ask(self._unfinished())
        deadline = time.monotonic() + LOOK
        while time.monotonic() < deadline and any(self._ranks.members[rank].asked for rank in self._unfinished()):
            self._take(0.05)
        return [self._standing(member) for member in self._ranks.members]

    def _standing(self, member: "Member") -> Standing:
        position = self._ranks.board.read(member.rank)
        if member.rank not in self._chosen:
            return Standing(member.rank, "not taking part", position)
        outcome = self._outcomes.get(member.rank)
        if outcome is None:
            _, phase, where = member.seen or (0, "", "")
            return Standing(member.rank, "running", position, phase, where)
        if outcome.kind == "raised":
            state = "lost a peer" if outcome.blames_a_peer else f"raised {outcome.value['exception']}"
            return Standing(member.rank, state, position, outcome.value["phase"], outcome.value["where"])
        return Standing(member.rank, "finished" if outcome.kind == "done" else "dead", position)

    def _error(self) -> faults.RankError:
        cause = faults.root_cause(self._failures())
        try:
            crash = os.read(self._ranks.members[cause.rank].crash, CHUNK).decode(errors="replace")
        except BlockingIOError:
            crash = ""  # it ended without a word
        error = faults.rank_error(cause, self._pid(cause.rank), crash, self.standings())
        error.outcomes = list(self._outcomes.values())
        return error

    def _pid(self, rank: int) -> int:
        return self._ranks.members[rank].pid

    def _unfinished(self) -> list[int]:
        return [rank for rank in self._chosen if rank not in self._outcomes]

    def _failures(self) -> list[Outcome]:
        return [outcome for outcome in self._outcomes.values() if outcome.kind != "done"]

    def _settled(self) -> float:
        """When to stop waiting for further failures: never while there is none."""
        failures = self._failures()
        if not failures:
            return float("inf")
        only_consequences = all(outcome.blames_a_peer for outcome in failures)
        first = min(outcome.time for outcome in failures) / 1e9
        return first + (SETTLE_FOR_CAUSE if only_consequences else SETTLE)

    def _drain(self) -> None:
        """Take what was printed before the last result; not for ever, a rank may go on printing."""
        deadline = time.monotonic() + DRAIN
        while self._take(0) and time.monotonic() < deadline:
            pass

    def _take(self, limit: float) -> bool:
        """Take in what has arrived, waiting up to `limit` seconds for something; False if nothing came."""
        arrived = self._ranks.wait(limit)
        for pipe, member in arrived:
            try:
                getattr(self, f"_take_{pipe}")(member)
            except (EOFError, OSError):
                self._ranks.forget(pipe, member)
        for rank in self._unfinished():
            ending = self._ranks.ending(rank)
            if ending is not None:
                self._take_last_words(self._ranks.members[rank])
                self._outcomes.setdefault(rank, Outcome(rank, "died", *ending))
        return bool(arrived)

    def _take_commands(self, member: "Member") -> None:
        kind, value = pickle.loads(member.commands.recv_bytes())
        if kind == "raised":
            value = pickle.loads(value)
        when = value["time"] if kind == "raised" else time.monotonic_ns()
        self._outcomes[member.rank] = Outcome(member.rank, kind, value, when)

    def _take_last_words(self, member: "Member") -> None:
        try:
            if member.commands.poll(0):
                self._take_commands(member)
        except (EOFError, OSError):
            pass  # it said nothing

    def _take_lifeline(self, member: "Member") -> None:
        member.seen = pickle.loads(member.lifeline.recv_bytes())
        member.asked = False

    def _take_output(self, member: "Member") -> None:
        data = os.read(member.output, CHUNK)
        if not data:
            raise EOFError
        self._output.feed(member.rank, data)
