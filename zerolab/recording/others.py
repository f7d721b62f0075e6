"""Other threads than the recorder's: when they may communicate, and which calls come from them by chance."""

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from zerolab.recording.patches import replace

ELSEWHERE = (
    "the thread {name!r} trains, too: a recording sees only the passes and updates of the thread in which it began, so "
    "begin it in the thread whose training you want to see"
)


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
