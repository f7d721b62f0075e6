"""Wrapping functions of torch or of Python for a while.

Only other people's code is patched, and only here; our own tells its observers (`zerolab.runtime.observers`).
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import wraps
from typing import Any
from weakref import WeakKeyDictionary

import torch

_ended: WeakKeyDictionary[Callable[..., Any], tuple[Any, Any]] = WeakKeyDictionary()
"""Of each wrapper whose block is over: what it wrapped, and the owner that had only inherited that."""


@contextmanager
def replace(owners: Any, name: str, wrapper: Callable[..., Any]) -> Iterator[None]:
    """Calls `wrapper(original, *args, **keywords)` instead of a method or function of torch's, or of Python's.

    `owners` is the class or module that has it, or a list of modules where several have the same function. Whatever is
    there is wrapped, even another wrapper, and restored at the end; what was only inherited is inherited again. A
    wrapper that somebody else has wrapped meanwhile cannot be taken out: it stays, and from then on only passes calls
    on.
    """
    first, *others = owners if isinstance(owners, list) else [owners]
    # A method that came from a base class must not be left behind in the subclass.
    original, inherits = getattr(first, name), None if name in vars(first) else first
    places = [first, *(owner for owner in others if vars(owner).get(name) is original)]

    @wraps(original)
    def instead(*args: Any, **keywords: Any) -> Any:
        return wrapper(original, *args, **keywords)

    for owner in places:
        setattr(owner, name, instead)
    try:
        yield
    finally:
        wrapper, _ended[instead] = _pass_on, (original, inherits)
        for owner in places:
            _uncover(owner, name)


def _pass_on(original: Callable[..., Any], *args: Any, **keywords: Any) -> Any:
    return original(*args, **keywords)


def _uncover(owner: Any, name: str) -> None:
    """Takes wrappers whose block is over off what they wrap, down to one that is still needed or somebody else's."""
    while (outermost := vars(owner).get(name)) in _ended:
        original, inherits = _ended[outermost]
        if inherits is owner:
            delattr(owner, name)
        else:
            setattr(owner, name, original)


def before_others_communicate(begin: Callable[[], None], stack: ExitStack) -> None:
    """Calls `begin` once, at once or until `stack` is closed: before another thread than this one may communicate.

    That is one of Python's, or one of gloo's that calls back; not one of zerolab's own.
    """
    begun: dict[str, object] = {}

    def note(original: Callable[..., Any], owner: Any, *args: Any, **keywords: Any) -> Any:
        mine = object()
        if not _is_zerolabs(owner) and begun.setdefault("by", mine) is mine:
            begin()
        return original(owner, *args, **keywords)

    for other in threading.enumerate():
        if other is not threading.current_thread() and not isinstance(other, threading._DummyThread):
            note(lambda _: None, other)
    for kind, name in ((threading.Thread, "start"), (torch._C.Future, "then"), (torch._C.Future, "add_done_callback")):
        stack.enter_context(replace(kind, name, note))


def _is_zerolabs(owner: Any) -> bool:
    return isinstance(owner, threading.Thread) and owner.name.startswith("zerolab")


@contextmanager
def counting_callbacks(thread: Any) -> Iterator[None]:
    """Counts in `thread.called_back`, a thread's own, how many callbacks of torch's futures it is in.

    Chance decides which thread calls one: torch does at once where the future is there already. Those that are added
    within this block are counted, even after it.
    """

    def add(original: Callable[..., Any], future: Any, callback: Callable[..., Any]) -> Any:
        def counted(*given: Any) -> Any:
            thread.called_back += 1
            try:
                return callback(*given)
            finally:
                thread.called_back -= 1

        return original(future, counted)

    with replace(torch._C.Future, "then", add), replace(torch._C.Future, "add_done_callback", add):
        yield


def once_computed(
    args: Any,
    keywords: Any,
    begins: Callable[[], None],
    again: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> tuple[Any, Any] | None:
    """What a hook before an optimizer's step returns to have `begins` called when the gradients are there.

    That is now, but where the loop gives `step` a closure that computes them, as Lightning does: then after its first
    call. An optimizer that calls it several times, as LBFGS does, makes the other calls within its update, and each of
    them within `again()`.
    """
    closure = keywords.get("closure") or (args[1] if len(args) > 1 else None)
    if closure is None:
        begins()
        return None

    has_begun = False

    def computed() -> Any:
        nonlocal has_begun
        if has_begun:
            with again():
                return closure()
        result = closure()
        has_begun = True
        begins()
        return result

    if "closure" in keywords:
        return args, {**keywords, "closure": computed}
    return (args[0], computed, *args[2:]), keywords
