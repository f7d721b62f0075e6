"""Where ranks compute, and how many there may be: what was asked for, what is free, what the host allows.

`CUDA_VISIBLE_DEVICES` is respected and never rewritten: the ranks see what the kernel sees. `ZEROLAB_DEVICES` chooses
among what is visible (`ZEROLAB_DEVICES=0,2`, or `cpu`), `ZEROLAB_MAX_RANKS` limits the number of ranks of a cluster.
"""

import math
import os
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from zerolab.runtime import variables
from zerolab.runtime.machine import Card, all_cards, cards, complaint, memory

RANK_BYTES = 60_000_000  # main memory that one more CPU rank takes for itself in a first small step; a test checks it
BASE_BYTES = 350_000_000  # the fork server with torch in it; the kernel is there already
CARD_BYTES_A_RANK = 2_000_000_000  # what must be free on a card for each rank on it before "auto" takes it
LEAST_CONTEXT_BYTES = 2**28  # the least that a rank takes on a card before its first tensor
DEFAULT_RANKS = 4
_NO_ROOM = "has {free:.1f} GB free of the {needed:.0f} GB that its ranks need"
_NO_ROOM_TO_BEGIN = (
    "has {free:.1f} GB free, and {ranks} ranks on it take {needed:.1f} GB before their first tensor (`nvidia-smi` "
    "lists whose processes fill it)"
)
NCCL = "cpu:gloo,cuda:nccl"
SEVERAL_RANKS_A_GPU = (2, 30)  # the first NCCL in which ranks may share a GPU, where NCCL_MULTI_RANK_GPU_ENABLE is 1


class Choice(NamedTuple):
    """Where a cluster's ranks compute."""

    world_size: int
    gpus: tuple[int, ...]  # torch's numbers of the GPUs; none: the CPU
    backend: str  # of the process group
    notes: tuple[str, ...]  # what the user should know about it

    @property
    def device(self) -> str:
        """`cuda` or `cpu`."""
        return "cuda" if self.gpus else "cpu"


def choose(world_size: int | None, device: str) -> Choice:
    """Decides on GPUs and ranks for a new cluster.

    Raises:
        ValueError: more ranks than allowed or than fit, no GPU for `device="cuda"`, or a card that ranks cannot use.
    """
    gpus, notes = _gpus(device, world_size)
    # Nobody asked for the default size, so it is cut to the host's limit instead of being refused.
    default = _default_ranks(gpus)
    size = world_size or min(default, variables.max_ranks() or default)
    check_limits(size)
    backend, note = _backend(size, gpus)
    return Choice(size, gpus[:size], backend, (*notes, *note))


def _backend(size: int, gpus: Sequence[int]) -> tuple[str, tuple[str, ...]]:
    """The process group's backend, and a note if ranks share GPUs or there is no NCCL."""
    if not gpus:
        return "gloo", ()
    import torch
    import torch.distributed as dist

    if not dist.is_nccl_available():
        return "gloo", ("this torch is built without NCCL: ranks communicate over gloo, through main memory",)
    if size <= len(gpus):
        return NCCL, ()
    count = f"{len(gpus)} GPU{'s' * (len(gpus) > 1)}"
    times = "they take turns, so seconds measured there mean nothing"
    if os.environ.get("NCCL_MULTI_RANK_GPU_ENABLE") == "1" and torch.cuda.nccl.version()[:2] >= SEVERAL_RANKS_A_GPU:
        return NCCL, (f"{size} ranks share {count}, over NCCL as NCCL_MULTI_RANK_GPU_ENABLE asks; {times}",)
    return "gloo", (f"{size} ranks share {count}: they communicate over gloo, not NCCL; {times}",)


def check_limits(world_size: int) -> None:
    """Raises ValueError for more ranks than `ZEROLAB_MAX_RANKS`, or than main memory holds before they have trained."""
    allowed = variables.max_ranks()
    if allowed is not None and world_size > allowed:
        raise ValueError(
            f"world_size is {world_size}, and ZEROLAB_MAX_RANKS allows {allowed} on this machine; ask for fewer ranks"
        )
    # A lower bound: the model is not known yet.
    needed, available = BASE_BYTES + world_size * RANK_BYTES, memory()[1]
    if needed > available:
        fit = max(0, (available - BASE_BYTES) // RANK_BYTES)
        raise ValueError(
            f"world_size is {world_size}: so many ranks need {needed / 1e9:.1f} GB of main memory before the first "
            f"model, and {available / 1e9:.1f} GB are free; "
            + (f"at most {fit} fit" if fit else "free some, or use a larger machine")
        )


def visible_gpus() -> list[int]:
    """Torch's numbers of the GPUs that ranks may use here; none if this torch cannot use any."""
    import torch

    # From torch, not the driver: torch has read CUDA_VISIBLE_DEVICES, and ranks use its numbers.
    return chosen_of(torch.cuda.device_count() if torch.cuda.is_available() else 0, variables.devices())


def _gpus(device: str, world_size: int | None) -> tuple[tuple[int, ...], tuple[str, ...]]:
    named = variables.devices()
    # Before torch is imported: on the CPU nobody should wait for a driver.
    if device == "cpu" or (device == "auto" and named == ()):
        return (), ()
    from zerolab.runtime import drivers

    visible, listed = visible_gpus(), dict(enumerate(cards()))
    if device == "cuda":  # explicitly asked for: only what cannot work is refused, not what may lack memory
        if not visible:
            raise ValueError(f"device is 'cuda', but torch sees no GPU here: {drivers.why_no_gpu()}; use device='cpu'")
        check_usable(visible, listed, world_size)
        return tuple(visible), ()
    if visible:
        return free_gpus(visible, listed, world_size)
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES", "unset").strip() in ("", "-1")  # so somebody wants the CPU
    if hidden or not (all_cards() or "lost" in complaint()):
        return (), ()
    return (), (f"the ranks compute on the CPU: {drivers.why_no_gpu()}",)


def chosen_of(count: int, named: tuple[int, ...] | None) -> list[int]:
    """The numbers of the GPUs to look at: all that torch sees, or those that `ZEROLAB_DEVICES` names of them.

    Raises ValueError for one that is not there, unless there is none at all.
    """
    if named is None or count == 0:
        return list(range(count))
    if missing := [number for number in named if number >= count]:
        raise ValueError(
            f"ZEROLAB_DEVICES names GPU {missing[0]}, and torch sees {count} here, counted from 0; "
            "they are those that CUDA_VISIBLE_DEVICES leaves, in its order"
        )
    return list(named)


def check_usable(visible: Sequence[int], listed: Mapping[int, Card], world_size: int | None) -> None:
    """Raises ValueError if ranks cannot use one of the visible GPUs, by its name; arguments as of `free_gpus`."""
    if worst := _worst(visible, listed, world_size, LEAST_CONTEXT_BYTES, _NO_ROOM_TO_BEGIN):
        number, reason = worst
        raise ValueError(f"GPU {number}, {listed[number]['name']}, {reason}; use device='cpu', or other GPUs")


def unusable(card: Card, ranks: int = 1, gpus: int = 1) -> str:
    """Why `ranks` on one card, in a cluster that uses so many `gpus`, cannot use it; empty if they can."""
    mode = card["compute_mode"]
    if mode.startswith("Prohibited") or (mode.startswith("Exclusive") and ranks > 1):
        return f"is in compute mode {mode}, where ranks cannot share it (an administrator's nvidia-smi -c DEFAULT)"
    if card["mig"] == "Enabled" and gpus > 1:
        return (
            "is split into MIG slices, and NCCL cannot connect ranks on different slices (choose one: "
            "CUDA_VISIBLE_DEVICES=MIG-..., as nvidia-smi -L lists them)"
        )
    from zerolab.runtime import drivers

    return drivers.without_kernels(card["capability"])


def free_gpus(
    visible: Sequence[int], listed: Mapping[int, Card], world_size: int | None
) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """The visible GPUs that ranks can use and that have room for their share of them, and notes on those left out.

    `listed` has the driver's description by torch's number; a GPU that it does not list is assumed to be free.
    """
    gpus, notes = list(visible), []
    # With one GPU fewer, the others get more ranks each, so they are checked again.
    while gpus and (worst := _worst(gpus, listed, world_size, CARD_BYTES_A_RANK, _NO_ROOM)):
        number, reason = worst
        gpus.remove(number)
        notes.append(f"GPU {number}, {listed[number]['name']}, {reason}: not used")
    if notes and not gpus:
        notes.append("so the ranks compute on the CPU; device='cuda' insists")
    return tuple(gpus), tuple(notes)


def _worst(
    gpus: Sequence[int], listed: Mapping[int, Card], world_size: int | None, rank_bytes: int, no_room: str
) -> tuple[int, str] | None:
    """A GPU without which ranks do better, and the reason: one that cannot be used, else the fullest if it is too full.

    `rank_bytes` must be free on a card for each rank on it; `no_room` says that they are not.
    """
    ranks = -(-(world_size or _default_ranks(gpus)) // len(gpus))  # on the GPU that has the most of them
    known = [(number, listed[number]) for number in gpus if number in listed]
    for number, card in known:
        if reason := unusable(card, ranks, len(gpus)):
            return number, reason
    free, number = min(((_free(card), number) for number, card in known), default=(math.inf, 0))
    needed = ranks * rank_bytes
    return None if free >= needed else (number, no_room.format(free=free / 1e9, ranks=ranks, needed=needed / 1e9))


def _free(card: Card) -> int:
    # A card without memory of its own, such as a GB10, takes its tensors from the main memory.
    return card["memory_free"] if card["memory_total"] else memory()[1]


def _default_ranks(gpus: Sequence[int]) -> int:
    return len(gpus) if len(gpus) > 1 else DEFAULT_RANKS
