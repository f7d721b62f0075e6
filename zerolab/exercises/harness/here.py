"""A plain function is checked in this process: where no other can be started, and nothing but text comes, as on a page.

What is judged, and in which words, is what `check` does; whoever calls this ends an answer that never ends.
"""

import io
import linecache
import math
import random
import traceback
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from zerolab.exercises.harness.checking import refuse
from zerolab.exercises.harness.exercise import Exercise, load
from zerolab.exercises.harness.failure import in_words
from zerolab.exercises.harness.hole import hole
from zerolab.exercises.harness.targets import report
from zerolab.runtime import report as errors
from zerolab.runtime.faults import RankError
from zerolab.tables import Table

FILE = "your answer"  # what a traceback calls the text
LONGEST = 4_000  # characters of what an answer prints


@dataclass(slots=True)
class Checked:
    """What came of a text.

    Attributes:
        ran: whether the answer was called.
        passed: whether it is right.
        said: the verdict in lines, or why nothing ran.
        printed: what the answer printed.
        table: what it gave, a row for each call; None if it did not return.
    """

    ran: bool = False
    passed: bool = False
    said: list[str] = field(default_factory=list)
    printed: str = ""
    table: Table | None = None


def checked(exercise_id: str, text: str, seed: int | None = None) -> Checked:
    """Runs the definition in `text` and checks it. Raises ValueError for an exercise that needs ranks, or is none."""
    exercise = load(exercise_id)
    if exercise.targets.on_ranks:
        raise ValueError(f"{exercise_id} runs on ranks: open its lesson with `zerolab lab`")
    printed = io.StringIO()
    with redirect_stdout(printed), redirect_stderr(printed):
        found = _checked(exercise, text, random.SystemRandom().randrange(2**31) if seed is None else seed)
    found.printed = printed.getvalue()[:LONGEST]
    return found


def _checked(exercise: Exercise, text: str, seed: int) -> Checked:
    answer, trouble = _defined(exercise, text)
    refusal = trouble or refuse(exercise, answer)
    if refusal:
        return Checked(said=[refusal])
    (run,) = exercise.targets.runs(exercise, 1, seed, math.inf)
    try:
        gave: Any = SimpleNamespace(results=[run.trial(answer, *run.arguments)])  # stands in for a recording
    except (Exception, SystemExit) as error:  # noqa: BLE001  an answer may raise anything
        return Checked(ran=True, said=[_failed(exercise.name, error)])
    verdicts = list(run.verdicts(gave, None))
    return Checked(True, verdicts[-1].right, report(verdicts), table=run.picture(gave))


def _defined(exercise: Exercise, text: str) -> tuple[Callable[..., Any], str]:
    """The function that a text defines, and why there is none, in a sentence."""
    linecache.cache[FILE] = (len(text), None, text.splitlines(keepends=True), FILE)  # tracebacks show its lines
    namespace: dict[str, Any] = {"__name__": "__main__", "hole": hole}
    nothing: Callable[..., Any] = hole
    try:
        exec(compile(text, FILE, "exec"), namespace)  # noqa: S102  the learner's own text, as a cell would run it
    except SyntaxError as error:
        said = "".join(traceback.format_exception_only(error)).rstrip()
        return nothing, f"Python cannot read your answer:\n{said}"
    except (Exception, SystemExit) as error:  # noqa: BLE001
        return nothing, _failed(exercise.name, error)
    if exercise.name not in namespace:
        return nothing, f"Your answer does not define `{exercise.name}`: keep the line that begins with `def`."
    return namespace[exercise.name], ""


def _failed(name: str, error: BaseException) -> str:
    """An exception of the answer in the words of `check`."""
    facts = errors.of(error, 0)
    said = f"{facts['exception']}: {facts['message']}".removesuffix(": ")
    known = {"exception": facts["exception"], "said": facts["message"], "frames": facts["frames"]}
    return in_words(RankError(said, what=said, **known), name)
