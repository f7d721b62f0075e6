"""What the host of a workshop runs first: what this box has, whether ranks work on it, and how to repair what does not.

`zerolab doctor` prints one line per check, `zerolab doctor --json` writes them for programs. The exit status is 1 if an
essential check fails. Of GPUs it measures what one more process costs, and lets ranks train on them for a moment.
"""

import importlib.metadata
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypedDict

from zerolab.lessons.workspace import check_jupyters_folder
from zerolab.player.browser import find_chromium
from zerolab.runtime import devices, machine, trial, variables
from zerolab.runtime.machine import Card

LESSON_RANKS = 4
LESSON_BYTES = 2_000_000_000  # main memory of a kernel with four ranks and one lesson; tests of the runtime enforce it
SHARED_BYTES = {"cpu": 2**26, "cuda": 2**29}  # of /dev/shm: NCCL keeps its buffers there, ranks on the CPU use none
SCRATCH_BYTES = 100_000_000
OLDEST_PYTHON, NEWEST_PYTHON, OLDEST_TORCH = (3, 11), (3, 13), (2, 11)
ESSENTIAL = ("Python", "torch", "ranks")  # the checks without which no lesson runs
CONTEXT_PROBE = """
import torch
torch.zeros(1, device="cuda")
print(torch.cuda.mem_get_info()[0])
"""


class Check(TypedDict):
    """One line of the report; the remedy is empty if all is well."""

    name: str
    ok: bool
    essential: bool  # whether lessons need it
    found: str
    remedy: str


def _chromium() -> tuple[Path | None, str]:
    """The browser, or why there is none: a wrong variable must not hide the other checks."""
    try:
        return find_chromium(), ""
    except FileNotFoundError as error:
        return None, str(error)


def version_of(package: str) -> str | None:
    """The installed version of a package, None if it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def context_bytes(card: Card) -> int:
    """What one more process costs this card before its first tensor, measured by starting one.

    Processes that start or end meanwhile would disturb the measurement, so it is never less than 256 MiB.
    """
    chosen = os.environ | {"CUDA_VISIBLE_DEVICES": card["uuid"]}
    command = [sys.executable, "-c", CONTEXT_PROBE]
    try:
        answer = subprocess.run(command, env=chosen, capture_output=True, text=True, timeout=60, check=True).stdout  # noqa: S603
    except subprocess.SubprocessError:
        return card["memory_total"]  # no process can open this card, so nobody can use it
    return max(devices.LEAST_CONTEXT_BYTES, card["memory_free"] - int(answer))


def seats(
    cards: list[Card], available: int, cores: int, context: Callable[[Card], int] = context_bytes
) -> tuple[int, str]:
    """How many people can run a four-rank lesson at once, and the limit: "main memory", "cores" or "GPU memory".

    Without `cards` ranks run on the CPU. `available` is bytes of free main memory, `context` the bytes of a card that a
    rank takes before its first tensor. A person needs a core, which four ranks share.
    """
    limits = {"main memory": available // LESSON_BYTES, "cores": cores}
    usable = [card for card in cards if card["memory_total"] and not devices.unusable(card, LESSON_RANKS)]
    if usable:
        limits["GPU memory"] = sum(card["memory_free"] // context(card) for card in usable) // LESSON_RANKS
    scarcest = min(limits, key=lambda name: limits[name])
    return limits[scarcest], scarcest


def examine() -> dict[str, Any]:
    """What `zerolab doctor --json` writes. Takes seconds, most of them to import torch and to start four ranks.

    `checks` are `Check`s. Memory is in bytes; what is not there is None.
    """
    cards, links = machine.cards(), machine.links(machine.ask_driver("topo", "-m"))
    total, available = machine.memory()
    cores = machine.cores()
    count, limited_by = seats(cards, available, cores)
    chromium, no_chromium = _chromium()
    versions = _torch_versions()
    checks = [
        check_python(sys.version_info[:2]),
        check_torch(versions),
        check_gpus(cards, versions),
        *([check_links(links)] if len(cards) > 1 else []),
        check_memory(total, available),
        check_shared_memory(_free("/dev/shm"), "cuda" if cards else "cpu"),  # noqa: S108  (looked at, never written)
        check_scratch(),
        check_seats(count, limited_by, cores),
        check_ranks(),
        *check_ranks_on_gpus(),
        check_jupyter(version_of("jupyterlab"), _jupyters_folder()),
        check_browser(chromium, no_chromium),
        check_deepspeed(version_of("deepspeed")),
    ]
    return {
        "ok": all(check["ok"] for check in checks if check["essential"]),
        "checks": checks,
        "zerolab": version_of("zerolab") or "not installed",
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "torch": versions[0],
        "cuda": versions[1],
        "gpus": cards,
        "links": links,  # from a kind of link between GPUs, such as NV18 or SYS, to pairs such as 0-1
        "cores": cores,
        "memory_total": total,
        "memory_available": available,
        "chromium": str(chromium) if chromium else None,
        "deepspeed": version_of("deepspeed"),
        "seats": count,
        "limited_by": limited_by,
    }


def describe(report: Mapping[str, Any]) -> str:
    """The report as text: one line per check, and below it the remedy if the check failed."""
    lines = [f"zerolab {report['zerolab']} on {report['system']}"]
    for check in report["checks"]:
        word = "ok" if check["ok"] else "FAILS" if check["essential"] else "note"
        lines.append(f"{word:<6}{check['name']:<15}{check['found']}")
        if check["remedy"]:
            lines.append(" " * 21 + check["remedy"])
    missing = ", ".join(check["name"] for check in report["checks"] if check["essential"] and not check["ok"])
    lines.append(f"No lesson runs before this is repaired: {missing}" if missing else "Lessons run here.")
    return "\n".join(lines)


# --- the checks ---------------------------------------------------------------------------------------------------


def _check(name: str, ok: bool, found: str, remedy: str = "") -> Check:
    return Check(name=name, ok=ok, essential=name in ESSENTIAL, found=found, remedy="" if ok else remedy)


def check_python(version: tuple[int, ...]) -> Check:
    """Whether this Python is supported."""
    known = OLDEST_PYTHON <= version <= NEWEST_PYTHON
    found = f"{'.'.join(map(str, version))} ({sys.executable})"
    return _check("Python", known, found, "take 3.11 to 3.13: make env PYTHON=python3.12")


def _torch_versions() -> tuple[str | None, str | None]:
    """The versions of torch and of its CUDA; None for what is missing or cannot be imported."""
    try:
        import torch
        import torch.distributed as dist
    except (ImportError, OSError):  # OSError: one of its libraries does not load
        return None, None
    usable = dist.is_available() and dist.is_gloo_available()
    return (torch.__version__ if usable else None), torch.version.cuda


def check_torch(versions: tuple[str | None, str | None]) -> Check:
    """Whether torch is there, new enough, and built with distributed and gloo."""
    version, cuda = versions
    remedy = "install it: make env, or pip install -c constraints.txt torch"
    if version is None:
        return _check("torch", False, "none that can be imported with gloo", remedy)
    numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    found = f"{version} ({f'CUDA {cuda}' if cuda else 'CPU build'})"
    return _check("torch", numbers >= OLDEST_TORCH, found, f"older than 2.11; {remedy}")


def check_gpus(cards: list[Card], versions: tuple[str | None, str | None]) -> Check:
    """Whether ranks can use the GPUs; lessons run as well on a box without any."""
    if not cards:
        return _check("GPUs", True, "none; every lesson runs on the CPU")
    found = "; ".join(f"{card['name']}, {card['memory_free'] / 1e9:.1f} GB free" for card in cards)
    if versions[1] is None:
        return _check("GPUs", False, found, "torch is a CPU build and cannot use them: make env TORCH=cuda")
    if not devices.visible_gpus():
        from zerolab.runtime import drivers

        return _check("GPUs", variables.devices() == (), found, drivers.why_no_gpu())
    refused = [
        f"GPU {number} {reason}"
        for number, card in enumerate(cards)
        if (reason := devices.unusable(card, LESSON_RANKS, len(cards)))
    ]
    return _check("GPUs", not refused, found, "; ".join(refused))


def check_links(links: dict[str, list[str]]) -> Check:
    """How the GPUs are connected: nothing to repair, but it explains the speed."""
    found = ", ".join(f"{kind}: {len(pairs)} pairs" for kind, pairs in sorted(links.items()))
    fast = bool(links) and all(kind.startswith("NV") for kind in links)
    slow = "not all GPUs are joined by NVLink: expect collectives to take longer"
    return _check("links", fast, found or "not reported by the driver", slow)


def check_memory(total: int, available: int) -> Check:
    """Whether one lesson fits: a kernel and four ranks."""
    lesson = f"a lesson takes up to {LESSON_BYTES / 1e9:g} GB, {LESSON_BYTES / LESSON_RANKS / 1e9:g} for each rank"
    found = f"{available / 1e9:.1f} GB free of {total / 1e9:.1f} GB; {lesson}"
    return _check("memory", available >= LESSON_BYTES, found, "close other programs, or use Cluster(world_size=2)")


def _free(folder: str) -> int | None:
    """Free bytes in a folder's file system; None where there is no such folder."""
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return None


def check_shared_memory(free: int | None, device: str) -> Check:
    """Whether /dev/shm holds what NCCL keeps there."""
    if free is None:
        return _check("shared memory", True, "no /dev/shm on this system, and none is needed")
    found = f"{free / 1e6:,.0f} MB free in /dev/shm"
    return _check("shared memory", free >= SHARED_BYTES[device], found, "start the container with --shm-size=1g")


def check_scratch() -> Check:
    """Whether the folder for temporary files has room: ranks need none, JupyterLab does."""
    try:
        folder = tempfile.gettempdir()
    except FileNotFoundError:
        return _check("temp folder", False, "no folder can be written to", "make room in /tmp, or set TMPDIR")
    free = _free(folder) or 0
    found = f"{free / 1e9:.1f} GB free in {folder}"
    return _check("temp folder", free >= SCRATCH_BYTES, found, "make room there, or set TMPDIR")


def check_seats(count: int, limited_by: str, cores: int) -> Check:
    """How many people can work at the same time."""
    people = "1 person" if count == 1 else f"{count} people"
    sets = "sets" if limited_by.endswith("memory") else "set"
    found = f"{people} at once, {LESSON_RANKS} ranks each; {limited_by} {sets} the limit (this box has {cores} cores)"
    return _check("seats", count > 0, found, f"too little {limited_by} for one person")


def check_ranks() -> Check:
    """Whether four real ranks start here and all-reduce a tensor, as in every lesson."""
    started = time.monotonic()
    try:
        from zerolab.runtime.cluster import Cluster

        with Cluster(LESSON_RANKS, device="cpu") as cluster:
            sums = cluster.run(_add_up)
    except ValueError as error:  # refused before anything started: a variable forbids it, or there is too little memory
        remedy = f"lessons start {LESSON_RANKS} ranks: change that setting, or free some memory"
        return _check("ranks", False, str(error), remedy)
    except Exception as error:  # noqa: BLE001  (whatever it is, the host should read it here, not in a traceback)
        remedy = "ranks meet over the loopback interface: look at `ip link show lo`, at ulimits and at free memory"
        return _check("ranks", False, str(error).split("\n", 1)[0], remedy)
    right = sums == [sum(range(1, LESSON_RANKS + 1))] * LESSON_RANKS
    took = f"{time.monotonic() - started:.1f} s"  # mostly the import of torch, once per kernel
    found = f"{LESSON_RANKS} ranks started and added up 1, 2, 3, 4 to {sums[0]:g} in {took}"
    return _check("ranks", right, found, f"they should have {LESSON_RANKS} times 10: report this")


def check_ranks_on_gpus(device: str = "cuda") -> list[Check]:
    """Whether ranks train with a GPU each, over NCCL, and four on one GPU; no check without a GPU."""
    tried = trial.trials(LESSON_RANKS, device)
    remedy = "NCCL_DEBUG=INFO zerolab doctor shows what NCCL says; with device='cpu' every lesson runs"
    return [_check(name, works, found, remedy) for name, works, found in tried]


def _add_up() -> float:
    """Runs on a rank: all-reduces 1, 2, 3 and 4."""
    import torch
    import torch.distributed as dist

    mine = torch.tensor(float(dist.get_rank() + 1))
    dist.all_reduce(mine)
    return mine.item()


def _jupyters_folder() -> str:
    """Why JupyterLab could not start, although it is installed; empty if it can."""
    try:
        check_jupyters_folder()
    except (ImportError, RuntimeError) as error:
        return str(error)
    return ""


def check_jupyter(version: str | None, problem: str = "") -> Check:
    """Whether notebooks open here, which a GPU server may not need."""
    remedy = problem if version else 'pip install -c constraints.txt -e ".[lab]"'
    return _check("JupyterLab", version is not None and not problem, version or "none", remedy)


def check_browser(chromium: Path | None, problem: str = "") -> Check:
    """What the host should try in the browser that people will use; only the tests need one on this box."""
    here = f"the tests use {chromium}" if chromium else "none on this box; only the tests need one"
    found = f"open the first lesson in yours and press Play: no picture means that it blocks scripts ({here})"
    return _check("browser", not problem, problem or found, "only the tests need it; in yours, press Play in a lesson")


def check_deepspeed(version: str | None) -> Check:
    """Whether lesson 08 runs DeepSpeed itself."""
    remedy = 'for lesson 08: pip install -c constraints.txt -e ".[deepspeed]"'
    return _check("DeepSpeed", version is not None, version or "none", remedy)
