"""Wrapping functions of torch or of Python for a while.

Only other people's code is patched, and only here; our own tells its observers (`zerolab.runtime.observers`).
No torch is imported: the site's pages check answers without it.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import wraps
from typing import Any
from weakref import WeakKeyDictionary

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
