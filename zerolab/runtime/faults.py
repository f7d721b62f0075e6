"""What went wrong on the ranks, in words: which rank, why, where, and what the others were doing."""

import linecache
import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from zerolab.runtime.board import DONE, IN_FLIGHT, INSIDE, ON_DEVICE, PACKING, RESTING, RUNNING, STAGES, Position
from zerolab.runtime.drawing import WaitsFor
from zerolab.runtime.handover import OWN_END
from zerolab.runtime.screen import printable
from zerolab.runtime.stack import is_a_lesson, is_runtime, label, place

# As faulthandler writes it: without the source line, and without a comma before "in".
_CRASH_FRAME = re.compile(r'File "(.+)", line (\d+) in (.+)')
_NO_ASCII = re.compile(r"\\(?:x[0-9a-f]{2}|u[0-9a-f]{4}|U[0-9a-f]{8})")  # and as it writes letters of other scripts
ABSENT = "not taking part"
"""The state of a rank that is not part of the call."""
CRASH_FRAMES = 40  # shown at most of the stack of a rank that died
STOPPED = "stopped"  # by a signal such as SIGSTOP
LAST_WORDS = 4_096  # bytes of a rank's last output that are searched for an exception of C++'s
_LONGEST = 300  # characters of it that are shown
# As libstdc++ writes it, and as libc++ does.
_UNCAUGHT = re.compile(
    r"terminate called after throwing an instance of '(?P<type>[^'\n]+)'\s+what\(\):\s+(?P<what>[^\n]+)"
    r"|terminating (?:due to|with) uncaught exception of type (?P<kind>[\w:]+): (?P<why>[^\n]+)"
)
_SIZES = re.compile(r"op\.preamble\.length <= op\.nbytes\. (\d+) vs (\d+)")
_CLOSED = re.compile(r"tcp/loop\.cc:\d+\] .*(Bad file descriptor|nfds != -1)")
LOST_STATE = "The next run starts fresh ranks; what these held in memory is lost."


class RankError(RuntimeError):
    """A rank raised or died. The message names the root cause first, then what the other ranks were doing.

    Attributes:
        rank: the rank at fault; None if no single one is.
        pid: its process number.
        exception: name of the exception it raised, such as `ValueError`; None if it died.
        signal: name of the signal that killed it, such as `SIGSEGV`, or `signal 40`; None if none did.
        exitcode: what it passed to `os._exit`; None if it did not end that way.
        phase: `forward`, `backward` or `step` within a training step, else `running`; before and after the function:
            `joining`, `unpickling`, `pickling` (the result), `idle`.
        collective: its last collective, such as `all_gather #3`; empty if it called none in that run.
        where: its line, such as `cell [3], line 5: loss.backward()`; empty if unknown.
        traceback: the rank's own traceback, with cells named as `cell [3]`; empty if it died without one.
        frames: the frames of the traceback that are the learner's, or that their code called.
        native: what native code said as it aborted the rank, such as gloo about sizes that differ; else empty.
        mismatches: what the ranks disagree on, one sentence each; empty if they made the same calls, or if unknown.
        what: what happened, the first sentence of the message.
        said: the message of the rank's exception.
        standings: where every rank stood, one `Standing` each.
        recording: after `record`, what the surviving ranks had recorded by then; else None.
    """

    rank: int | None = None
    pid: int | None = None
    exception: str | None = None
    signal: str | None = None
    exitcode: int | None = None
    phase = collective = where = traceback = frames = native = what = said = ""
    mismatches: Sequence[str] = ()
    standings: "Sequence[Standing]" = ()
    recording: Any = None

    def __init__(self, message: str, **facts: Any) -> None:
        super().__init__(message)
        self.__dict__.update(facts)

    def _render_traceback_(self) -> list[str]:
        """For IPython: only the message, which includes the rank's traceback; the kernel's traceback would not help."""
        return f"{type(self).__name__}: {self}".splitlines()


class CollectiveHang(RankError):
    """A rank has waited in a collective for longer than the cluster's `timeout`, and no other rank moves.

    Attributes:
        drawing: who waits for whom; a notebook shows it as a picture.
    """

    drawing: WaitsFor | None = None
    _is_drawn = False

    def _render_traceback_(self) -> list[str]:
        """For IPython: the picture before the message, as a display of its own."""
        if self.drawing is not None and not self._is_drawn:  # IPython asks twice for one error
            from IPython.display import display

            self._is_drawn = True
            display(self.drawing)
        return super()._render_traceback_()


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a call on one rank: `done` with a result, `raised` with a report, or `died` with an exit code."""

    rank: int
    kind: str
    value: Any
    time: int  # nanoseconds on the clock that all processes share

    @property
    def blames_a_peer(self) -> bool:
        """Whether the rank only noticed that another was gone."""
        return self.kind == "raised" and bool(self.value["peer"])


@dataclass(frozen=True, slots=True)
class Standing:
    """Where one rank stands: its phase, its last collective, the line of source; empty strings where unknown."""

    rank: int
    state: str  # running, stopped, finished, idle, not taking part, or how it failed
    position: Position
    phase: str = ""
    where: str = ""
    stage: int = RUNNING

    @property
    def waits(self) -> bool:
        """Whether it is in a call that cannot end without other ranks."""
        return self.state == "running" and self.position.waits

    @property
    def doing(self) -> str:
        """What it is doing, in words, for example `waiting in all_reduce #3`."""
        label, state = self.position.label, self.position.state
        if not label:
            return f"{self.state}, no collective yet"
        if state in (INSIDE, ON_DEVICE) and self.state == "running":  # a rank that died in it no longer waits
            return f"waiting in {label}"
        if state == IN_FLIGHT:
            return f"{self.state}, {label} under way"
        return f"{self.state}, {'after' if state == DONE else 'in'} {label}"

    @property
    def moment(self) -> str:
        """When and where in words: `while the function ran, in backward, after all_reduce #3, at cell [3], line 5`."""
        label, state = self.position.label, self.position.state
        parts = [STAGES[self.stage][1]]
        if self.phase:
            parts.append(f"in {self.phase}")
        if self.stage in (RUNNING, PACKING, RESTING):
            where = {DONE: f"after {label}", IN_FLIGHT: f"with {label} under way"}
            parts.append(where.get(state, f"inside {label}") if label else "before its first collective")
        if self.where:
            parts.append(self.where if self.where.startswith("called") else f"at {self.where}")
        return ", ".join(parts)


def root_cause(outcomes: Sequence[Outcome]) -> Outcome:
    """The failure that explains the others: the earliest that does not itself blame a peer."""
    failures = [outcome for outcome in outcomes if outcome.kind != "done"]
    # All processes of one machine share this clock. A failure that blames a peer comes last, whenever it happened.
    return min(failures, key=lambda outcome: (outcome.blames_a_peer, outcome.time))


def rank_error(
    cause: Outcome,
    pid: int,
    crash: str,
    standings: Sequence[Standing],
    *,
    mismatches: Sequence[str] = (),
    native: str = "",
) -> RankError:
    """The error for the rank at fault, which raised or died; `crash` is the Python stack it wrote as it died.

    `mismatches` and `native` are as in RankError.
    """
    standing = standings[cause.rank]
    facts = _facts(standing, pid, mismatches, standings) | {"native": native}
    if cause.kind == "raised":
        facts |= {key: cause.value[key] for key in ("exception", "traceback", "frames")}
        facts["said"] = message = cause.value["message"]
        what = f"raised {facts['exception']}" + (f": {message}" if message else "")
    else:
        code, (reason, crash) = cause.value, _own_reason(crash)
        facts |= {"exitcode": code} if code is None or code >= 0 else {"signal": _signal(-code)}
        facts["traceback"] = _readable(crash)
        what = reason or _death(code, native, standing.stage)
    facts["what"] = f"rank {cause.rank} (pid {pid}) {what}"
    trace = f"On rank {cause.rank}:\n{_indented(facts['traceback'])}" if facts["traceback"] else ""
    others = f"The ranks at that moment:\n{_indented(table(standings))}"
    # In reading order: who, when and where, what they disagree on, the traceback, everybody else.
    message = _paragraphs(
        facts["what"], f"That was {standing.moment}", "\n".join(mismatches), trace, others, LOST_STATE
    )
    return RankError(message, **facts)


def collective_hang(
    waiting: int,
    pid: int,
    seconds: float,
    standings: Sequence[Standing],
    *,
    mismatches: Sequence[str],
    drawing: WaitsFor,
) -> CollectiveHang:
    """The error for ranks that wait for each other."""
    facts = _facts(standings[waiting], pid, mismatches, standings)
    halted = [f"rank {each.rank} is stopped" for each in standings if each.state == STOPPED]
    why = f"{', '.join(halted)}, by a signal such as SIGSTOP" if halted else _why_nobody_moves(standings)
    label = facts["collective"]
    facts["what"] = f"rank {waiting} has waited in {label} for {seconds:.0f} s, and no other rank moves: {why}."
    rule = "" if halted else "Every rank must call the same collectives in the same order. "
    message = _paragraphs(facts["what"], whereabouts(mismatches, standings), rule + LOST_STATE)
    return CollectiveHang(message, drawing=drawing, **facts)


def _why_nobody_moves(standings: Sequence[Standing]) -> str:
    idle = [each for each in standings if each.state == "running" and not each.waits]
    if not idle:
        return "they wait for each other"
    if len(idle) > 1:
        numbers = ", ".join(str(each.rank) for each in idle)
        return f"ranks {numbers} wait for no other rank, and use hardly any CPU"
    where = idle[0].where
    at = f", {where}" if where.startswith("called") else f", at {where}" if where else ""
    return f"rank {idle[0].rank} waits for no other rank, and uses hardly any CPU{at}"


def _facts(standing: Standing, pid: int, mismatches: Sequence[str], standings: Sequence[Standing]) -> dict[str, Any]:
    """What both kinds of error carry about the rank at fault, and about all of them."""
    phase = standing.phase or STAGES[standing.stage][0]
    facts = {"rank": standing.rank, "pid": pid, "phase": phase, "where": standing.where}
    label = standing.position.label
    return facts | {"collective": label, "mismatches": list(mismatches), "standings": list(standings)}


def whereabouts(mismatches: Sequence[str], standings: Sequence[Standing]) -> str:
    """What the ranks disagree on, if that is known, and a table of where they stand."""
    return _paragraphs("\n".join(mismatches), _indented(table(standings)))


def _paragraphs(*texts: str) -> str:
    return "\n\n".join(filter(None, texts))


def stopped() -> KeyboardInterrupt:
    """The error for Stop. IPython shows one line of it: where the kernel waited does not matter."""
    text = "stopped; the next run starts fresh ranks, what these held in memory is lost"
    error = KeyboardInterrupt(text)
    # On the instance: front ends know this class by its name, and a subclass would have another.
    error._render_traceback_ = lambda: [f"KeyboardInterrupt: {text}"]  # type: ignore[attr-defined]
    return error


def table(standings: Sequence[Standing]) -> str:
    """Rank, phase, last collective and its number, source line; one row per rank, aligned."""
    rows = [("rank", "phase", "last collective", "at")]
    rows += [(str(each.rank), each.phase or "-", each.doing, each.where or "-") for each in standings]
    # The last column is not padded, because trailing blanks would be stored in notebooks.
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    return "\n".join(
        "  ".join([*(cell.ljust(w) for cell, w in zip(row, widths, strict=False)), row[3]]) for row in rows
    )


def ending_words(code: int | None) -> str:
    """How a process ended, in the few words that a table has room for."""
    if code is None:
        return "gone"
    return f"killed by {_signal(-code)}" if code < 0 else f"ended with exit code {code}"


def _signal(number: int) -> str:
    """A signal's name, such as `SIGSEGV`; those of real time have only numbers."""
    return signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"


def line_of_crash(crash: str) -> str:
    """The innermost line of a lesson in a stack that a rank wrote as it died; empty if there is none."""
    frames = map(_crash_frame, crash.splitlines())
    return next((place(each[1], int(each[2])) for each in frames if each is not None and is_a_lesson(each[1])), "")


def _crash_frame(line: str) -> re.Match[str] | None:
    """File, line and function that a line of such a stack names."""
    return _CRASH_FRAME.fullmatch(_NO_ASCII.sub(lambda found: chr(int(found[0].lstrip("\\xuU"), 16)), line.strip()))


def why_aborted(output: bytes) -> str:
    """The uncaught C++ exception in the last bytes that a rank wrote, above all one of gloo's; empty if there is none.

    gloo notices in its own thread that a peer sends more than expected; nobody can catch an exception there.
    """
    found = list(_UNCAUGHT.finditer(output.decode(errors="replace")))
    if not found:
        return ""
    kind, what = found[-1]["type"] or found[-1]["kind"], found[-1]["what"] or found[-1]["why"]
    sizes = _SIZES.search(what)
    if sizes is not None:
        sent, expected = (int(size) for size in sizes.groups())
        return (
            f"gloo received {sent:,} bytes where it expected {expected:,}, so the ranks passed tensors of different "
            "sizes. Give the same shape on all ranks, and give recv a tensor of the shape that is sent"
        )
    if _CLOSED.search(what):
        return (
            "descriptors over which the ranks talk were closed, as os.closerange(3, ...) does: close only what your "
            "own code has opened"
        )
    return printable(f"{kind}: {what}")[:_LONGEST]


def _own_reason(crash: str) -> tuple[str, str]:
    """Why a rank ended itself, in its own words (empty if it did not), and the rest of what it wrote as it ended."""
    said = [line for line in crash.splitlines() if line.startswith(OWN_END)]
    return "; ".join(said), "\n".join(line for line in crash.splitlines() if line not in said)


def _death(code: int | None, native: str, stage: int) -> str:
    words = ending_words(code)
    if code is None:
        return f"is {words}, and its exit code unknown: the process that started it has ended, too"
    if code >= 0:
        return words + (" in the middle of the run" if stage != RESTING else "")
    # The system's out-of-memory killer sends the same signal as a person.
    why = "by a person, or by the system because memory ran out" if code == -signal.SIGKILL else native
    return f"was {words}" + (f": {why}" if why else "")


def _readable(crash: str) -> str:
    """What faulthandler wrote, with labels for files and with lines of source, but without the runtime's frames."""
    lines, frames = [], 0
    # Python appends a screenful of extension modules' names.
    for line in crash.partition("\nExtension modules")[0].splitlines():
        found = _crash_frame(line)
        if found is None:
            lines.append(line)
        elif not is_runtime(found[1]):
            frames += 1
            if frames > CRASH_FRAMES:  # infinite recursion: the innermost frames suffice
                lines.append("  ... and so on")
                break
            text = linecache.getline(found[1], int(found[2])).strip()
            lines.append(f'  File "{label(found[1])}", line {found[2]}, in {found[3]}')
            lines += [f"    {text}"] if text else []
    return "\n".join(lines).rstrip()


def _indented(text: str) -> str:
    return "\n".join(f"  {line}".rstrip() for line in text.splitlines())
