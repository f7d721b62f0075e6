"""While a learner's code runs, the finished answers are out of reach.

This guards against short cuts and honest mistakes: `from zerolab import Zero1`, `DistributedDataParallel(model)`.
Somebody who wants to get around it will; tampering on purpose is out of scope.
"""

import builtins
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import FunctionType
from typing import Any
from unittest.mock import patch

FORBIDDEN_MODULES = (
    "zerolab.engines.ddp",
    "zerolab.engines.zero1",
    "zerolab.engines.zero2",
    "zerolab.engines.zero3",
    "zerolab.engines.native",
    "zerolab.engines.torch_ddp",
    "zerolab.engines.fsdp1",
    "zerolab.engines.fsdp2",
    "zerolab.engines.deepspeed",
    "torch.nn.parallel.distributed",
    "torch.distributed.fsdp",
    "torch.distributed.optim.zero_redundancy_optimizer",
    "deepspeed",
)
FORBIDDEN_NAMES = (
    "DDP",
    "Zero1",
    "Zero2",
    "Zero3",
    "ENGINES",
    "DistributedDataParallel",
    "FullyShardedDataParallel",
    "fully_shard",
    "ZeroRedundancyOptimizer",
)
WRITE = "write the step yourself, with collectives and an optimizer"
QUESTIONS = ("own", "reduce", "keep", "publish")  # what a stage decides
FINISHED = {"ddp": "DDP", "zero1": "Zero1", "zero2": "Zero2", "zero3": "Zero3"}
FORBIDDEN_CALLS = (
    *(f"zerolab.engines.{file}:{name}.{part}" for file, name in FINISHED.items() for part in QUESTIONS),
    "zerolab.engines.zero3:Zero3.gather",
    "zerolab.engines.zero3:Zero3.release",
    "zerolab.engines.native:Native.__init__",
    "torch.nn.parallel.distributed:DistributedDataParallel.__init__",
    "torch.distributed.fsdp:FullyShardedDataParallel.__init__",
    "torch.distributed.fsdp._fully_shard._fsdp_state:FSDPState.__init__",
    "torch.distributed.optim.zero_redundancy_optimizer:ZeroRedundancyOptimizer.__init__",
    "deepspeed:initialize",
)


class NotAllowedHere(RuntimeError):
    """An exercise's answer reached for what is the answer, finished; the exercise is to write it."""


@contextmanager
def finished_answers_out_of_reach(answer: Callable[..., Any], also: tuple[str, ...] = ()) -> Iterator[None]:
    """Within it, to import a finished engine in the answer's code, or to call one anywhere, raises NotAllowedHere.

    `also` names what else may not be called, as `"module:function"`. A class of the learner's own may derive from
    `Engine`, but not from a finished stage.
    """
    own_globals = _globals_of(answer)
    from zerolab.exercises.harness import exercise

    with ExitStack() as patches:
        calls = dict.fromkeys(FORBIDDEN_CALLS, WRITE) | dict.fromkeys(also, "write the function yourself")
        for call, remedy in calls.items():
            module_name, _, path = call.partition(":")
            owner_path, _, attribute = path.rpartition(".")
            module = sys.modules.get(module_name)
            if module is not None:  # what is not imported yet cannot be called; importing it is caught below
                owner = getattr(module, owner_path) if owner_path else module
                patches.enter_context(patch.object(owner, attribute, _refuse(owner_path or path, remedy)))
        from zerolab.engines.engine import Engine

        patches.enter_context(patch.object(Engine, "__init__", _unless_finished(Engine.__init__)))
        patches.enter_context(patch.object(exercise, "_read", _refuse("the shipped solution", "write your own")))
        for function in _shipped_solutions():
            patches.enter_context(_refusing(function))
        patches.enter_context(patch.object(builtins, "__import__", _watched_import(own_globals)))
        yield


def _globals_of(answer: Callable[..., Any]) -> dict[str, Any]:
    """The globals of the answer's code: of a function, or of the methods of a class."""
    parts = vars(answer).values() if isinstance(answer, type) else [answer]
    found = (part.__globals__ for part in parts if isinstance(part, FunctionType))
    return next(found, {})


def _refuse(what: str, remedy: str) -> Callable[..., Any]:
    def refused(*_: Any, **__: Any) -> Any:
        raise NotAllowedHere(f"{what} is a finished answer: {remedy}")

    return refused


def _shipped_solutions() -> Iterator[FunctionType]:
    """The solutions that are imported, by whatever name an answer calls them; of a class its methods."""
    for name, module in sys.modules.copy().items():
        if name.startswith("zerolab.exercises.") and not name.startswith("zerolab.exercises.harness"):
            solution = getattr(module, "solution", None)
            parts = vars(solution).values() if isinstance(solution, type) else [solution]
            yield from (part for part in parts if isinstance(part, FunctionType))


@contextmanager
def _refusing(function: FunctionType) -> Iterator[None]:
    # The code, and not the name in its module: an answer may have taken the function out of there before.
    code = function.__code__
    function.__code__ = _instead_of_a_solution.__code__
    try:
        yield
    finally:
        function.__code__ = code


def _instead_of_a_solution(*_: Any, **__: Any) -> Any:
    # It runs with the solution's globals, in which nothing of this module is known.
    from zerolab.exercises.harness.guard import NotAllowedHere

    raise NotAllowedHere("the shipped solution is a finished answer: write your own")


def _is_exercise(path: str) -> bool:
    from zerolab.exercises.harness.exercise import names

    package, _, name = path.rpartition(".")
    return package == "zerolab.exercises" and name.replace("_", "-") in names()


def _unless_finished(init: Callable[..., None]) -> Callable[..., None]:
    def checked(engine: Any, *args: Any, **keywords: Any) -> None:
        # A class of one's own that derives from a finished stage would inherit the answer.
        for base in type(engine).__mro__:
            if base.__module__.startswith(FORBIDDEN_MODULES):
                raise NotAllowedHere(f"{base.__name__} is a finished answer: {WRITE}")
        init(engine, *args, **keywords)

    return checked


def _watched_import(own_globals: dict[str, Any]) -> Callable[..., Any]:
    really_import = builtins.__import__

    def watched(
        name: str,
        globals: Any = None,  # noqa: A002  the import statement passes these by position, under these names
        locals: Any = None,  # noqa: A002
        fromlist: Any = (),
        level: int = 0,
    ) -> Any:
        # Only the learner's own imports; torch and zerolab go on importing what they need.
        if globals is own_globals:
            asked = [name, *(f"{name}.{item}" for item in fromlist or ())]
            for module in (path for path in asked if path.startswith(FORBIDDEN_MODULES)):
                raise NotAllowedHere(f"importing {module} is not allowed in an exercise: {WRITE}")
            for module in filter(_is_exercise, asked):
                raise NotAllowedHere(f"{module} has the shipped solution, which is a finished answer: write your own")
            if name.partition(".")[0] in ("zerolab", "torch", "deepspeed"):
                for item in (item for item in fromlist or () if item in FORBIDDEN_NAMES):
                    raise NotAllowedHere(f"importing {item} is not allowed in an exercise: {WRITE}")
        return really_import(name, globals, locals, fromlist, level)

    return watched
