"""What an exercise is made of, read from its file, and the notebook cells that are written from it."""

import ast
import importlib
import inspect
import linecache
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from textwrap import dedent
from types import ModuleType
from typing import Any

from zerolab.exercises.harness.targets import Targets
from zerolab.names import unknown
from zerolab.recording import sources
from zerolab.recording.events import Event

TAG = "zerolab.exercise="
TOP = "from zerolab import "
FIX = "fix what follows, then delete this line"  # the hole of what begins broken


@dataclass(frozen=True, slots=True)
class Wrong:
    """An answer as learners err: one exact edit of the solution's text, or a whole function where no edit says it.

    Args:
        says: what the check must say about it: a part of its words that names the misconception.
        replace: a text that occurs exactly once in the solution.
        by: what stands in its place.
        whole: the whole function instead.
        gives: of all ranks' arguments and a rank, the value that a function on ranks wrongly gives: whoever gives the
            same is told what `says` says. Other kinds find that out themselves.
        sends: of one rank's arguments and the number of ranks, the elements that it wrongly sends, likewise.
    """

    says: str
    replace: str = ""
    by: str = ""
    whole: str = ""
    gives: Callable[[list[tuple[Any, ...]], int], Any] | None = None
    sends: Callable[[tuple[Any, ...], int], float] | None = None


@dataclass(frozen=True, slots=True)
class Suspect:
    """What might be wrong with a broken answer, and what a look at its run says to that.

    Args:
        says: the suspicion, in a sentence.
        reply: what can be seen for it or against it.
        guilty: whether it is what is wrong; of one exercise's suspects one is.
    """

    says: str
    reply: str
    guilty: bool = False


@dataclass(frozen=True, slots=True)
class Text:
    """A function or class as text, which a rank makes one of; `label` is what recordings call it."""

    label: str
    name: str
    text: str

    def made(self) -> Callable[..., Any]:
        """The function, with its text known to tracebacks and recordings."""
        filename = f"<{self.label}>"
        linecache.cache[filename] = (len(self.text), None, self.text.splitlines(keepends=True), filename)
        sources.LABELS[filename] = self.label
        namespace: dict[str, Any] = {"__name__": "__main__"}
        exec(compile(self.text, filename, "exec"), namespace)  # noqa: S102  the package's own text
        answer: Callable[..., Any] = namespace[self.name]
        return answer


def _anything(_event: Event) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class Exercise:
    """One exercise: its file, read.

    With `begins_broken` the learner's cell holds a broken answer, which is the first of `wrong`. In the clinic there
    are `suspects`, too, and `telling` says of an event whether the picture of its run should be opened there.
    """

    id: str
    title: str
    statement: str
    hole: str | dict[str, str]
    given: str
    look_for: str
    solution: Callable[..., Any]
    hints: tuple[str, ...]
    targets: Targets
    wrong: tuple[Wrong, ...]
    suspects: tuple[Suspect, ...] = ()
    begins_broken: bool = False
    telling: Callable[[Event], bool] = _anything

    @property
    def name(self) -> str:
        """The name of the function or class that the learner writes."""
        return self.solution.__name__

    @property
    def is_class(self) -> bool:
        """Whether the learner writes a class; then `hole` says of each method what it does."""
        return isinstance(self.solution, type)

    @property
    def arguments(self) -> tuple[str, ...]:
        """The names of the function's arguments; none for a class, whose base class takes them."""
        return () if self.is_class else tuple(inspect.signature(self.solution).parameters)

    def cells(self) -> list[tuple[str, str]]:
        """The exercise in a notebook, as (cell type, source): statement, hole, check, what to look for, picture."""
        lines = self.given.splitlines()
        own = [line for line in lines if line.startswith("from zerolab")]
        others = [line for line in lines if line and line not in own]
        top = [line.removeprefix(TOP) for line in own if line.startswith(TOP)]
        names = ", ".join(sorted(["check", "hint", "hole", "solution", *top]))
        own = [f"{TOP}{names}", *(line for line in own if not line.startswith(TOP))]
        given = "\n".join([*others, *([""] if others else []), *own])
        # Below the imports, so that who is stuck finds it where they are stuck, with both names at hand.
        help_line = f'# hint("{self.id}") helps, three times; solution("{self.id}") shows ours.'
        hole_cell = f"{given}\n\n{help_line}\n\n\n{self.opening()}"
        return [
            ("markdown", f"## Exercise: {self.title}\n\n{self.statement}"),
            ("code", hole_cell),
            ("code", f'attempt = check("{self.id}", {self.name})'),
            ("markdown", self.look_for),
            ("code", "attempt.play()"),
        ]

    def opening(self) -> str:
        """What the learner begins with: the function or class with a hole in place of each body."""
        if self.begins_broken:
            head, _, body = self.broken_source().partition("\n")
            return f'{head}\n    return hole("{self.hole}")\n{body}'.rstrip()
        if isinstance(self.hole, str):
            return f'def {self.name}({", ".join(self.arguments)}):\n    return hole("{self.hole}")'
        _, base, *_ = inspect.getmro(self.solution)  # type: ignore[arg-type]  # with a dict of holes it is a class
        members: dict[str, Any] = vars(self.solution)
        values = [
            f"    {name} = {value!r}".replace("'", '"')
            for name, value in members.items()
            if not name.startswith("_") and isinstance(value, str | bool | int)
        ]
        methods = [
            f'    def {name}({", ".join(inspect.signature(members[name]).parameters)}):\n        return hole("{what}")'
            for name, what in self.hole.items()
        ]
        return "\n\n".join(["\n".join([f"class {self.name}({base.__name__}):", *values]), *methods])

    @property
    def ours(self) -> "Text":
        """The solution below the lines that the exercise gives: for ranks, where it may not be called as it is."""
        return Text(f"our {self.id}", self.name, f"{self.given}\n\n\n{self.solution_source()}")

    @property
    def broken(self) -> "Text":
        """The broken answer below the lines that the exercise gives."""
        return Text(self.id, self.name, f"{self.given}\n\n\n{self.broken_source()}")

    def solution_source(self) -> str:
        """The solution as text, as a cell takes it below the lines that the exercise gives."""
        return _without_annotations(dedent(inspect.getsource(self.solution)))

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

    def broken_source(self) -> str:
        """What a learner gets to fix: the first wrong answer, without its docstring."""
        source = self.wrong_source(self.wrong[0])
        (function,) = ast.parse(source).body
        if not isinstance(function, ast.FunctionDef):
            raise TypeError(f"{self.id}: what is to be fixed must be a function")
        first = function.body[1 if ast.get_docstring(function) is not None else 0]
        head, *lines = source.splitlines()
        return "\n".join([head, *lines[first.lineno - 2 :], ""])

    def compile(self, source: str) -> Callable[..., Any]:
        """The function in a text, as if a cell had defined it below the lines that the exercise gives."""
        namespace: dict[str, Any] = {"__name__": "__main__"}
        text = f"from zerolab.exercises import hole\n{self.given}\n{source}"
        exec(compile(text, f"<{self.id}>", "exec"), namespace)  # noqa: S102  the package's own text
        function: Callable[..., Any] = namespace[self.name]
        return function


def _without_annotations(source: str) -> str:
    """A text without its functions' annotations: they name types that a cell has not imported."""
    lines = source.splitlines(keepends=True)
    functions = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef)]
    for function in sorted(functions, key=lambda function: -function.lineno):  # upwards, so that line numbers stay
        for argument in ast.walk(function.args):
            if isinstance(argument, ast.arg):
                argument.annotation = None
        head = f"{' ' * function.col_offset}def {function.name}({ast.unparse(function.args)}):\n"
        # Not up to the first statement: a comment may stand before it.
        end = function.returns.end_lineno if function.returns else function.lineno
        lines[function.lineno - 1 : end] = [head]
    return "".join(lines)


def names() -> list[str]:
    """The ids of all exercises, sorted."""
    package = importlib.import_module("zerolab.exercises")
    return sorted(
        module.name.replace("_", "-") for module in pkgutil.iter_modules(package.__path__) if not module.ispkg
    )


def load(exercise_id: str) -> Exercise:
    """The exercise with this id. Raises ValueError, with the ids that exist, for one that does not."""
    if exercise_id not in names():
        raise ValueError(unknown("exercise", exercise_id, names()))
    module = importlib.import_module(f"zerolab.exercises.{exercise_id.replace('-', '_')}")
    return _read(exercise_id, module)


def _read(exercise_id: str, module: ModuleType) -> Exercise:
    title, _, statement = (module.__doc__ or "").partition("\n")
    suspects = getattr(module, "suspects", ())
    begins_broken = getattr(module, "begins_broken", bool(suspects))
    return Exercise(
        id=exercise_id,
        title=title.rstrip("."),
        statement=statement.strip(),
        hole=FIX if begins_broken else module.hole,
        given=getattr(module, "given", ""),
        look_for=module.look_for,
        solution=module.solution,
        hints=module.hints,
        targets=module.targets,
        wrong=module.wrong,
        suspects=suspects,
        begins_broken=begins_broken,
        telling=getattr(module, "telling", _anything),
    )
