"""Looking over somebody's shoulder for a while, and leaving everything as it was."""

import inspect
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def replace(owner: Any, name: str, wrapper: Callable[..., Any]) -> Iterator[None]:
    """Calls `wrapper(original, *args, **keywords)` instead of the method or function `owner.name`.

    Whatever is there is wrapped, even another wrapper, and put back at the end; what the owner merely inherited is
    inherited again.
    """
    # A method that came from a base class must not be left behind in the subclass.
    original, own = getattr(owner, name), name in vars(owner)

    def instead(*args: Any, **keywords: Any) -> Any:
        return wrapper(original, *args, **keywords)

    setattr(owner, name, instead)
    try:
        yield
    finally:
        if own:
            setattr(owner, name, original)
        else:
            delattr(owner, name)


@contextmanager
def intercept(module: types.ModuleType, name: str, wrapper: Callable[..., Any]) -> Iterator[None]:
    """Calls `wrapper(original, *args, **keywords)` instead of a module's function, by whatever name it was imported.

    `from m import f` copies the reference into the importing module, or into a learner's cell, where replacing `m.f`
    does not reach. So not the reference changes but the function's code: for a while it only hands over to `wrapper`.
    What others have put around the function stays around it.
    """
    # Others wrap, too: the innermost that is still of this module is the one that everybody calls in the end.
    function = inspect.unwrap(getattr(module, name), stop=lambda f: f.__code__.co_filename == module.__file__)
    code, defaults, keyword_defaults = function.__code__, function.__defaults__, function.__kwdefaults__
    # A second function with the old code: it shares the globals, so it finds everything that it did before.
    original = types.FunctionType(code, function.__globals__, name, defaults, function.__closure__)
    original.__kwdefaults__ = keyword_defaults
    template = _hand_over.__code__ if not code.co_freevars else _decorated(None).__code__
    target = f"__recorded_{name}"
    function.__globals__[target] = lambda *args, **keywords: wrapper(original, *args, **keywords)
    function.__code__ = template.replace(co_names=tuple(target if n == "_target" else n for n in template.co_names))
    try:
        yield
    finally:
        function.__code__ = code
        del function.__globals__[target]


def _hand_over(*args: Any, **keywords: Any) -> Any:
    return _target(*args, **keywords)


def _decorated(function: Any) -> Any:
    """The same for what a decorator returned: code may only be exchanged for code with as many free variables, one."""

    def hand_over(*args: Any, **keywords: Any) -> Any:
        _ = function
        return _target(*args, **keywords)

    return hand_over


def _target(*args: Any, **keywords: Any) -> Any:
    """Stands for the name that `intercept` puts into the code; never called."""
    raise NotImplementedError
