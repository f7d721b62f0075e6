"""Who waits for an exchange's future, or asks until it is over, has waited for it: the recorder sees `wait()` alone."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist

from zerolab.recording.patches import replace


class Futures:
    """The exchanges behind futures, each of which gets a `wait()` where its future does."""

    def __init__(self) -> None:
        self._works: WeakKeyDictionary[Any, list[dist.Work]] = WeakKeyDictionary()

    def install(self, stack: ExitStack) -> None:
        """Follows them until `stack` is closed."""
        native: Any = torch._C  # noqa: SLF001  (where a Work's futures are from, and what waits for several)
        for owner, name, wrapper in (
            (dist.Work, "get_future", lambda original, work: self._of([work], original(work))),
            (dist.Work, "is_completed", self._asked),
            (native.Future, "then", lambda original, each, *args: self._of(self._behind(each), original(each, *args))),
            (native.Future, "wait", self._awaited),
            (native.Future, "done", self._asked),
            (native, "_collect_all", self._collected),  # below `collect_all` and `wait_all`
        ):
            stack.enter_context(replace(owner, name, wrapper))

    def _of(self, works: list[dist.Work], future: Any) -> Any:
        self._works[future] = works
        return future

    def _behind(self, thing: Any) -> list[dist.Work]:
        return [thing] if isinstance(thing, dist.Work) else self._works.get(thing, [])

    def _collected(self, original: Callable[..., Any], futures: list[Any]) -> Any:
        return self._of([work for future in futures for work in self._behind(future)], original(futures))

    def _awaited(self, original: Callable[..., Any], future: Any) -> Any:
        for work in self._behind(future):
            work.wait()
        return original(future)

    def _asked(self, original: Callable[..., Any], thing: Any) -> Any:
        over = original(thing)
        for work in self._behind(thing) if over else []:
            work.wait()
        return over


@contextmanager
def futures_followed() -> Iterator[None]:
    """Within it, waiting for a future waits for its exchanges."""
    with ExitStack() as stack:
        Futures().install(stack)
        yield
