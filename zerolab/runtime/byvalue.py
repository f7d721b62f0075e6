"""Sends by value what pickle would send as a name known only to the notebook: functools' functions, some types.

The ranks could not look that name up, so each of these is sent as its parts, as cloudpickle sends plain functions and
classes. A cache arrives empty.
"""

import builtins
import functools
import importlib
import os
import sys
import typing
from collections.abc import Callable, Mapping
from types import FunctionType
from typing import Any

from zerolab.runtime.refusals import RefusedError

# All functions that `singledispatch` makes share one code object; nothing else distinguishes them from plain ones.
_DISPATCHING = functools.singledispatch(id).__code__  # type: ignore[attr-defined]  # it is a plain function
_PARTS: dict[object, Callable[[Any], tuple[Any, ...]]] = {
    _DISPATCHING: lambda function: (_dispatching, (dict(function.registry),)),
    type(functools.cache(id)): lambda function: (_cached, (function.__wrapped__, function.cache_parameters())),
    functools.singledispatchmethod: lambda method: (_dispatching_method, (method.func, method.dispatcher)),
    functools.cached_property: lambda found: (_cached_property, (found.func, found.attrname)),
    typing.NewType: lambda new: (_typed, (typing.NewType, new.__name__, new.__supertype__)),
    typing.ParamSpec: lambda spec: (_typed, (typing.ParamSpec, spec.__name__)),
    typing.TypeVarTuple: lambda variable: (_typed, (typing.TypeVarTuple, variable.__name__)),
}
"""How to make one again: by its type, or by its code."""
if sys.version_info >= (3, 12):  # `type Batch = torch.Tensor`
    _PARTS[typing.TypeAliasType] = lambda alias: (_alias, (alias.__name__, alias.__value__, alias.__type_params__))


def reduced(obj: object, protocol: int, *, is_call: bool) -> Any:
    """How to make `obj` again elsewhere, as `__reduce__` says it; NotImplemented if pickle's own way works.

    Raises RefusedError for anything else that is sent to the ranks as a name which only the notebook knows.
    """
    # A copy would have the notebook's variables: after `from os import environ`, RANK would be missing on a rank.
    if obj is os.environ:
        return getattr, (os, "environ")
    if type(obj) is typing.TypeVar:
        return NotImplemented  # cloudpickle sends it by value
    kind = obj.__code__ if isinstance(obj, FunctionType) else type(obj)
    if kind in _PARTS:
        return NotImplemented if _is_importable(obj) else _PARTS[kind](obj)
    if isinstance(obj, FunctionType | type) or not _may_go_by_name(obj):
        return _from_home(obj)
    found = obj.__reduce_ex__(protocol)
    if is_call and isinstance(found, str):
        raise RefusedError(
            f"it is sent by its name, {found}, which the ranks do not know: it was made in the notebook. Make it "
            "inside the function, or in a module that the function imports"
        )
    return found


def with_slots(obj: object, way: Any) -> Any:
    """The way in which cloudpickle sends a class, which then has its slots: else its objects would not be alike."""
    if not isinstance(obj, type) or "__slots__" not in vars(obj) or not isinstance(way, tuple):
        return way
    if way[1][0] is not type(obj):  # an enumeration, whose members are sent in another way
        return way
    make, (kind, *names, keywords, tracker, extra), *state = way
    return make, (kind, *names, keywords | {"__slots__": vars(obj)["__slots__"]}, tracker, extra), *state


def _may_go_by_name(obj: object) -> bool:
    """Whether it belongs to the notebook and defines how it is pickled; then that may be by name."""
    kind = type(obj)
    has_a_way = kind.__reduce__ is not object.__reduce__ or kind.__reduce_ex__ is not object.__reduce_ex__
    return has_a_way and getattr(obj, "__module__", None) == "__main__"


def _from_home(obj: object) -> Any:
    """By the module that has it, for a class that calls itself a builtin and is none, as `safetensors.safe_open` does.

    By value it would arrive without its methods, which are not Python's.
    """
    if not isinstance(obj, type) or obj.__module__ != "builtins" or hasattr(builtins, obj.__name__):
        return NotImplemented
    modules = sys.modules.copy().items()
    homes = (name for name, home in modules if getattr(home, "__dict__", {}).get(obj.__name__) is obj)
    # By the name that it is imported by: `_collections_abc` calls itself `collections.abc`, which is another module.
    home = next((name for name in homes if name != "__main__"), None)
    return NotImplemented if home is None else (_imported, (home, obj.__name__))


def _imported(module: str, name: str) -> Any:
    return getattr(importlib.import_module(module), name)


def _is_importable(obj: Any) -> bool:
    if obj.__module__ == "__main__":
        return False
    found: Any = sys.modules.get(obj.__module__)
    # A `cached_property` has no name, and goes by its parts: before Python 3.12 it holds a lock.
    for part in getattr(obj, "__qualname__", getattr(obj, "__name__", "")).split("."):
        found = getattr(found, part, None)
    return found is obj


def _cached(function: Callable[..., Any], parameters: Mapping[str, Any]) -> Any:
    return functools.lru_cache(**parameters)(function)


def _cached_property(function: Callable[[Any], Any], name: str) -> "functools.cached_property[Any]":
    found = functools.cached_property(function)
    found.attrname = name  # Python sets it only in the body of a class
    return found


def _dispatching(registry: Mapping[type, Callable[..., Any]]) -> Any:
    function = functools.singledispatch(registry[object])
    for kind, implementation in registry.items():
        function.register(kind, implementation)
    return function


def _alias(name: str, value: Any, parameters: tuple[Any, ...]) -> Any:
    return typing.TypeAliasType(name, value, type_params=parameters)  # type: ignore[attr-defined]  # from 3.12 on


def _dispatching_method(function: Callable[..., Any], dispatcher: Any) -> "functools.singledispatchmethod[Any]":
    found = functools.singledispatchmethod(function)  # from Python 3.13 on it has a cache, which cannot be sent
    found.dispatcher = dispatcher
    return found


def _typed(kind: type, name: str, *arguments: Any) -> Any:
    made = kind(name, *arguments)
    made.__module__ = "__main__"  # and not this one
    return made
