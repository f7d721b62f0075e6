"""Sees every operation that torch executes in this thread, autograd's included, and the collectives of all threads."""

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache, partial
from threading import get_ident
from typing import Any, Literal, NamedTuple, Self

import torch
from torch._subclasses import FakeTensor
from torch.utils._python_dispatch import (
    TorchDispatchMode,
    _get_current_dispatch_mode_stack,
    is_traceable_wrapper_subclass,
    is_traceable_wrapper_subclass_type,
)

from zerolab.engines.taken import Taken
from zerolab.recording.c10d import communicates, tensors_in
from zerolab.recording.log import Log
from zerolab.recording.patches import replace
from zerolab.recording.storages import storages_of

_graph_task = torch._C._current_graph_task_id  # which backward this thread is in; -1 for none
_NUMBER_DTYPES: dict[type, torch.dtype] = {
    float: torch.float64,
    int: torch.int64,
    bool: torch.bool,
    complex: torch.complex128,
}
_LIFTING = "lift_fresh"
_SHOWING = ("resize_", "resize_as_", "set_")
_MOST_OF_A_NUMBER = 2 * torch.complex128.itemsize  # bytes

_AUTOCASTS = {"cpu": torch._C.DispatchKey.AutocastCPU, "cuda": torch._C.DispatchKey.AutocastCUDA}

_LEVEL = "ADInplaceOrView"  # of torch's dispatcher, where c10d has no kernels
_BELOW = torch._C._dispatch_keyset_full_after(torch._C.DispatchKey.ADInplaceOrView)

Communicate = Callable[..., Any]
"""Called with an operation that communicates, its arguments, its keywords, and perhaps what executes it."""

# Several where recordings are nested; made anew at each change, since another thread may be going through it.
_watching: tuple[tuple[Communicate, Callable[[], bool]], ...] = ()

Effect = Literal["none", "fresh", "lifts", "shows", "communicates"]
"""What an operation does to the ledger: nothing, for it is a view or writes into what is there; its outputs are new
tensors; it hands over one that was made elsewhere; it may give an existing tensor another size, or show one that was
never seen; it asks torch.distributed."""


class Kind(NamedTuple):
    """What is known about an operation; found out once for each."""

    effect: Effect
    second_is_tensor: bool  # a number may take its place, of which torch then makes a tensor
    execute: Any  # what the operation itself calls: this saves a Python frame
    func: Any  # kept, so that no other operation gets its `id`


def leave_to_python() -> None:
    """Tells torch's compiler, if it is there, not to compile the watcher along with a model that is being compiled."""
    if "torch._dynamo.trace_rules" in sys.modules:
        _leave_to_python(sys.modules["torch._dynamo.trace_rules"])


@cache  # each time its list of what to skip grows, and the pattern that it makes of the list takes milliseconds
def _leave_to_python(compiler: Any) -> None:
    for watcher in ("zerolab.recording", "zerolab.runtime", "zerolab.difference", "zerolab.trace"):
        compiler.add(watcher)


@contextmanager
def beside_compiler() -> Iterator[None]:
    """Torch's compiler leaves our hooks alone, also those that begin or end a recording within a compiled call."""
    leave_to_python()
    with replace(torch, "compile", _compiled), replace(torch._C, "_ForceDispatchKeyGuard", _in_agreement):
        yield


def _compiled(original: Any, *args: Any, **keywords: Any) -> Any:
    """In place of `torch.compile`: a script may be the first to import the compiler."""
    result = original(*args, **keywords)
    leave_to_python()
    return result


@contextmanager
def _in_agreement(original: Any, *keys: Any) -> Iterator[None]:
    """In place of the guard with which a compiled call restores, when it returns, how torch dispatched before it.

    A mode that began or ended within the call would be skipped from there on, or asked for in vain.
    """
    before = _get_current_dispatch_mode_stack()
    try:
        with original(*keys):
            yield
    finally:
        if before != (after := _get_current_dispatch_mode_stack()):
            with _lifted(after), TorchDispatchMode():
                pass  # putting on the first mode and taking off the last one tells torch's dispatcher


@contextmanager
def _lifted(modes: list[TorchDispatchMode]) -> Iterator[None]:
    """Takes the uppermost modes off and puts them back, without what their classes do on entering and leaving."""
    others = [mode for mode in modes if not hasattr(mode, "_mode_key")]  # torch's own lie below, each in its own place
    for mode in reversed(others):
        TorchDispatchMode.__exit__(mode, None, None, None)
    try:
        yield
    finally:
        for mode in others:
            TorchDispatchMode.__enter__(mode)


class Watch(TorchDispatchMode):
    """While active, tells the ledger about new storages, and hands whatever communicates to `communicate`.

    It lies beneath the modes that are there, but for a simulation's, which executes what it has seen (`above`).
    """

    def __init__(self, log: Log, communicate: Communicate, *, above: bool = False) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch has no annotation there
        self._log, self._ledger, self._communicate, self._above = log, log.ledger, communicate, above
        self._kinds: dict[int, Kind] = {}  # by `id`: an operation's own hash is slow
        self._wraps: dict[Any, bool] = {}  # whether one of an operation's tensor types stands for other tensors
        self._casts = {device for device in _AUTOCASTS if torch.is_autocast_enabled(device)}  # beneath a mode none is
        leave_to_python()

    def __enter__(self) -> Self:
        # Beneath a mode of the script's, whose end takes off the top one.
        with _lifted([] if self._above else _get_current_dispatch_mode_stack()):
            super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *_: object) -> None:
        stack = _get_current_dispatch_mode_stack()
        if self in stack:  # else another thread ends it
            with _lifted(stack[stack.index(self) + 1 :]):
                super().__exit__(None, None, None)  # type: ignore[no-untyped-call]

    def is_here(self) -> bool:
        """Whether what this thread executes passes through this mode, or would if modes were not disabled here."""
        return get_ident() == self._ledger.thread or self in _get_current_dispatch_mode_stack()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """False, or torch would import its compiler at the first operation and ask it before each one."""
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Executes the operation; called a thousand times per step, so it does no more than it must."""
        if types and (self._wraps[types] if types in self._wraps else self._holds_others(types)):
            return NotImplemented  # such a tensor stands for others: let it ask for what it needs, and see that
        # Between two operations the model's data fills the processor's caches, so each line costs more here than in a
        # tight loop: most operations (views, in-place writes) return as early as possible.
        log = self._log
        log.operations += 1
        kind = self._kinds.get(id(func)) or self._kinds.setdefault(id(func), self._kind_of(func))
        effect, second_is_tensor, execute, _ = kind
        if effect == "communicates":
            return self._communicate(func, args, kwargs or {})
        result = execute(*args, **kwargs) if kwargs else execute(*args)
        if effect != "none":
            ledger = self._ledger
            ledger.operation = func
            if not log.in_backward and _graph_task() != -1:
                log.enter_backward()
            if result.__class__ is not torch.Tensor:
                self._see_all(result)
            elif effect == "fresh":
                ledger.see(result)
            else:
                self._show(result, effect)
        if second_is_tensor and len(args) > 1 and args[1].__class__ in _NUMBER_DTYPES:
            host = self._ledger.host
            if host.total + _MOST_OF_A_NUMBER > host.here.total:  # else it cannot raise a peak
                self._ledger.count_temporary(func, _bytes_of_number(args[1], args[0]))
        return result

    def note_autocast(self, original: Callable[..., Any], *args: Any, **keywords: Any) -> Any:
        """In place of `torch.set_autocast_enabled`, with which each autocast of the script's begins and ends."""
        result = original(*args, **keywords)
        if get_ident() == self._ledger.thread:
            self._casts = {device for device in _AUTOCASTS if torch.is_autocast_enabled(device)}
        return result

    def _kind_of(self, func: Any) -> Kind:
        kind = _kind_of(func)
        return kind._replace(execute=partial(self._execute_composite, func)) if _is_composite(func) else kind

    def _execute_composite(self, func: Any, *args: Any, **keywords: Any) -> Any:
        """Executes what torch writes with other operations, in its own way: taken apart here it might differ.

        So its parts are not seen; but where the operation is a view at times, as `to` and `reshape` are, so is a copy.
        """
        with ExitStack() as as_unwatched:
            # Beneath a mode nothing is cast for autocast any more. Where autograd is off, these parts are still to be.
            for device in self._casts if torch.is_inference_mode_enabled() else ():
                as_unwatched.enter_context(torch._C._SetExcludeDispatchKeyGuard(_AUTOCASTS[device], False))
            result = func(*args, **keywords)
        given = {each._cdata for tensor in tensors_in((args, *keywords.values())) for each in storages_of(tensor)}
        self._ledger.operation = func
        self._see_all([x for x in tensors_in(result) if given.isdisjoint(each._cdata for each in storages_of(x))])
        return result

    def _show(self, result: torch.Tensor, effect: Effect) -> None:
        storages = storages_of(result)
        # What `torch.tensor` has made can be resized; `from_numpy` shows what another allocator holds, or a file.
        if effect == "lifts" and not all(storage.resizable() for storage in storages):
            self._ledger.note_existing(result)
            return
        self._ledger.see(result)
        for storage in storages:
            self._ledger.resized(storage)

    def _holds_others(self, types: Any) -> bool:
        self._wraps[types] = any(is_traceable_wrapper_subclass_type(each) or issubclass(each, Taken) for each in types)
        return self._wraps[types]

    def _see_all(self, result: Any) -> None:
        for tensor in tensors_in(result):
            # A tensor that wraps others has no memory of its own; DTensor's own fake ones, of whole tensors, have none.
            if not (isinstance(tensor, FakeTensor) or is_traceable_wrapper_subclass(tensor)):
                self._ledger.see(tensor)


def _is_composite(func: Any) -> bool:
    """Whether torch writes the operation with others, as it does `linear`.

    Modes see such a one only beneath autograd, which takes it apart: in inference mode, and in a tensor class's own
    dispatch.
    """
    if not isinstance(func, torch._ops.OpOverload) or not torch._C._dispatch_has_kernel(func.name()):
        return False  # torch has operations of its own that no dispatcher knows, such as those for sizes
    return torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd")


def _kind_of(func: Any) -> Kind:
    schema, execute = getattr(func, "_schema", None), getattr(func, "_op", func)
    if schema is None:
        return Kind("fresh", second_is_tensor=False, execute=func, func=func)
    name = schema.name.split("::")[1]
    second = str(schema.arguments[1].type) if len(schema.arguments) > 1 else ""
    effect: Effect = "none"
    if communicates(func):
        effect = "communicates"
    elif any(value.alias_info is None for value in schema.returns):
        effect = "fresh"
    elif name == _LIFTING:
        effect = "lifts"
    elif name in _SHOWING or any(argument.is_out for argument in schema.arguments):
        effect = "shows"
    second_is_tensor = second == "Tensor" and not schema.arguments[1].kwarg_only
    return Kind(effect, second_is_tensor, execute, func)


def _bytes_of_number(number: object, other: object) -> int:
    """`x / 2.0` makes a tensor of the number, and another in the dtype of `x`; both live as long as the operation."""
    # On a GPU the kernel takes the number as an argument.
    dtype = other.dtype if isinstance(other, torch.Tensor) and (other.is_cpu or other.is_meta) else None
    made = _NUMBER_DTYPES[type(number)]
    return made.itemsize + (dtype.itemsize if dtype is not None and dtype != made else 0)


def watch_collectives(communicate: Communicate, stack: ExitStack, *, but: Callable[[], bool] = bool) -> None:
    """Hands each operation of `c10d` to `communicate` until `stack` is closed, whichever thread it is in, and no other.

    A thread in which `but()` holds is left out. A `Watch` runs Python for each of a step's thousand operations, so a
    GPU may have to wait for the host; and it sees one thread, while a communication hook may go on in one of gloo's.
    But every request to a process group is a `c10d` operation, whoever makes it: Python, the reducer of C++ DDP, or a
    functional collective. A kernel of ours, at a level of the dispatcher where c10d has none, sees exactly those and
    passes them on. It misses whatever skips that level: tensors made in inference mode, and what a dispatch mode or a
    tensor's own dispatch asks for in turn, as DTensor does when an operation makes it redistribute its arguments.
    """
    global _watching  # noqa: PLW0603  # see there
    _register()
    mine = communicate, but
    _watching += (mine,)
    stack.callback(_leave, mine)


def _leave(mine: tuple[Communicate, Callable[[], bool]]) -> None:
    global _watching  # noqa: PLW0603
    _watching = tuple(each for each in _watching if each is not mine)


@cache
def _register() -> torch.library.Library:
    """One for all recordings, since torch keeps only the newest kernel of an operation.

    It stays for as long as the process lives, and passes on what it gets: another thread may be about to call a kernel,
    and would call what is no longer there.
    """
    library = torch.library.Library("c10d", "IMPL")
    for name in torch._C._dispatch_get_all_op_names():
        namespace, operation = name.split("::")
        if namespace == "c10d":
            overload = getattr(torch.ops.c10d, operation.split(".")[0]).default
            library.impl(overload, _watched(overload), _LEVEL, with_keyset=True)
    return library


def _watched(overload: Any) -> Callable[..., Any]:
    def through(communicate: Communicate, execute: Any, keyset: Any, *args: Any, **keywords: Any) -> Any:
        return communicate(overload, args, keywords, partial(execute, keyset))

    def kernel(keyset: Any, *args: Any, **keywords: Any) -> Any:
        execute = overload.redispatch
        for communicate, but in _watching:
            if not but():
                execute = partial(through, communicate, execute)
        return execute(keyset & _BELOW, *args, **keywords)

    return kernel
