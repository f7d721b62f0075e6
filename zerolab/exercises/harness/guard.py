"""While a learner's code runs, the finished answers are out of reach.

This guards against short cuts and honest mistakes: `from zerolab import Zero1`, `DistributedDataParallel(model)`.
Somebody who wants to get around it will; tampering on purpose is out of scope.
"""

import builtins
import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from operator import attrgetter
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any, NamedTuple

from zerolab.exercises.harness import exercise
from zerolab.recording.patches import replace

WRITE = "write the step yourself, with collectives and an optimizer"


class NotAllowedHere(RuntimeError):
    """An exercise's answer reached for what is the answer, finished; the exercise is to write it."""


class Engines(NamedTuple):
    """Of finished engines the modules and names that an answer may not import, and the functions not to be called."""

    modules: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    calls: tuple[str, ...] = ()


@contextmanager
def finished_answers_out_of_reach(
    answer: Callable[..., Any], also: tuple[str, ...] = (), allows: tuple[str, ...] = ()
) -> Iterator[None]:
    """Within it, to import a finished engine in the answer's code, or to call one anywhere, raises NotAllowedHere.

    `also` names what else may not be called, as `"module:function"`; `allows` modules that may be used all the same. A
    class of the learner's own may derive from `Engine`; of a finished stage it would inherit what may not be called.
    """
    engines = _engines()
    calls = tuple(call for call in engines.calls if not call.startswith(allows))
    refused = [*_refused(calls, WRITE), *_refused(also, "write the function yourself")]
    refused += [(code, "the shipped solution is a finished answer: write your own") for code in _shipped_solutions()]
    watched = _watched_import(_globals_of(answer), engines, allows)
    with replace(builtins, "__import__", watched), _calls_refused(refused):
        yield


def _engines() -> Engines:
    """Those that are here: none without torch, as in a browser, where a plain function is all that can be answered."""
    if "torch" not in sys.modules:
        return Engines()
    from zerolab.exercises.harness import finished

    return Engines(finished.MODULES, finished.NAMES, finished.CALLS)


def _globals_of(answer: Callable[..., Any]) -> dict[str, Any]:
    """The globals of the answer's code: of a function, or of the methods of a class."""
    parts = vars(answer).values() if isinstance(answer, type) else [answer]
    found = (part.__globals__ for part in parts if isinstance(part, FunctionType))
    return next(found, {})


def _refused(calls: tuple[str, ...], remedy: str) -> Iterator[tuple[CodeType, str]]:
    """The code behind what may not be called, and what to say to whoever does."""
    for call in calls:
        module_name, _, path = call.partition(":")
        module = sys.modules.get(module_name)
        if module is not None:  # what is not imported yet cannot be called; importing it is refused
            owner = path.rpartition(".")[0] or path
            yield inspect.unwrap(attrgetter(path)(module)).__code__, f"{owner} is a finished answer: {remedy}"


def _shipped_solutions() -> Iterator[CodeType]:
    """The code of the solutions that are imported, of a class its methods; and of what would import one."""
    yield exercise._read.__code__  # noqa: SLF001  (which gives a solution along with the rest)
    for module in vars(sys.modules["zerolab.exercises"]).copy().values():
        if isinstance(module, ModuleType):
            solution = getattr(module, "solution", None)
            parts = vars(solution).values() if isinstance(solution, type) else [solution]
            yield from (part.__code__ for part in parts if isinstance(part, FunctionType))


@contextmanager
def _calls_refused(refused: list[tuple[CodeType, str]]) -> Iterator[None]:
    """Raises NotAllowedHere in functions that are called, by whatever name the answer knows them."""
    remarks = {id(code): remark for code, remark in refused}  # by id: what is written alike is equal
    said: list[str] = []

    def look(frame: FrameType, event: str, _argument: Any) -> None:
        if event == "call" and id(frame.f_code) in remarks:
            said.append(remarks[id(frame.f_code)])
            raise NotAllowedHere(said[0])  # and Python asks no more

    before = sys.getprofile()
    sys.setprofile(look)
    try:
        yield
    finally:
        sys.setprofile(before)
    if said:  # the answer has caught it
        raise NotAllowedHere(said[0])


def _is_exercise(path: str) -> bool:
    package, _, name = path.rpartition(".")
    return package == "zerolab.exercises" and name.replace("_", "-") in exercise.names()


def _watched_import(own_globals: dict[str, Any], engines: Engines, allows: tuple[str, ...]) -> Callable[..., Any]:
    def watched(really_import: Callable[..., Any], name: str, *args: Any, **keywords: Any) -> Any:
        given = {**dict(zip(("globals", "locals", "fromlist", "level"), args, strict=False)), **keywords}
        fromlist = given.get("fromlist") or ()
        # Only the learner's own imports; torch and zerolab go on importing what they need.
        if given.get("globals") is own_globals and not name.startswith(allows):
            asked = [name, *(f"{name}.{item}" for item in fromlist)]
            for module in (path for path in asked if path.startswith(engines.modules)):
                raise NotAllowedHere(f"importing {module} is not allowed in an exercise: {WRITE}")
            for module in filter(_is_exercise, asked):
                raise NotAllowedHere(f"{module} has the shipped solution, which is a finished answer: write your own")
            if name.partition(".")[0] in ("zerolab", "torch", "deepspeed"):
                for item in (item for item in fromlist if item in engines.names):
                    raise NotAllowedHere(f"importing {item} is not allowed in an exercise: {WRITE}")
        return really_import(name, *args, **keywords)

    return watched
