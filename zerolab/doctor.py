"""What this box has that the lessons can use, and what each missing thing would give.

`zerolab doctor` prints it; `zerolab doctor --json` writes it for programs. Nothing here starts a rank or touches a
GPU: asking a driver for its memory must not cost a shared box any of it.
"""

import importlib.metadata
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypedDict

GPU_FIELDS = ("index", "name", "memory.total", "memory.free", "compute_mode", "mig.mode.current")
CHROMIUM_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
LESSON_RANKS = 4
LESSON_BYTES = 2_000_000_000  # main memory of a kernel with four ranks and one lesson; a test of the runtime holds it
CONTEXT_PROBE = """
import torch
torch.zeros(1, device="cuda")
print(torch.cuda.mem_get_info()[0])
"""


class Gpu(TypedDict):
    """One card as its driver describes it; memory in bytes."""

    index: int
    name: str
    memory_total: int
    memory_free: int
    compute_mode: str
    mig: str


class Report(TypedDict):
    """What `zerolab doctor --json` writes; memory in bytes, None where a thing is not there."""

    zerolab: str
    python: str
    system: str
    torch: str | None
    cuda: str | None
    gpus: list[Gpu]
    cores: int
    memory_total: int
    memory_available: int
    chromium: str | None
    deepspeed: str | None
    seats: int
    limited_by: str


def find_chromium() -> Path | None:
    """Finds Chromium or Chrome: `ZEROLAB_CHROMIUM`, then one on the path, then playwright's own; None without one.

    Raises:
        FileNotFoundError: `ZEROLAB_CHROMIUM` names a file that is not there.

    """
    named = os.environ.get("ZEROLAB_CHROMIUM")
    if named:
        if not Path(named).is_file():
            raise FileNotFoundError(f"ZEROLAB_CHROMIUM is {named!r}, which is no file; correct it or unset it")
        return Path(named)
    for name in CHROMIUM_NAMES:
        found = shutil.which(name)
        if found:
            return Path(found)
    return _playwrights_own()


def _playwrights_own() -> Path | None:
    """The browser that `playwright install chromium` keeps, if there is one."""
    if importlib.util.find_spec("playwright") is None:
        return None
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        path = Path(playwright.chromium.executable_path)
    return path if path.is_file() else None


def version_of(package: str) -> str | None:
    """The installed version of a package, None if it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def gpus() -> list[Gpu]:
    """The cards that `nvidia-smi` lists and `CUDA_VISIBLE_DEVICES` leaves visible; empty where there is no driver."""
    command = ["nvidia-smi", f"--query-gpu={','.join(GPU_FIELDS)}", "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout  # noqa: S603
    except (OSError, subprocess.SubprocessError):
        return []
    return [card for card in map(_gpu, answer.splitlines()) if _visible(card["index"])]


def _gpu(line: str) -> Gpu:
    """One line of the driver's answer; cards that share the main memory name none of their own, and count as 0."""
    index, name, total, free, mode, mig = (field.strip() for field in line.split(","))
    mebibyte = 2**20
    return Gpu(
        index=int(index),
        name=name,
        memory_total=_number(total) * mebibyte,
        memory_free=_number(free) * mebibyte,
        compute_mode=mode,
        mig=mig,
    )


def _number(field: str) -> int:
    return int(field) if field.isdigit() else 0


def _visible(index: int) -> bool:
    """Whether `CUDA_VISIBLE_DEVICES` leaves a card visible; one that names cards by UUID is left to torch."""
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is None or not all(part.strip().lstrip("-").isdigit() for part in chosen.split(",") if part):
        return True
    return str(index) in {part.strip() for part in chosen.split(",")}


def memory() -> tuple[int, int]:
    """Total and available bytes of main memory, within the limit of the container if it has one."""
    page = os.sysconf("SC_PAGE_SIZE")
    total = page * os.sysconf("SC_PHYS_PAGES")
    available = _available(total)
    limit, used = Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")
    if limit.is_file() and limit.read_text().strip().isdigit():
        allowed = int(limit.read_text())
        if allowed < total:
            total, available = allowed, min(available, max(0, allowed - int(used.read_text())))
    return total, available


def _available(total: int) -> int:
    """Available bytes as Linux counts them; elsewhere the total, for want of the same figure."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return total
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable")), total)


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def context_bytes(card: Gpu) -> int:
    """What one more process costs this card before it holds a tensor of any size, measured by starting one.

    Other processes that come or go in these seconds are counted too, so it is never taken as less than 256 MiB.
    """
    chosen = os.environ | {"CUDA_VISIBLE_DEVICES": str(card["index"]), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    command = [sys.executable, "-c", CONTEXT_PROBE]
    try:
        answer = subprocess.run(command, env=chosen, capture_output=True, text=True, timeout=60, check=True).stdout  # noqa: S603
    except subprocess.SubprocessError:
        return card["memory_total"]  # a card that no process can open seats nobody
    return max(2**28, card["memory_free"] - int(answer))


def seats(cards: list[Gpu], available: int, context: Callable[[Gpu], int] = context_bytes) -> tuple[int, str]:
    """How many people can run a four-rank lesson at once, and which memory sets the limit, "gpu" or "main".

    Args:
        cards: the visible GPUs; without one the ranks run on the CPU.
        available: bytes of main memory that are free.
        context: bytes that one rank costs a card before its first tensor.

    """
    by_memory = available // LESSON_BYTES
    by_cards = sum(card["memory_free"] // context(card) for card in cards) // LESSON_RANKS if cards else by_memory
    return min(by_memory, by_cards), "gpu" if by_cards < by_memory else "main"


def examine() -> Report:
    """Looks at this box. Takes a second or two, most of it torch's import."""
    import torch

    cards = gpus()
    total, available = memory()
    count, place = seats(cards, available)
    chromium = find_chromium()
    return Report(
        zerolab=version_of("zerolab") or "not installed",
        python=platform.python_version(),
        system=f"{platform.system()} {platform.machine()}",
        torch=torch.__version__,
        cuda=torch.version.cuda,
        gpus=cards,
        cores=cores(),
        memory_total=total,
        memory_available=available,
        chromium=str(chromium) if chromium else None,
        deepspeed=version_of("deepspeed"),
        seats=count,
        limited_by=place,
    )


def describe(report: Report) -> str:
    """The report for a person: one line a thing, with the remedy for what is missing."""
    gigabyte = 1e9
    cuda = f"CUDA {report['cuda']}" if report["cuda"] else "CPU build"
    cards = [f"{card['name']}, {card['memory_free'] / gigabyte:.1f} GB free" for card in report["gpus"]]
    lines = {
        "zerolab": report["zerolab"],
        "python": f"{report['python']} ({sys.executable})",
        "torch": f"{report['torch']} ({cuda})",
        "system": report["system"],
        "gpus": "; ".join(cards) or "none; every lesson also runs on the CPU",
        "cores": str(report["cores"]),
        "memory": f"{report['memory_available'] / gigabyte:.1f} GB free of {report['memory_total'] / gigabyte:.1f} GB",
        "chromium": report["chromium"] or "none; only the browser tests and make notebooks need one",
        "deepspeed": report["deepspeed"] or 'none; pip install -c constraints.txt "deepspeed" for lesson 08',
        "seats": f"{report['seats']} people with {LESSON_RANKS} ranks each, by its {report['limited_by']} memory",
    }
    return "\n".join(f"{name:<10} {value}" for name, value in lines.items())
