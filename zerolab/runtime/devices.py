"""Where ranks compute, and how many there may be: what was asked for, what is free, what the host allows.

`CUDA_VISIBLE_DEVICES` is respected and never rewritten: the ranks see what the kernel sees. `ZEROLAB_DEVICES` chooses
among what is visible (`ZEROLAB_DEVICES=0,2`, or `cpu`), `ZEROLAB_MAX_RANKS` limits the number of ranks of a cluster.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from zerolab.runtime import variables
from zerolab.runtime.machine import Card, cards, memory

RANK_BYTES = 60_000_000  # main memory that one more CPU rank takes for itself in a first small step; a test holds it
BASE_BYTES = 350_000_000  # the fork server with torch in it; the kernel is there already
CARD_BYTES_A_RANK = 2_000_000_000  # what must be free on a card for each rank on it before "auto" takes it
DEFAULT_RANKS = 4


class Choice(NamedTuple):
    """Where a cluster's ranks compute."""

    world_size: int
    gpus: tuple[int, ...]  # torch's numbers of the GPUs; none: the CPU
    notes: tuple[str, ...]  # what a person should know of it

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
    # Nobody asked for a default size, so it keeps to the host's limit instead of being refused.
    default = _default_ranks(gpus)
    size = world_size or min(default, variables.max_ranks() or default)
    check_limits(size)
    if 0 < len(gpus) < size:
        count = f"{len(gpus)} GPU{'s' * (len(gpus) > 1)}"
        notes = (*notes, f"{size} ranks share {count}: they communicate over gloo, not NCCL")
    return Choice(size, gpus[:size], notes)


def check_limits(world_size: int) -> None:
    """Raises ValueError for more ranks than `ZEROLAB_MAX_RANKS`, or than main memory holds."""
    allowed = variables.max_ranks()
    if allowed is not None and world_size > allowed:
        raise ValueError(
            f"world_size is {world_size}, and ZEROLAB_MAX_RANKS allows {allowed} on this machine; ask for fewer ranks"
        )
    check_memory(world_size, memory()[1])


def _gpus(device: str, world_size: int | None) -> tuple[tuple[int, ...], tuple[str, ...]]:
    named = variables.devices()
    # Before torch is imported: on the CPU nobody should wait for a driver.
    if device == "cpu" or (device == "auto" and named == ()):
        return (), ()
    import torch

    # From torch and not the driver: it has read CUDA_VISIBLE_DEVICES, and its numbers are what ranks use.
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    visible = chosen_of(count, named)
    if device == "cuda":  # asked for: only what cannot work is refused, not what may lack memory
        if not visible:
            raise ValueError(
                "device is 'cuda', but torch sees no GPU here; use device='cpu' or look at CUDA_VISIBLE_DEVICES"
                + (" and ZEROLAB_DEVICES" if named is not None else "")
            )
        check_usable({number: card for number, card in enumerate(cards()) if number in visible})
        return tuple(visible), ()
    return free_gpus(visible, dict(enumerate(cards())), world_size) if visible else ((), ())


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


def check_usable(chosen: Mapping[int, Card]) -> None:
    """Raises ValueError if ranks cannot use one of these cards, by its name."""
    for number, card in chosen.items():
        if reason := unusable(card):
            raise ValueError(f"GPU {number}, {card['name']}, {reason}; use device='cpu', or other GPUs")


def unusable(card: Card) -> str:
    """Why ranks cannot use a card; empty if they can."""
    if card["compute_mode"].startswith(("Exclusive", "Prohibited")):
        mode = card["compute_mode"]
        return f"is in compute mode {mode}, where ranks cannot share it (an administrator's nvidia-smi -c DEFAULT)"
    if card["mig"] == "Enabled":
        return "is cut into MIG slices, which ranks cannot talk across (an administrator's nvidia-smi -mig 0)"
    return ""


def free_gpus(
    visible: list[int], listed: Mapping[int, Card], world_size: int | None
) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """The visible GPUs with room for their share of ranks, and notes on those that are left out.

    Args:
        visible: torch's numbers.
        listed: the driver's description by torch's number; a GPU that it does not list is assumed to be free.
        world_size: number of ranks, None for the default.
    """
    gpus = [number for number in visible if number not in listed or not unusable(listed[number])]
    notes = [
        f"GPU {number}, {listed[number]['name']}, {unusable(listed[number])}: not used"
        for number in visible
        if number not in gpus
    ]
    while gpus:
        ranks = world_size or _default_ranks(gpus)
        needed = -(-ranks // len(gpus)) * CARD_BYTES_A_RANK  # on the card with the most ranks
        full = [number for number in gpus if number in listed and _free(listed[number]) <= needed]
        if not full:
            break
        # Without it the others get more ranks each, so they are checked again.
        worst = min(full, key=lambda number: _free(listed[number]))
        gpus.remove(worst)
        free = f"{_free(listed[worst]) / 1e9:.1f} GB free of the {needed / 1e9:.0f} GB that its ranks need"
        notes.append(f"GPU {worst}, {listed[worst]['name']}, has {free}: not used")
    if notes and not gpus:
        notes.append("so the ranks compute on the CPU; device='cuda' insists")
    return tuple(gpus), tuple(notes)


def _free(card: Card) -> int:
    # A card without memory of its own, such as a GB10, takes its tensors from the main memory.
    return card["memory_free"] if card["memory_total"] else memory()[1]


def _default_ranks(gpus: Sequence[int]) -> int:
    return len(gpus) if len(gpus) > 1 else DEFAULT_RANKS


def check_memory(world_size: int, available: int) -> None:
    """Raises ValueError for more ranks than main memory holds before they have trained anything."""
    # A lower bound: the model is not known yet.
    needed = BASE_BYTES + world_size * RANK_BYTES
    if needed > available:
        fit = max(0, (available - BASE_BYTES) // RANK_BYTES)
        raise ValueError(
            f"world_size is {world_size}: so many ranks need {needed / 1e9:.1f} GB of main memory before the first "
            f"model, and {available / 1e9:.1f} GB are free; "
            + (f"at most {fit} fit" if fit else "free some, or use a larger machine")
        )
