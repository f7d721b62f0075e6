"""The words for collectives, whatever a backend calls them, and what each must send. No torch."""

import re
from collections.abc import Sequence
from functools import lru_cache

from zerolab.names import ROOT
from zerolab.recording.events import Phase

GATHERS = ("all_gather", "gather")  # the input is one rank's share of the whole
SCATTERS = ("reduce_scatter", "scatter")  # the output is one rank's share of the whole
PHASES_OF: dict[str, Phase] = {
    "all_gather": "gather",
    "gather": "gather",
    "broadcast": "gather",
    "all_reduce": "reduce",
    "reduce_scatter": "reduce",
    "reduce": "reduce",
}
_LONG_WORDS = ("reduce_scatter", "all_reduce", "all_gather", "all_to_all")
_WORDS = {"monitored": "barrier", "shard": "all_to_all", "isend": "send", "irecv": "recv"}  # `shard_dim_alltoall`
# What FSDP2 tells the profiler, such as `FSDP::all_gather (layers.0)`.
_LABEL = re.compile(r"FSDP::(?:all_gather|post_backward_reduce)(?: \((?P<module>[^)]+)\))?")


@lru_cache(maxsize=256)
def operation(name: str) -> str:
    """The word for a c10d operation: `_allgather_base_` is an `all_gather`, and so is `allgather_coalesced_`."""
    bare, head = name.replace("_", ""), name.lstrip("_").split("_")[0]
    return next((word for word in _LONG_WORDS if bare.startswith(word.replace("_", ""))), _WORDS.get(head, head))


def logical_bytes(op: str, nbytes: int, ranks: int) -> int:
    """What one rank must send for a collective over a buffer of `nbytes`: (N-1)/N of it, twice for all_reduce.

    A send sends everything, a receive and a barrier nothing. For a gather and a scatter, see `shares_sent`.
    """
    if op in ("recv", "barrier"):
        return 0
    if op == "send":
        return nbytes
    return (2 if op == "all_reduce" else 1) * nbytes * (ranks - 1) // ranks


def unequal_elements(op: str, sizes: Sequence[int], rank: int) -> int:
    """Elements that `rank` must send if the ranks' parts have these `sizes`: the others' parts, or its own to each."""
    return sum(sizes) - sizes[rank] if op == "reduce_scatter" else sizes[rank] * (len(sizes) - 1)


def shares_sent(op: str, ranks: int, *, is_root: bool) -> int:
    """How many shares a rank sends: a gather's root none and the others theirs, a scatter's root each other's."""
    return (ranks - 1) * is_root if op == "scatter" else int(not is_root)


@lru_cache(maxsize=1024)  # a step has a hundred labels, the same in each
def module_of(label: str) -> str | None:
    """The module that a label names as the one that something is sent for; None for all other labels."""
    found = _LABEL.fullmatch(label)
    return (found["module"] or ROOT) if found else None
