"""What an exercise is made of, read from its file, and the notebook cells that are written from it."""

import __future__

import importlib
import inspect
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from textwrap import dedent
from types import ModuleType
from typing import Any

TAG = "zerolab.exercise="


@dataclass(frozen=True, slots=True)
class Wrong:
    """An answer as learners err: one exact edit of the solution's text, or a whole function where no edit says it.

    Args:
        says: what the check must say about it: a part of its words that names the misconception.
        replace: a text that occurs exactly once in the solution.
        by: what stands in its place.
        whole: the whole function instead.
    """

    says: str
    replace: str = ""
    by: str = ""
    whole: str = ""


@dataclass(frozen=True, slots=True)
class Targets:
    """What a right answer must reach.

    Args:
        stage: which stage the answer is; its formula stands beside the picture.
        returns: what the function returns, in words.
        shards: the categories that are divided by N; the others are whole on every rank. Sets state bytes and peak.
        collectives: the collectives of one step, in order. Sets the volume too.
        value: largest difference allowed between the gradients that the optimizer gets and the mean over ranks.
        weights: largest difference allowed between the weights and those of DDP under SGD with momentum.
        world_sizes: how many ranks, in the order in which they are tried; the first miss ends the check.
        scratch_parts: how many parts of a flat may lie about beside the state.
    """

    stage: str
    returns: str
    shards: tuple[str, ...]
    collectives: tuple[str, ...]
    value: float = 1e-6
    weights: float = 1e-6
    world_sizes: tuple[int, ...] = (2, 3, 1, 4)
    scratch_parts: int = 1


@dataclass(frozen=True, slots=True)
class Exercise:
    """One exercise: its file, read."""

    id: str
    title: str
    statement: str
    hole: str
    given: str
    look_for: str
    solution: Callable[..., Any]
    hints: tuple[str, ...]
    targets: Targets
    wrong: tuple[Wrong, ...]

    @property
    def name(self) -> str:
        """The name of the function that the learner writes."""
        return self.solution.__name__

    @property
    def arguments(self) -> tuple[str, ...]:
        """The names of the function's arguments."""
        return tuple(inspect.signature(self.solution).parameters)

    def cells(self) -> list[tuple[str, str]]:
        """The exercise in a notebook, as (cell type, source): statement, hole, check, what to look for, picture."""
        signature = f"def {self.name}({', '.join(self.arguments)}):"
        hole_cell = f'from zerolab import check, hole\n{self.given}\n\n\n{signature}\n    return hole("{self.hole}")'
        return [
            ("markdown", f"## Exercise: {self.title}\n\n{self.statement}"),
            ("code", hole_cell),
            ("code", f'attempt = check("{self.id}", {self.name})'),
            ("markdown", self.look_for),
            ("code", "attempt.play()"),
        ]

    def solution_source(self) -> str:
        """The solution as text."""
        return dedent(inspect.getsource(self.solution))

    def wrong_source(self, wrong: Wrong) -> str:
        """A wrong answer as text. Raises ValueError unless its edit fits exactly one place of the solution."""
        if wrong.whole:
            return wrong.whole.strip() + "\n"
        source = self.solution_source()
        if source.count(wrong.replace) != 1:
            raise ValueError(
                f"{self.id}: {wrong.replace!r} occurs {source.count(wrong.replace)} times in the solution; "
                "an edit must fit exactly one place"
            )
        return source.replace(wrong.replace, wrong.by)

    def compile(self, source: str) -> Callable[..., Any]:
        """The function in a text, as if a cell had defined it below the lines that the exercise gives."""
        namespace: dict[str, Any] = {"__name__": "__main__"}
        text = f"from zerolab.exercises import hole\n{self.given}\n{source}"
        unevaluated = __future__.annotations.compiler_flag  # a cell of the notebook has no annotations
        exec(compile(text, f"<{self.id}>", "exec", flags=unevaluated), namespace)  # noqa: S102  the package's own text
        function: Callable[..., Any] = namespace[self.name]
        return function


def names() -> list[str]:
    """The ids of all exercises, sorted."""
    package = importlib.import_module("zerolab.exercises")
    return sorted(
        module.name.replace("_", "-") for module in pkgutil.iter_modules(package.__path__) if not module.ispkg
    )


def load(exercise_id: str) -> Exercise:
    """The exercise with this id. Raises ValueError, with the ids that exist, for one that does not."""
    if exercise_id not in names():
        raise ValueError(f"there is no exercise {exercise_id!r}: choose one of {', '.join(names())}")
    module = importlib.import_module(f"zerolab.exercises.{exercise_id.replace('-', '_')}")
    return _read(exercise_id, module)


def _read(exercise_id: str, module: ModuleType) -> Exercise:
    title, _, statement = (module.__doc__ or "").partition("\n")
    return Exercise(
        id=exercise_id,
        title=title.rstrip("."),
        statement=statement.strip(),
        hole=module.hole,
        given=module.given,
        look_for=module.look_for,
        solution=module.solution,
        hints=module.hints,
        targets=module.targets,
        wrong=module.wrong,
    )
