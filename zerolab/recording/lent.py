"""When a collective lets go of its tensors: gloo's threads do so some time after the wait for it has returned.

How long after is up to the scheduler and Python's lock. A buffer that the rank has dropped would therefore be alive or
not at the next event, and even at the peak, as chance has it. Whoever adds up the live bytes waits until gloo's thread
is done with it: it has nothing else left to do.
"""

import weakref
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any

import torch

LONGEST = 1.0  # seconds; whoever still has the tensors then is no thread of gloo's, but keeps them


class Lent(weakref.ref[torch.Tensor]):
    """An alias of a tensor that a collective got in its place: nobody else has it, so it goes when the collective does.

    `gone` gets the reference then. Its `put` is called as it is, in C: with a line of Python in between, the thread
    could lose Python's lock when the alias has gone and its storage has not.
    """

    __slots__ = ("gone",)

    gone: "SimpleQueue[Lent]"


class Leaving:
    """The collectives that were waited for, and whose tensors may still be held by a thread that is done with them."""

    def __init__(self) -> None:
        self.works: list[tuple[weakref.ref[Any], list[Lent]]] = []

    def add(self, work: Any, lent: list[Lent]) -> None:
        """Notes that the wait for `work` has returned; as long as somebody has it, its tensors stay."""
        if lent:
            self.works.append((weakref.ref(work), lent))

    def wait(self) -> None:
        """Waits until what nobody but gloo has is free."""
        for place, (work, lent) in reversed(list(enumerate(self.works))):
            if work() is None:
                del self.works[place]
                for one in lent:
                    with suppress(Empty):
                        one.gone.get(timeout=LONGEST)


def lend(arguments: Any, lent: list[Lent]) -> Any:
    """The arguments of a collective with an alias in the place of each tensor in main memory, which `lent` gets."""
    if isinstance(arguments, (tuple, list)):
        return type(arguments)(lend(one, lent) for one in arguments)
    if type(arguments) is not torch.Tensor or arguments.device.type != "cpu" or arguments.layout is not torch.strided:
        return arguments
    alias = arguments.detach()
    gone: SimpleQueue[Lent] = SimpleQueue()
    reference = Lent(alias, gone.put)
    reference.gone = gone
    lent.append(reference)
    return alias
