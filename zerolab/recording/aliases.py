"""When a collective releases its tensors: gloo's threads do so some time after the wait for it has returned.

How long after depends on the scheduler and on the GIL, so chance would decide whether a buffer that the rank has
dropped is still alive at the next event, or even at the peak. A collective therefore gets aliases in place of its
tensors, and the ledger waits until gloo's thread has dropped them before it adds up the live bytes.

An alias is not another view of the tensor. Of a large tensor, gloo keeps only views of parts, which it makes itself
and which outlive whatever it was given; and torch gives up the GIL between the end of a tensor's Python object and
that of its memory. An alias has a storage of its own over the same memory, shared by all views of the alias.
"""

import ctypes
import weakref
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any

import torch

LONGEST = 1.0  # seconds; what is still alive then is kept by something other than gloo's thread


class Lent(ctypes.c_byte * 2**40):  # type: ignore[misc]  # its base is made on the fly
    """The memory of a tensor behind an alias. It keeps the tensor alive until the last view of the alias is gone.

    It owns no bytes: it begins where the tensor's storage begins, and its nominal length of 2**40 means nothing.
    """

    tensor: torch.Tensor | None
    gone: "SimpleQueue[None]"

    def __del__(self) -> None:
        self.tensor = None  # may free its storage, which tells the ledger: only then is the alias gone
        self.gone.put(None)


class Releases:
    """The collectives that have been waited for, but whose tensors gloo's thread may not have dropped yet."""

    def __init__(self) -> None:
        self.pending: list[tuple[weakref.ref[Any], list[SimpleQueue[None]]]] = []

    def add(self, work: Any, aliases: "list[SimpleQueue[None]]") -> None:
        """Notes that the wait for `work` has returned; its tensors stay as long as `work` is referred to."""
        if aliases:
            self.pending.append((weakref.ref(work), aliases))

    def wait(self) -> None:
        """Waits until everything that only gloo still refers to is freed."""
        for place, (work, aliases) in reversed(list(enumerate(self.pending))):
            if work() is None:
                del self.pending[place]
                for gone in aliases:
                    with suppress(Empty):
                        gone.get(timeout=LONGEST)


def with_aliases(arguments: Any, aliases: "list[SimpleQueue[None]]") -> Any:
    """The arguments of a collective, with an alias for each tensor in main memory.

    Appends a queue to `aliases` for each, which gets an item once the alias and all its views are gone.
    """
    if isinstance(arguments, (tuple, list)):
        return type(arguments)(with_aliases(one, aliases) for one in arguments)
    if type(arguments) is not torch.Tensor or arguments.device.type != "cpu" or arguments.layout is not torch.strided:
        return arguments
    storage = arguments.untyped_storage()
    if not storage.nbytes():
        return arguments
    lent = Lent.from_address(storage.data_ptr())
    lent.tensor, lent.gone = arguments.detach(), SimpleQueue()
    aliases.append(lent.gone)
    whole = torch.frombuffer(lent, dtype=arguments.dtype, count=storage.nbytes() // arguments.itemsize)
    return whole.as_strided(arguments.size(), arguments.stride(), arguments.storage_offset())
