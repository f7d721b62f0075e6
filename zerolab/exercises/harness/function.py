"""Exercises whose answer is a plain function: judged by what it gives for inputs that are drawn."""

import copy
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, Any, ClassVar

from zerolab.exercises.harness.guard import finished_answers_out_of_reach
from zerolab.exercises.harness.limit import at_most
from zerolab.exercises.harness.plain import describe, first_difference, in_common, listed, plain, same
from zerolab.exercises.harness.targets import Judgement, Run, Targets
from zerolab.tables import Table

if TYPE_CHECKING:
    from zerolab.exercises.harness.exercise import Exercise
    from zerolab.recording.recording import Recording

Inputs = list[dict[str, Any]]
DRAWS = 50  # lists of inputs, at most; a second one is rarely needed
EDGE_DRAWS = 10_000  # until inputs lie on an edge, at most; it takes ten or a hundred


@dataclass(frozen=True, kw_only=True)
class FunctionTargets(Targets):
    """What a plain function must give. It runs in a process of its own (one rank), so that it can break nothing.

    The right value is the solution's. A miss is named by the first of the exercise's wrong answers that gives the very
    values that the answer gave; where none does, the input, the value and the right value are said.

    Args:
        draw: of a `random.Random`, one set of inputs: names to values, in the order of the function's arguments.
        edges: conditions on inputs, each a function of them by name. Every check has inputs that meet each: what is
            only drawn now and then lets an answer pass that is wrong there.
        tolerance: of numbers, relative to those above 1.
        tries: how many sets of inputs, those at the edges among them.
    """

    on_ranks: ClassVar[bool] = False
    draw: Callable[[random.Random], dict[str, Any]]
    edges: tuple[Callable[..., bool], ...]
    tolerance: float = 1e-9
    tries: int = 12
    world_sizes: tuple[int, ...] = (1,)

    def runs(self, exercise: "Exercise", world_size: int, seed: int, seconds: float) -> Iterator[Run]:
        """One run, over all drawn inputs."""
        inputs = self._telling_inputs(exercise, random.Random(seed))

        def judge(recording: "Recording") -> Iterator[Judgement]:
            yield "value", self._judge(exercise, inputs, _values(recording))

        def picture(recording: "Recording") -> Table:
            right = _results(exercise.solution, inputs)
            rows = zip(inputs, _values(recording), right, strict=True)
            return Table([_row(arguments, given, wanted) for arguments, given, wanted in rows], exercise.title)

        yield Run(trial, (inputs, self.forbids, seconds), judge, picture)

    def _telling_inputs(self, exercise: "Exercise", dice: random.Random) -> Inputs:
        """Inputs on which every wrong answer of the exercise is wrong, and each in its own way.

        Drawn blindly, a dozen inputs now and then have none that a mistake shows on: of one set in ten for
        `gpus-needed` a mistake would have passed.
        """
        wrong = [exercise.compile(exercise.wrong_source(each)) for each in exercise.wrong]
        for _ in range(DRAWS):
            # The edges last: a mistake that shows everywhere is told with a usual input.
            inputs = [self.draw(dice) for _ in range(self.tries - len(self.edges))]
            inputs += [self._at(edge, dice) for edge in self.edges]
            values = [_results(function, inputs) for function in (exercise.solution, *wrong)]
            if not any(same(*pair, self.tolerance) for pair in combinations(filter(None, values), 2)):
                break
        return inputs

    def _at(self, edge: Callable[..., bool], dice: random.Random) -> dict[str, Any]:
        """Inputs that lie on an edge. Raises ValueError if `draw` never gives any."""
        drawn = (self.draw(dice) for _ in range(EDGE_DRAWS))
        found = next((inputs for inputs in drawn if edge(**inputs)), None)
        if found is None:
            line = edge.__code__.co_firstlineno
            raise ValueError(f"{EDGE_DRAWS:,} draws gave no inputs for the edge of line {line}: let `draw` reach it")
        return found

    def _judge(self, exercise: "Exercise", inputs: Inputs, given: list[Any]) -> str:
        right = _results(exercise.solution, inputs)
        misses = [number for number in range(len(inputs)) if not same(given[number], right[number], self.tolerance)]
        if not misses:
            return ""
        first = misses[0]
        call = f"{exercise.name}({', '.join(f'{name}={describe(value)}' for name, value in inputs[first].items())})"
        # Before any number is compared: a forgotten `return` is a slip of Python, not of the lesson.
        if all(value is None for value in given):
            return f"`{exercise.name}` returned nothing; {call} should return {describe(right[first])}."
        # "gave None; right is none" would read as if the two were the same.
        gave = "returned nothing" if given[first] is None else f"gave {describe(given[first])}"
        why = f"{call} {gave}; right is {describe(right[first])}"
        where = first_difference(given[first], right[first], self.tolerance)
        why = f"{why}: {where}" if where else why
        # The very same values on every input can hardly come of another mistake.
        for wrong in exercise.wrong:
            values = _results(exercise.compile(exercise.wrong_source(wrong)), inputs)
            if same(given, values, self.tolerance):
                return f"{why}. Your function {wrong.says}."
        shared = f": {where}" if (where := _shared(inputs, misses)) else ""
        wrongly, wanted = ([values[number] for number in misses] for values in (given, right))
        common = in_common(wrongly, wanted, self.tolerance)
        what = "number" if len(misses) == len(inputs) else "wrong number"
        verb = "The lists have" if isinstance(wanted[0], list) else f"Each {what} is"
        related = f" {verb} {common}." if common else ""
        return f"{why}. Of {len(inputs)} inputs {len(misses)} went wrong{shared}.{related}"


def trial(answer: Callable[..., Any], inputs: Inputs, forbids: tuple[str, ...], seconds: float) -> list[Any]:
    """What the answer gives for each set of inputs, as plain data. Raises OutOfTime after so many seconds."""
    with finished_answers_out_of_reach(answer, forbids), at_most(seconds):
        # A copy, because the answer may write into what it gets: in this process the same inputs are judged afterwards.
        return [listed(plain(answer(*arguments.values()))) for arguments in copy.deepcopy(inputs)]


def _values(recording: "Recording") -> list[Any]:
    """What the answer gave, on the one rank."""
    values: list[Any] = (recording.results or [[]])[0]
    return values


def _results(function: Callable[..., Any], inputs: Inputs) -> list[Any]:
    try:
        # A copy, because an answer may write into what it gets, and the same inputs are asked of others.
        return [listed(plain(function(*arguments.values()))) for arguments in copy.deepcopy(inputs)]
    except Exception:  # noqa: BLE001  (a wrong answer that raises gives no values)
        return []


def _shared(inputs: Inputs, misses: list[int]) -> str:
    """The word that all inputs with a wrong value have, three at least, and no others; empty if there is none."""
    for name, word in inputs[misses[0]].items():
        having = [number for number, each in enumerate(inputs) if isinstance(word, str) and each[name] == word]
        if set(misses) == set(having) and 3 <= len(misses) < len(inputs):
            return f"each with {name}={word!r}"
    return ""


def _row(arguments: dict[str, Any], given: Any, wanted: Any) -> dict[str, str | int | float | bool | None]:
    values = {**arguments, "yours": given, "right": wanted}
    return {name: value if isinstance(value, (str, int, float)) else describe(value) for name, value in values.items()}
