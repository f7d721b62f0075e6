"""Says what cannot be sent to the ranks or back: which variable holds it, why, and what to do instead.

The name is found by trial: the pickler only says that something somewhere failed, so the function's arguments, closure
and globals are pickled one by one, then the parts of the first that fails, until no part fails by itself.
"""

import contextlib
import functools
import inspect
import io
import sys
from collections.abc import Callable, Iterator, Mapping
from types import BuiltinFunctionType, FunctionType, GetSetDescriptorType, MemberDescriptorType, MethodType
from typing import Any

import torch
import torch.distributed as dist

_DEPTH = 12  # levels of nesting that are named
_WIDTH = 1000  # parts of one value that are tried

Call = tuple[Callable[..., Any], tuple[Any, ...], Mapping[str, Any]]
"""What is to run on the ranks, its arguments by position, and those by name."""

Part = tuple[str, str, object]
"""How a value is written in the learner's code, such as `settings['model']`; who uses it; and the value."""


class RefusedError(TypeError):
    """Something that pickles without an error, or hangs, but would not be the same on the other side."""


class TooLargeError(Exception):
    """The bytes of a call are more than the limit."""


def check(obj: object) -> None:
    """RefusedError for what only the kernel can have: open files, process groups, tensors on a GPU."""
    # cloudpickle would send the contents of an open file as if they were the file; writing would go nowhere.
    if isinstance(obj, io.IOBase) and not isinstance(obj, io.BytesIO | io.StringIO):
        raise RefusedError(
            f"it is an open file ({getattr(obj, 'name', 'without a name')!r}), which only this process has open. "
            "Open it inside the function, by its path."
        )
    # It would arrive as a copy, through the kernel's memory, and each rank would open a context on that GPU.
    if isinstance(obj, torch.Tensor) and obj.device.type not in ("cpu", "meta"):
        raise RefusedError(
            f"it is a tensor on {obj.device}, in the kernel's own part of that GPU's memory. Make it inside the "
            "function, or send a copy in main memory: .cpu()"
        )
    # Some of these pickle without an error, but hang on the other side.
    if isinstance(obj, dist.ProcessGroup | dist.Store | dist.Work):
        raise RefusedError(
            f"it is {kind_of(obj)} of this process, and the ranks have their own. Use theirs inside the "
            "function: dist.group.WORLD, or dist.new_group([0, 1])"
        )
    if isinstance(obj, torch.Tensor) and (obj._backward_hooks or obj._post_accumulate_grad_hooks):
        raise RefusedError(
            "it has a hook on its gradient, which cannot be sent, and without it the ranks would train differently. "
            "Register it inside the function"
        )
    if isinstance(obj, FunctionType) and "_torchdynamo_orig_callable" in obj.__dict__:
        raise RefusedError("it was compiled by torch.compile for this process. Compile it inside the function")
    if _is_the_shells(obj):
        raise RefusedError(
            "it belongs to the notebook's own IPython, which the ranks do not have. Leave it out of the function; to "
            "leave a function early, use return"
        )


def check_not_released(tensor: torch.Tensor) -> None:
    """RefusedError for a tensor whose storage no longer holds its elements: reading them crashes or gives garbage."""
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    last = tensor.storage_offset() + sum((size - 1) * stride for size, stride in steps)
    needed, there = (last + 1) * tensor.element_size(), tensor.untyped_storage().nbytes()
    if tensor.numel() and needed > there:
        raise RefusedError(
            f"it is a tensor that was released: it needs {needed:,} bytes, and its storage has {there:,}. Gather it "
            "first"
        )


def _is_the_shells(obj: object) -> bool:
    """Whether it is IPython itself or its `exit` and `quit`: with them the whole kernel would be pickled."""
    modules = (("IPython.core.interactiveshell", "InteractiveShell"), ("IPython.core.autocall", "IPyAutocall"))
    return any(
        module in sys.modules and isinstance(obj, getattr(sys.modules[module], kind)) for module, kind in modules
    )


def check_function(fn: object) -> None:
    """TypeError for what cannot be called, and for functions whose result would only begin to compute."""
    if fn is None or inspect.iscoroutine(fn) or inspect.isgenerator(fn):
        raise TypeError(
            f"the first argument is {_short(fn)}, not a function; give the function itself, without calling it: "
            "cluster.run(train, ...) and not cluster.run(train(...))"
        )
    if not callable(fn):
        raise TypeError(
            f"the first argument is {_short(fn)}, which cannot be called; give a function: cluster.run(train)"
        )
    if not isinstance(fn, FunctionType | MethodType | functools.partial):
        return  # an object with a `__call__`, whose `__getattr__` inspect would call
    if inspect.iscoroutinefunction(fn) or inspect.isasyncgenfunction(fn):
        raise TypeError(f"{_name(fn)} is an async function, which a rank would not await; make it a plain one: def")
    if inspect.isgeneratorfunction(fn):
        raise TypeError(
            f"{_name(fn)} is a generator function (it has a yield), and a generator cannot come back from a rank; "
            "return a list instead"
        )


def cannot_be_sent(call: Call, error: Exception, send: Callable[[Any], object]) -> str:
    """The sentence for a call that carries something that cannot be sent.

    The pickler said `error`; `send` raises what sending one value would raise.
    """
    name = _name(call[0])
    if isinstance(error, RefusedError) and _fails_itself(call[0]):
        return f"{name} cannot be sent to the ranks. {_why(call[0], error)}"
    # In the order in which you read a call: arguments first, then what the function closes over.
    for part in _parts_of_call(*call):
        reason = _failure(part[2], send)
        if reason is not None:
            (path, user, culprit), reason = _innermost(part, reason, send)
            which = f"{path}, which {user} uses" if user else path
            return f"{name} cannot be sent to the ranks because of {which}. {_why(culprit, reason)}"
    return f"{name} cannot be sent to the ranks: {_sentence(error)}. Create that object inside the function instead."


def too_large(call: Call, measure: Callable[[object], int], limit: int) -> str:
    """The sentence for a call that carries more than the limit; it names the largest thing that it carries."""
    # One by one, though parts may share tensors: only the largest is named, and no sum given.
    sizes = {}
    for name, _, value in _parts_of_call(*call):
        with contextlib.suppress(Exception):  # a learner's `__reduce__` may raise anything
            sizes[name] = measure(value)
    largest = max(sizes, key=lambda name: sizes[name], default="")
    which = f", most of it in {largest} with {megabytes(sizes[largest])}" if largest else ""
    return (
        f"{_name(call[0])} carries {megabytes(measure(call))} to each rank{which}; the limit is {megabytes(limit)}. "
        "Create or load it inside the function instead: then each rank has its own copy and nothing is sent."
    )


def cannot_come_back(result: object, error: Exception, send: Callable[[Any], object]) -> str:
    """The sentence for a result that cannot leave its rank; within something large it names the part to blame.

    `error` and `send` are as in `cannot_be_sent`.
    """
    (path, _, culprit), reason = _innermost(("result", "", result), error, send)
    which = f"{path}, {kind_of(culprit)}: " if culprit is not result else ""
    said = f"the result, {kind_of(result)}, cannot be sent back: {which}{_sentence(reason)}."
    return said if isinstance(reason, RefusedError) else f"{said} Return plain values or tensors."


def result_too_large(result: object, size: int, limit: int) -> str:
    """The sentence for a result that has more bytes than the limit."""
    return (
        f"the result, {kind_of(result)}, has {megabytes(size)}, more than the {megabytes(limit)} that a rank "
        "may send back: return a part of it, or write it to a file and return the path."
    )


def megabytes(count: int) -> str:
    """For example `268.4 MB`; MB is 10⁶ bytes."""
    return f"{count / 1e6:,.1f} MB"


def kind_of(value: object) -> str:
    """The name of a value's type with its article, such as `an int`."""
    name = type(value).__name__
    return f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}"


def _why(culprit: object, reason: Exception) -> str:
    refusal = str(reason) if isinstance(reason, RefusedError) else _refuses(culprit)
    if refusal is not None:
        return f"{refusal[:1].upper()}{refusal[1:]}"
    if inspect.isgenerator(culprit):
        return (
            "It is a generator, which can run in one process only. Make a list of it, or call it inside the function."
        )
    if inspect.iscoroutine(culprit):
        return "It is a coroutine, which can run in one process only. Run it inside the function."
    # Locks have many private types, but few modules.
    if type(culprit).__module__ in ("_thread", "threading", "multiprocessing.synchronize"):
        return f"It is {kind_of(culprit)}, which works within one process only. Make it inside the function instead."
    return f"It is {kind_of(culprit)}: {_sentence(reason)}. Create that object inside the function instead."


def _innermost(whole: Part, reason: Exception, send: Callable[[Any], object], depth: int = 0) -> tuple[Part, Exception]:
    """The smallest part that fails by itself, and why it does."""
    # A limit, because values may refer to each other in a cycle.
    if depth == _DEPTH or _fails_itself(whole[2]):
        return whole, reason
    for part in _parts_of(whole):
        inner = _failure(part[2], send)
        if inner is not None:
            return _innermost(part, inner, send, depth + 1)
    return whole, reason


def _fails_itself(value: object) -> bool:
    """Whether the value itself cannot be sent, and not something in it: we refuse it, or its own class does."""
    try:
        check(value)
    except RefusedError:
        return True
    return _refuses(value) is not None


def _refuses(value: object) -> str | None:
    """The message of a class that refuses to be pickled, such as Cluster; None if it does not refuse."""
    if type(value).__reduce__ is object.__reduce__ or isinstance(value, type):
        return None
    try:
        value.__reduce__()
    except TypeError as error:
        return f"{_sentence(error)}."
    except Exception:  # noqa: BLE001  # it does not refuse: it failed
        return None
    return None


def _parts_of_call(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Iterator[Part]:
    for name, value in (*enumerate(args, 1), *kwargs.items()):
        yield f"argument {name}", "", value
    yield from _parts_of_function(fn)


def _parts_of(whole: Part) -> Iterator[Part]:
    """The values inside a value, each as one would write it."""
    path, user, value = whole
    if isinstance(value, FunctionType | MethodType | functools.partial):
        yield from _parts_of_function(value)
        return
    if isinstance(value, Mapping):
        parts = [(f"{path}[{_repr(key)}]", part) for key, part in list(value.items())[:_WIDTH]]
    elif isinstance(value, list | tuple):
        parts = [(f"{path}[{index}]", part) for index, part in enumerate(value[:_WIDTH])]
    elif isinstance(value, set | frozenset):
        # A set has no indices to name an element by.
        parts = [(f"an element of {path}", part) for part in list(value)[:_WIDTH]]
    else:
        parts = [
            (f"{path}.{name}", part)
            for name, part in list(getattr(value, "__dict__", {}).items())[:_WIDTH]
            if not isinstance(part, GetSetDescriptorType | MemberDescriptorType)  # of a class: made with it, never sent
        ]
    yield from ((name, user, part) for name, part in parts)


def _parts_of_function(fn: Any) -> Iterator[Part]:
    """What is sent with a function: what it closes over, the globals it names, its defaults, its object."""
    if isinstance(fn, functools.partial):
        yield from _parts_of_call(fn.func, fn.args, fn.keywords)
        return
    if inspect.ismethod(fn):
        yield f"self of {_name(fn)}", "", fn.__self__
        return
    if not inspect.isfunction(fn):
        return
    try:
        found = inspect.getclosurevars(fn)
    except ValueError:  # a variable of the closure has no value yet
        return
    for name, value in {**found.nonlocals, **found.globals}.items():
        if value is not fn:
            yield name, _name(fn), value
    for name, parameter in inspect.signature(fn).parameters.items():
        if parameter.default is not inspect.Parameter.empty:
            yield f"the default of {name}", "", parameter.default


def _failure(value: object, send: Callable[[Any], object]) -> Exception | None:
    try:
        send(value)
    except Exception as error:  # noqa: BLE001  # a learner's `__reduce__` may raise anything
        return error
    return None


def _sentence(error: Exception) -> str:
    return (str(error) or type(error).__name__).rstrip(".")


def _name(fn: object) -> str:
    while isinstance(fn, functools.partial):
        fn = fn.func
    # Of an object with a `__call__`, `__name__` may be anything.
    return fn.__name__ if isinstance(fn, FunctionType | MethodType | BuiltinFunctionType | type) else _short(fn)


def _short(value: object) -> str:
    text = _repr(value)
    return f"{text if len(text) <= 60 else text[:57] + '...'}" + ("" if value is None else f", {kind_of(value)}")


def _repr(value: object) -> str:
    try:
        return repr(value)
    except Exception:  # noqa: BLE001  # a learner's `__repr__` may raise anything
        return object.__repr__(value)
