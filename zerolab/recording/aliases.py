"""When a collective releases its tensors: gloo's threads do so some time after the wait for it has returned.

How long after depends on the scheduler and on Python's lock. So whether a buffer that the rank has dropped is still
alive at the next event, or even at the peak, would be left to chance. A collective therefore gets aliases in place of
its tensors, and the ledger waits until gloo's thread has dropped them before it adds up the live bytes.
"""

import weakref
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any

import torch

LONGEST = 1.0  # seconds; what is still alive then is kept by something other than gloo's thread


class Alias(weakref.ref[torch.Tensor]):
    """A tensor that only a collective refers to, so it is freed when the collective lets go of it.

    `gone` then gets the reference. Its `put` is called directly, in C: with a line of Python in between, the thread
    could lose Python's lock after the alias is gone but before its storage is.
    """

    __slots__ = ("gone",)

    gone: "SimpleQueue[Alias]"


class Releases:
    """The collectives that have been waited for, and whose tensors gloo's thread may not have dropped yet."""

    def __init__(self) -> None:
        self.pending: list[tuple[weakref.ref[Any], list[Alias]]] = []

    def add(self, work: Any, aliases: list[Alias]) -> None:
        """Notes that the wait for `work` has returned; its tensors stay as long as `work` is referred to."""
        if aliases:
            self.pending.append((weakref.ref(work), aliases))

    def wait(self) -> None:
        """Waits until everything that only gloo still refers to is free."""
        for place, (work, aliases) in reversed(list(enumerate(self.pending))):
            if work() is None:
                del self.pending[place]
                for alias in aliases:
                    with suppress(Empty):
                        alias.gone.get(timeout=LONGEST)


def with_aliases(arguments: Any, aliases: list[Alias]) -> Any:
    """The arguments of a collective with an alias for each tensor in main memory; they are appended to `aliases`."""
    if isinstance(arguments, (tuple, list)):
        return type(arguments)(with_aliases(one, aliases) for one in arguments)
    if type(arguments) is not torch.Tensor or arguments.device.type != "cpu" or arguments.layout is not torch.strided:
        return arguments
    alias = arguments.detach()
    gone: SimpleQueue[Alias] = SimpleQueue()
    reference = Alias(alias, gone.put)
    reference.gone = gone
    aliases.append(reference)
    return alias
