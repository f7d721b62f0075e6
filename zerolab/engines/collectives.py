"""The three collectives of ZeRO, in place on a flat of N equal parts: reduce_scatter, all_gather, all_reduce.

Each starts the exchange and returns it; `wait()` finishes it, and until then neither the flat nor anything that lies
in it may be freed, sends included. A rank's own part is the one at its rank's place. The first two also take parts of
unequal sizes, as whole matrices make them; a rank may then have none.

On gloo the parts go straight to the ranks that need them: a buffer of B bytes costs each rank (N-1)/N B in each
direction, which is what the papers count. gloo's own reduce_scatter moves twice that, because it is an all_reduce
of which most is thrown away. Every other backend does it well and is used as it is. gloo sends from main memory: a flat
on a GPU that ranks share goes through a copy there.

NCCL executes the collectives of one group one after the other. There reductions of all ranks go over a second
group: else a gather, for which the next unit waits, would stand behind a reduction, for which nobody does yet.
"""

import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache, wraps
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch import nn

from zerolab.runtime.observers import Call, told, told_of_wait

# One count a process: engines that share a group share it, too, and their messages must not meet.
_exchanges_started: Counter[str] = Counter()
_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor  # renamed in torch 2.13
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
# By the group of all ranks; torch ends both when the ranks leave.
_second_groups: WeakKeyDictionary[dist.ProcessGroup, dist.ProcessGroup] = WeakKeyDictionary()


class Exchange:
    """A collective under way: what it waits for, and what is left to do when everything has arrived."""

    call: Call | None = None  # as observers know it, until it is waited for

    def __init__(self, works: "Sequence[dist.Work | Exchange]", then: Callable[[], object] = lambda: None) -> None:
        self._works, self._then = list(works), then

    @told_of_wait
    def wait(self) -> None:
        """Returns when this rank's part is done: all that it sends has left, all that it receives is in place.

        Once it has failed, because a peer is gone, it fails at once each time.
        """
        while self._works:
            work = self._works.pop(0)  # first, as Ctrl-C may end the wait: gloo tells once only that a work is done
            try:
                work.wait()
            except Exception:
                self._works.insert(0, work)
                raise
        self._then()
        self._then = lambda: None  # the receive buffers go with the closure


Collective = Callable[..., Exchange]


def _through_main_memory(collective: Collective) -> Collective:
    """Lets gloo, which cannot read a GPU's memory, work on a copy that is brought back at the end."""

    @wraps(collective)
    def start(flat: torch.Tensor, group: dist.ProcessGroup | None, name: str, *sizes: Sequence[int]) -> Exchange:
        if not (flat.is_cuda and _backend(group, flat.device) == "gloo"):  # NCCL reads a GPU's memory itself
            return collective(flat, group, name, *sizes)
        copy = flat.cpu()
        return Exchange([collective(copy, group, name, *sizes)], lambda: flat.copy_(copy))

    return start


@told("reduce_scatter")
@_through_main_memory
def reduce_scatter(
    flat: torch.Tensor, group: dist.ProcessGroup | None = None, name: str = "", sizes: Sequence[int] | None = None
) -> Exchange:
    """Starts adding up each part on its owner: after `wait()` this rank's part holds the sum over all ranks.

    The other parts keep what they held. Sends (N-1)/N of the flat; direct exchange needs as much to receive into.

    Args:
        flat: shape [N * part], contiguous; over gloo the first parts may have an element more than the last.
        group: the ranks that take part; None for all.
        name: what travels; ranks that disagree on the order never take one thing for another.
        sizes: elements of each rank's part; None for equal ones.
    """
    ranks = _members(group)
    if _backend(group, flat.device) != "gloo":
        second = _for_reductions(group, flat.device)
        if sizes is not None:
            return _one_by_one(dist.reduce, _cut(flat, ranks, sizes), second)
        return Exchange([_reduce_scatter(_own_part(flat, ranks), flat, group=second, async_op=True)])
    rank, parts = ranks.rank(), _cut(flat, ranks, sizes)
    mine = parts[rank]  # in place: no second flat to hold the sum
    # What arrives cannot lie in the flat: its other parts are on their way to their owners.
    received = {peer: torch.empty_like(mine) for peer in _peers(ranks)}

    def add_in_rank_order() -> None:  # so that the sum does not depend on which message came first
        before = [received[peer] for peer in range(rank)]
        for other in before[1:]:
            before[0].add_(other)
        # Two numbers have the same sum in either order, to the last bit: so it can be added up in place.
        for other in [*before[:1], *(received[peer] for peer in range(rank + 1, len(parts)))]:
            mine.add_(other)

    return Exchange(_start(parts, received, ranks, f"reduce_scatter {name}"), add_in_rank_order)


@told("all_gather")
@_through_main_memory
def all_gather(
    flat: torch.Tensor, group: dist.ProcessGroup | None = None, name: str = "", sizes: Sequence[int] | None = None
) -> Exchange:
    """Starts sending this rank's part to everyone: after `wait()` the flat holds every rank's part.

    Sends (N-1)/N of the flat, and receives straight into it. Arguments as for `reduce_scatter`.
    """
    ranks = _members(group)
    if _backend(group, flat.device) != "gloo":
        if sizes is not None:
            return _one_by_one(dist.broadcast, _cut(flat, ranks, sizes), group)
        return Exchange([_all_gather(flat, _own_part(flat, ranks), group=group, async_op=True)])
    parts = _cut(flat, ranks, sizes)  # views: what arrives lands in the flat itself
    mine = parts[ranks.rank()]
    received = {peer: parts[peer] for peer in _peers(ranks)}
    return Exchange(_start([mine] * len(parts), received, ranks, f"all_gather {name}"))


@told("all_reduce")
@_through_main_memory
def all_reduce(flat: torch.Tensor, group: dist.ProcessGroup | None = None, name: str = "") -> Exchange:
    """Starts adding up the whole flat on every rank: a reduce_scatter, then an all_gather of the sums.

    Sends 2 (N-1)/N of the flat, shape [N * part]. Arguments as for `reduce_scatter`, but parts are equal.
    """
    if _backend(group, flat.device) != "gloo":
        second = _for_reductions(group, flat.device)
        return Exchange([dist.all_reduce(flat, group=second, async_op=True)])
    sums = reduce_scatter(flat, group, name)

    def gather_the_sums() -> None:
        sums.wait()
        all_gather(flat, group, name).wait()

    # The second half starts at wait(): no rank can know earlier that its sums are complete.
    return Exchange([], gather_the_sums)


def _members(group: dist.ProcessGroup | None) -> dist.ProcessGroup:
    everybody: Any = dist.group.WORLD  # torch's type of it allows for None, before there are ranks
    return group or everybody


def _one_by_one(collective: Any, parts: Sequence[torch.Tensor], group: dist.ProcessGroup | None) -> Exchange:
    """For each rank that has a part a `reduce` to it or a `broadcast` from it, as NCCL itself takes unequal parts."""
    owned = zip(parts, dist.get_process_group_ranks(_members(group)), strict=True)
    return Exchange([collective(part, rank, group=group, async_op=True) for part, rank in owned if part.numel()])


def _cut(flat: torch.Tensor, ranks: dist.ProcessGroup, sizes: Sequence[int] | None) -> Sequence[torch.Tensor]:
    """Each rank's part of the flat: views, never copies."""
    return torch.split(flat, list(sizes or _equal_sizes(flat.numel(), ranks.size())))


def _own_part(flat: torch.Tensor, ranks: dist.ProcessGroup) -> torch.Tensor:
    """This rank's part of N equal ones: alone, as views of a thousand others take longer than to start the exchange."""
    return flat.narrow(0, ranks.rank() * (flat.numel() // ranks.size()), flat.numel() // ranks.size())


@cache
def _equal_sizes(numel: int, ranks: int) -> list[int]:
    each, more = divmod(numel, ranks)
    return [each + (rank < more) for rank in range(ranks)]


def has_streams(device: torch.device) -> bool:
    """Whether collectives of what lies on a device run on a stream, as NCCL's do, and `wait()` has another stream wait.

    Over gloo this process waits. A simulated rank sends nothing, and acts as the name of its group says.
    """
    return _backend(None, device) not in ("gloo", "fake")


def granule(model: nn.Module) -> int:
    """Of how many elements a shard should be a multiple: NCCL's kernels copy 16 bytes at a time, gloo copies any."""
    # 16 bytes in the narrowest dtype that travels, which has two; in fp32 they are 32.
    return 8 if any(has_streams(parameter.device) for parameter in model.parameters()) else 1


def _for_reductions(group: dist.ProcessGroup | None, device: torch.device) -> dist.ProcessGroup | None:
    """The group over which to reduce among these ranks; that of all ranks is made when they first reduce."""
    everybody = _members(None)
    # A part of the ranks cannot make one without the others: torch names a group by how many each rank has by then.
    if group not in (None, everybody) or not has_streams(device):
        return group
    if everybody not in _second_groups:
        timeout = everybody._get_backend(device).options._timeout  # noqa: SLF001  (it has no other name)
        _second_groups[everybody] = dist.new_group(timeout=timeout, backend=dist.get_backend())
    return _second_groups[everybody]


def _peers(ranks: dist.ProcessGroup) -> list[int]:
    """The other ranks, the next one first, so that not all ranks send to rank 0 at once."""
    rank, world_size = ranks.rank(), ranks.size()
    # Each rank is then some peer's first, second, third: every link is busy from the start.
    return [(rank + distance) % world_size for distance in range(1, world_size)]


def _backend(group: dist.ProcessGroup | None, device: torch.device) -> str:
    """The backend that sends what lies on a device; a group that was made without its name may have several."""
    name = str(dist.get_backend(group))
    several = name == "undefined" or ":" in name
    return str(_members(group)._get_backend(device).name()) if several else name  # noqa: SLF001  (it has no other name)


def _start(
    send: Sequence[torch.Tensor], receive: dict[int, torch.Tensor], ranks: dist.ProcessGroup, what: str
) -> list[dist.Work]:
    """Sends `send[peer]` to each peer and receives `receive[peer]` from it.

    The tag says what travels and how often it has travelled, so that the messages of two exchanges cannot mix: not
    when they overlap, and not when the ranks start them in different orders.

    Sends come first: gloo announces every send and every receive to the other side, and a receive that finds its send
    announced saves both sides a message and a wake-up (measured on 4 ranks and 2 cores: a quarter of an exchange's
    processor time at 2 MB a message, half of it at 0.4 MB).
    """
    # Ranks count by name, not in all: a rank that starts B before A still matches the others' A and B.
    key = f"{ranks.group_name} {what}"
    _exchanges_started[key] += 1
    # A tag has 31 bits, and every rank must come to the same one: `hash` is salted in each process.
    tag = zlib.crc32(f"{key} {_exchanges_started[key]}".encode()) & 0x7FFFFFFF
    # The group's own methods: `dist.isend` and `irecv` look at the group anew for each message, in 15 calls of Python.
    # What has no elements is neither sent nor waited for.
    sends = [ranks.send([send[peer]], peer, tag) for peer in receive if send[peer].numel()]
    return sends + [ranks.recv([tensor], peer, tag) for peer, tensor in receive.items() if tensor.numel()]
