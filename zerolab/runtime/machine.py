"""What this machine has: cards as the driver lists them, main memory within the container's limit, cores, processes.

Nothing here takes memory on a GPU, and nothing imports torch.
"""

import contextlib
import os
import re
import subprocess
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path
from typing import TypedDict

from zerolab.runtime import nvml

CARD_FIELDS = ("index", "uuid", "name", "memory.total", "memory.free", "compute_mode", "mig.mode.current")
MEBIBYTE = 2**20
CGROUP = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")  # which control groups this process is in
_LIMIT_FILES = (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes"))  # v2, v1
_QUOTA_FILES = (("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us"))  # the same


class Card(TypedDict):
    """One GPU as its driver describes it; memory in bytes, 0 where it shares the main memory."""

    index: int
    uuid: str
    name: str
    memory_total: int
    memory_free: int
    compute_mode: str
    mig: str
    capability: str  # such as 9.0; empty if the driver is too old to tell


def ask_driver(*arguments: str) -> str:
    """What `nvidia-smi` answers; empty where there is no driver, or one that does not answer."""
    answers, text = _asked(*arguments)
    return text if answers else ""


def _asked(*arguments: str) -> tuple[bool, str]:
    """Whether `nvidia-smi` answers, and what it prints, or why it could not be asked."""
    try:
        asked = subprocess.run(
            ["nvidia-smi", *arguments],  # noqa: S607  (wherever the box keeps it)
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=20,
            check=False,
        )
    except FileNotFoundError:
        return False, "nvidia-smi was not found, so there is no NVIDIA driver"
    except (OSError, subprocess.SubprocessError) as error:
        return False, f"nvidia-smi does not answer ({type(error).__name__})"
    return asked.returncode == 0, asked.stdout


def complaint() -> str:
    """Why the driver lists no card, in nvidia-smi's words if it has any; without a full stop."""
    answers, text = _asked("-L")
    said = next((line.strip() for line in text.splitlines() if line.strip()), "").rstrip(".")
    if answers:
        return "nvidia-smi lists no GPU"
    return said if said.startswith(("there is no", "nvidia-smi")) else f"nvidia-smi fails: {said or 'without a word'}"


def driver_version() -> str:
    """The driver's version, such as 580.82.07; empty where none answers."""
    return ask_driver("--query-gpu=driver_version", "--format=csv,noheader").partition("\n")[0].strip()


def cards() -> list[Card]:
    """The cards that `nvidia-smi` lists and `CUDA_VISIBLE_DEVICES` leaves visible, in the order in which torch counts.

    torch counts as `CUDA_VISIBLE_DEVICES` lists, so entry `i` is its device `i`; of a box with different models that
    is certain only with `CUDA_DEVICE_ORDER=PCI_BUS_ID`.
    """
    chosen, found = os.environ.get("CUDA_VISIBLE_DEVICES"), all_cards()
    if chosen is None:  # empty means none, but unset means all
        return found
    # As CUDA reads the variable: numbers or beginnings of UUIDs, up to the first that names no card, or several; and
    # none at all if one is named twice.
    visible: list[Card] = []
    for part in (part.strip() for part in chosen.split(",")):
        # A slice of a card is named MIG-...; here it stands for its card, which is then refused by name.
        is_slice = part.startswith("MIG-")
        named = [_slice(part, found[0])] if is_slice and found else [card for card in found if _names(part, card)]
        if len(named) != 1:
            break
        if named[0] in visible:
            return []
        visible += named
    return visible


def _slice(uuid: str, card: Card) -> Card:
    """A card with the memory of a slice of it; with its own where the driver does not tell."""
    total, free = nvml.memory(uuid) or (card["memory_total"], card["memory_free"])
    return {**card, "uuid": uuid, "memory_total": total, "memory_free": free}


def all_cards() -> list[Card]:
    """The cards that `nvidia-smi` lists, visible or not."""
    answer = ask_driver(f"--query-gpu={','.join(CARD_FIELDS)}", "--format=csv,noheader,nounits")
    lines = [line for line in answer.splitlines() if line.count(",") == len(CARD_FIELDS) - 1]
    # Asked for by itself: older drivers do not know this field, and would answer nothing at all.
    capabilities = ask_driver("--query-gpu=compute_cap", "--format=csv,noheader").split() if lines else []
    return [
        _card(line, capability) for line, capability in zip_longest(lines, capabilities[: len(lines)], fillvalue="")
    ]


def _card(line: str, capability: str) -> Card:
    index, uuid, name, total, free, mode, mig = (field.strip() for field in line.split(","))
    return Card(
        index=int(index),
        uuid=uuid,
        name=name,
        memory_total=_number(total) * MEBIBYTE,
        memory_free=_number(free) * MEBIBYTE,
        compute_mode=mode,
        mig=mig,
        capability=capability,
    )


def _number(field: str) -> int:
    return int(field) if field.isdigit() else 0


def _names(part: str, card: Card) -> bool:
    return part == str(card["index"]) or (part.startswith("GPU-") and card["uuid"].startswith(part))


def links(topology: str) -> dict[str, list[str]]:
    """How cards reach each other, from `nvidia-smi topo -m`: the kind of link, such as NV18 or SYS, and the pairs."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", topology)  # the header is underlined
    rows = [line.split() for line in text.splitlines() if re.match(r"\s*GPU\d+\s", line)]
    # The header begins with a GPU's name, too, but has no links.
    grid = [row for row in rows if any(re.fullmatch(r"X|NV\d+|PIX|PXB|PHB|NODE|SYS", cell) for cell in row[1:])]
    found: dict[str, list[str]] = {}
    for first, row in enumerate(grid):
        for second in range(first + 1, len(grid)):
            found.setdefault(row[1 + second], []).append(f"{first}-{second}")
    return found


def memory() -> tuple[int, int]:
    """Total and available bytes of main memory, within the tightest limit of this process's control groups."""
    page = os.sysconf("SC_PAGE_SIZE")
    total = page * os.sysconf("SC_PHYS_PAGES")
    available = _available(total)
    for limit, used in _limits():
        total = min(total, limit)
        available = min(available, max(0, limit - used))
    return total, available


def _limits() -> Iterator[tuple[int, int]]:
    """Limit and use of this process's control group and of all above it, such as a container's."""
    for folder in _groups("memory"):
        for limit, used in _LIMIT_FILES:
            try:
                allowed, taken = (folder / limit).read_text().strip(), int((folder / used).read_text())
                reclaimable = _reclaimable(folder)
            except (OSError, ValueError):
                continue
            if allowed.isdigit():
                yield int(allowed), max(0, taken - reclaimable)


def _groups(kind: str) -> Iterator[Path]:
    """The folders of this process's control groups of a kind, and of all above them."""
    try:
        lines = MEMBERSHIP.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        number, kinds, path = line.split(":", 2)
        if number == "0" or kind in kinds.split(","):
            home = CGROUP if number == "0" else CGROUP / kind
            own = home / path.lstrip("/")
            yield from (folder for folder in (own, *own.parents) if folder.is_relative_to(home))


def _reclaimable(folder: Path) -> int:
    """Bytes of cached files: they count as used, but the kernel frees them when memory is needed."""
    figures = dict(line.split(" ", 1) for line in (folder / "memory.stat").read_text().splitlines())
    return int(figures.get("total_inactive_file", figures.get("inactive_file", 0)))


def _available(total: int) -> int:
    """Available bytes as Linux counts them; elsewhere the total."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return total
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable")), total)


def process_fields(process: Path) -> list[str]:
    """What `/proc` says of a process or a thread, from its state on; empty if it has ended, or there is no /proc."""
    with contextlib.suppress(OSError):
        return (process / "stat").read_text(errors="replace").rpartition(")")[2].split()
    return []


def cores() -> int:
    """Cores that this process may use, within the tightest quota of its control groups."""
    known = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min([known, *_quotas()]))


def _quotas() -> Iterator[int]:
    """Whole cores that this process's control group, and all above it, may keep busy."""
    for folder in _groups("cpu"):
        for names in _QUOTA_FILES:
            with contextlib.suppress(OSError, ValueError):
                time, period = " ".join((folder / name).read_text() for name in names).split()
                if time.isdigit():  # neither `max` nor -1
                    yield int(time) // int(period)
