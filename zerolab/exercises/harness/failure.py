"""A rank that failed while it ran an answer, in a learner's words."""

import re
from dataclasses import replace
from textwrap import indent

from zerolab.exercises.harness.limit import MOST_BYTES
from zerolab.lessons.errors import without_volatile
from zerolab.runtime.faults import CollectiveHang, RankError, whereabouts

# Lines of the harness mean nothing to a learner.
_IN_HARNESS = re.compile(r"zerolab/exercises/harness/\w+\.py, line \d+: (.*)")
# What torch 2.13 says, deep inside `fully_shard`, of a parameter that is in a unit already.
_SHARDED_TWICE = "Invariant encountered: value was None when it should not be"


def in_words(error: RankError, name: str) -> str:
    """What happened and what to look at. `name` is the function that the learner wrote."""
    if isinstance(error, CollectiveHang):
        standings = [replace(standing, where=_seen_from(name, standing.where)) for standing in error.standings]
        mismatches = [_seen_from(name, sentence) for sentence in error.mismatches]
        what = without_volatile(f"{error.what}\n\n{whereabouts(mismatches, standings)}")
        return (
            f"`{name}` hangs. {what}\n\nEvery rank must call the same collectives in the same order, and wait for each."
        )
    if unlimited := _out_of_time(error, name) or _out_of_memory(error, name):
        return unlimited
    if error.exception in ("NotAllowedHere", "UsedAfterRelease", "UsedBeforeWait", "WrongResult"):
        said = without_volatile(error.said)
        return said if error.exception == "NotAllowedHere" else f"rank {error.rank}: {said}"
    # Which of them, is up to what lay there. An abort by gloo itself is another matter: sizes that differ.
    if error.signal in ("SIGSEGV", "SIGABRT", "SIGBUS") and not error.native.startswith("gloo"):
        return (
            f"rank {error.rank} was killed by {error.signal} while `{name}` ran: it touched memory that had been given "
            "back (used after release). Was a tensor freed or resized before `wait()`? Call `wait()` on every exchange "
            "before its result is used. Or is your part a view of what was released, and not a copy of it?"
        )
    parts = [f"`{name}` failed: {without_volatile(error.what)}"]
    if error.said.endswith("out of bounds for storage of size 0"):  # torch, of a view of what was released
        what = "memory was read or written that had been given back"
        parts = [f"rank {error.rank}: used after release: {what}. Call `unit.allocate()` before anything is written:"]
    if error.said == _SHARDED_TWICE and "fully_shard" in error.frames:
        what = "`fully_shard` met a parameter that is in a unit already"
        parts = [f"rank {error.rank}: {what}. Call it on the inner modules first, and on the model last:"]
    if error.native:
        parts += [*error.mismatches, f"  at {_seen_from(name, error.where)}"]
    return "\n".join([*parts, indent(error.frames, "  ")]).rstrip()


def _out_of_time(error: RankError, name: str) -> str:
    """Where an answer was ended by `limit.at_most`; empty if it was not."""
    # The other ranks then wait in a collective, but they are not the cause.
    if error.exception == "OutOfTime":
        return (
            f"{too_long(name, f'{error.said} on rank {error.rank}')} It was stopped here:\n{indent(error.frames, '  ')}"
        )
    if error.traceback.startswith("Timeout ("):  # amid a call into C
        said = f"time on rank {error.rank}, and could not be interrupted"
        return f"{too_long(name, said)} It was ended here:\n{indent(_main_thread(error.traceback), '  ')}"
    if error.signal == "SIGALRM":  # the second alarm
        return (
            f"`{name}` did not finish in time on rank {error.rank}, and went on when it was stopped, so the rank was "
            "ended. Does a loop never end, and catch every exception? `except ValueError:` catches what is meant, "
            "`except:` catches everything."
        )
    return ""


def _out_of_memory(error: RankError, name: str) -> str:
    """Where an answer asked for more memory than it gets; empty if it did not."""
    # Of Python, NumPy and torch; not torch's OutOfMemoryError, which is a device's.
    raised = (error.exception or "").rpartition(".")[2]
    if not (raised in ("MemoryError", "_ArrayMemoryError") or "can't allocate memory" in error.said):
        return ""
    return (
        f"`{name}` asked for more memory on rank {error.rank} than there is for an answer, {MOST_BYTES / 1e9:g} GB; a "
        f"right one takes far less. It was stopped here:\n{indent(error.frames, '  ')}"
    )


def _main_thread(dump: str) -> str:
    """The frames of the answer, and of what it called, in what faulthandler wrote; the innermost last, as elsewhere."""
    _, _, last = dump.rpartition("(most recent call first):\n")  # faulthandler begins with the youngest thread
    frames = [frame for frame in re.split(r"\n(?=  File )", last) if not frame.startswith('  File "zerolab/')]
    return "\n".join(reversed(frames))


def too_long(name: str, seconds: str) -> str:
    """The sentence for an answer that was ended: `seconds` says after how many, and where."""
    return f"`{name}` did not finish in {seconds}. Does a loop never end?"


def _seen_from(name: str, place: str) -> str:
    """A place in words, lines of the harness as the answer sees them: once it has returned there is a barrier."""

    def instead(found: re.Match[str]) -> str:
        return f"`{name}` has returned" if found[1].startswith("dist.barrier()") else f"inside `{name}`"

    return _IN_HARNESS.sub(instead, place)
