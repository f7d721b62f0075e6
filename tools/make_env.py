"""Makes `.venv/`, the environment of the lessons: `make env` calls this.

torch comes first and alone, because which torch is right depends on the box, and nothing else may pull in another.
Everything else follows at the versions of `constraints.txt`. A second call with nothing changed does nothing.
This file also runs on a Python that is too old for zerolab, so that it can say so.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, Callable, NoReturn  # noqa: UP035  (this must parse on a Python that is too old)

ROOT = Path(__file__).resolve().parent.parent
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
CUDA12_INDEX = "https://download.pytorch.org/whl/cu126"
CUDA12 = "+cu126"  # of its versions
# Of NVIDIA's drivers for Linux: the oldest that runs CUDA 13, with which PyPI's torch is built, and CUDA 12.
DRIVER_OF_CUDA13, DRIVER_OF_CUDA12 = 580, 525
OLDEST_OF_CUDA13 = (7, 5)  # compute capability; CUDA 13 has left Volta and what was before it
OLDEST, NEWEST = (3, 11), (3, 13)
OLDEST_TORCH = (2, 11)
TORCH_THERE = """
import importlib.metadata, json
found = importlib.metadata.distribution("torch")
print(json.dumps({"version": found.version, "needs": found.requires or []}))
"""
SIZES = {
    "cpu": "the CPU build from its own index: about 0.2 GB to download, 0.8 GB on disk",
    "cuda": "the CUDA build: about 3 GB to download, 7 GB on disk",
    "cuda12": "the build for CUDA 12.6, for older drivers and cards: about 3 GB to download, 7 GB on disk",
    "default": "whatever pip finds by its own settings: 0.2 GB for a CPU build, 3 GB for CUDA's",
    "system": "the one this Python already has: nothing to download",
}

SILENCE = 3.0  # seconds without a word
STEPS = ("Collecting", "Downloading", "Building", "Installing")  # how those of pip's lines begin that say where it is
ROOM = {"cpu": 2.0, "cuda": 8.0, "cuda12": 8.0, "default": 2.0, "system": 1.2}  # GB on disk that all of it takes


def fail(sentence: str) -> NoReturn:
    """Ends with one sentence: what is missing and what to do about it."""
    sys.exit(f"make env: {sentence}")


def check_prerequisites(version: tuple[int, int], find: Callable[[str], Any], can: Callable[[str], bool]) -> None:
    """Ends with a remedy if this Python, its venv or git will not do."""
    if not OLDEST <= version <= NEWEST:
        fail(
            f"zerolab needs Python 3.11 to 3.13, and this is {version[0]}.{version[1]} ({sys.executable}); "
            "choose another: make env PYTHON=python3.12"
        )
    if not can("venv") or not can("ensurepip"):
        fail(
            f"Python {version[0]}.{version[1]} has no venv; "
            f"apt install python{version[0]}.{version[1]}-venv (or python3-venv), then make env again"
        )
    if not find("git"):
        fail("git is not installed; apt install git, then make env again")


def check_room(folder: Path, torch: str, free: float) -> None:
    """Ends with both numbers if an environment in `folder`, with `free` GB left, would end half made."""
    # Only for a new one: of one that broke off on the way most is there already.
    if not folder.exists() and free < ROOM[torch]:
        fail(
            f"{folder} takes about {ROOM[torch]:g} GB, and {free:.1f} GB are free on that disk; "
            "free some, or put the checkout on another one"
        )


def importable(name: str) -> bool:
    """Says whether a module can be imported, without caring why not."""
    try:
        __import__(name)
    except ImportError:
        return False
    return True


def answer(*command: str, seconds: float) -> str | None:
    """What a command prints, or None if it fails or is late."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def cards() -> list[tuple[int, tuple[int, int]]]:
    """Each card's driver and compute capability, such as (580, (9, 0)); (0, 0) where its driver is too old to tell."""
    query = ("--format=csv,noheader", "--query-gpu=driver_version")
    both = answer("nvidia-smi", *query[:1], f"{query[1]},compute_cap", seconds=20)
    lines = (both or answer("nvidia-smi", *query, seconds=20) or "").splitlines()
    found = [re.match(r"\s*(\d+)\.[\d.]+(?:\s*,\s*(\d+)\.(\d+))?", line) for line in lines]
    return [(int(line[1]), (int(line[2] or 0), int(line[3] or 0))) for line in found if line]


def cuda_for(found: list[tuple[int, tuple[int, int]]]) -> str:
    """The build for a box's cards: `cuda`, `cuda12`, or empty if none runs with its driver."""
    driver = min(driver for driver, _ in found)
    newest = max(capability for _, capability in found)
    if driver < DRIVER_OF_CUDA12:
        print(
            f"make env: the GPU's driver is {driver}, and torch needs {DRIVER_OF_CUDA12} or newer: the CPU build; "
            "once the driver is updated, make env TORCH=cuda",
            flush=True,
        )
        return ""
    too_old = driver < DRIVER_OF_CUDA13 or (0, 0) < newest < OLDEST_OF_CUDA13
    return "cuda12" if too_old else "cuda"


def reaches(url: str, seconds: float = 3.0) -> bool:
    """Says whether one request to `url` is answered in time."""
    # In a process of its own, because looking up a name knows no time limit.
    request = f"import urllib.request as r; r.urlopen(r.Request({url + '/'!r}, method='HEAD'), timeout={seconds})"
    return answer(sys.executable, "-c", request, seconds=seconds) is not None


def choose_torch(
    asked: str,
    has: Callable[[], list[tuple[int, tuple[int, int]]]] = cards,
    answers: Callable[[str], bool] = reaches,
) -> str:
    """Turns TORCH= into `cpu`, `cuda`, `cuda12`, `system` or `default`; `auto` looks at the box.

    Args:
        asked: what the person set, `auto` if nothing.
        has: the cards that work here, as `cards` lists them.
        answers: whether a package index can be reached.

    """
    if asked not in {"auto", "cpu", "cuda", "cuda12", "system"}:
        fail(f"TORCH={asked} is not known; it is cpu, cuda, cuda12 or system, or left out for the automatic choice")
    if asked != "auto":
        return asked
    found = has()
    if found and (build := cuda_for(found)):
        return build
    return "cpu" if answers(CPU_INDEX) else "default"


def fingerprint() -> str:
    """A digest of everything that decides what is in the environment."""
    digest = hashlib.sha256()
    for name in ("pyproject.toml", "constraints.txt", "tools/make_env.py"):
        digest.update((ROOT / name).read_bytes())
    return digest.hexdigest()


def pinned(name: str) -> str:
    """The line of `constraints.txt` for one package, such as `pip==26.3`."""
    found = re.search(rf"^{name}==\S+", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    return found.group() if found else name


def name_of(requirement: str) -> str:
    """The package that a requirement or a pin names, as pip compares names; empty for a comment."""
    found = re.match(r"[\w.-]+", requirement)
    return re.sub(r"[_.-]+", "-", found.group()).lower() if found else ""


def well(pip: subprocess.Popen[str], what: str) -> bool:
    """Waits for a pip and says every few seconds where it is; if it fails, everything that it said is shown."""
    said: list[str] = []
    reader = threading.Thread(target=said.extend, args=[pip.stdout], daemon=True)
    reader.start()
    start = time.monotonic()
    while True:
        reader.join(SILENCE)
        if not reader.is_alive():
            break
        step = next((line for line in reversed(said) if line.startswith(STEPS)), what).strip()
        if step.startswith("Installing"):  # the names of all packages
            step = f"Installing {step.count(',') + 1} packages"
        print(f"make env: {time.monotonic() - start:3.0f} s  {step.split(',')[0][:90]}", flush=True)
    with pip:
        if pip.wait():
            sys.stderr.writelines(said)
    return pip.returncode == 0


class Environment:
    """The folder `.venv/` and the note in it that says how it was made."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.python = folder / "bin" / "python"
        self.command = folder / "bin" / "zerolab"
        self.note = folder / "zerolab-env.json"
        self.constraints = ROOT / "constraints.txt"

    def made(self) -> dict[str, Any]:
        """What the note says; empty if there is none or the environment does not start."""
        if not self.command.exists() or answer(str(self.python), "-c", "", seconds=60) is None:
            return {}
        try:
            return dict(json.loads(self.note.read_text()))
        except (OSError, ValueError):
            return {}

    def pip(self, *arguments: str, **variables: str) -> None:
        """One pip install inside the environment, held to the constraints."""
        command = [str(self.python), "-m", "pip", "install", "-c", str(self.constraints), *arguments]
        # Pins of the box's own packages, which NVIDIA's containers bring, would contradict ours.
        everything = {name: value for name, value in os.environ.items() if name != "PIP_CONSTRAINT"} | variables
        pipe, merged = subprocess.PIPE, subprocess.STDOUT
        pip = subprocess.Popen(command, env=everything, cwd=ROOT, text=True, stdout=pipe, stderr=merged)
        if not well(pip, arguments[-1]):
            fail(f"pip could not install {arguments[-1]} (its reason stands above); make env again goes on from here")

    def create(self, torch: str, fresh: bool) -> None:
        """Makes the folder, empty but for pip; with the box's own packages in sight if torch is the system's."""
        options = [*(["--system-site-packages"] if torch == "system" else []), *(["--clear"] if fresh else [])]
        if subprocess.run([sys.executable, "-m", "venv", *options, str(self.folder)], check=False).returncode:
            fail(f"{sys.executable} could not make {self.folder.name}/ (its reason stands above)")
        self.pip("--upgrade", pinned("pip"))

    def add_torch(self, torch: str) -> None:
        """Installs the chosen torch, alone, or makes sure that the box's own is new enough."""
        if torch != "system":
            # Both indexes: torch's own does not carry every pinned dependency, and `2.13.0+cpu` counts as the newer.
            index = {"cpu": ["--extra-index-url", CPU_INDEX], "cuda12": ["--extra-index-url", CUDA12_INDEX]}
            # By its full version: from any other index pip would take the build for CUDA 13 without a word.
            wanted = pinned("torch") + CUDA12 if torch == "cuda12" else "torch"
            self.pip(*index.get(torch, []), pinned("setuptools"), wanted)
            return
        asked = answer(str(self.python), "-c", TORCH_THERE, seconds=60)
        there = json.loads(asked or '{"version": "none", "needs": []}')
        version = there["version"]
        if tuple(int(part) for part in re.findall(r"\d+", version)[:2]) < OLDEST_TORCH:
            shutil.rmtree(self.folder)
            fail(f"TORCH=system needs torch 2.11 or newer, and {sys.executable} has {version}; leave TORCH= out")
        # What this torch needs is not pinned: where a pin is not what it needs, pip would replace it by another torch.
        own = {name_of(need) for need in there["needs"] if "extra ==" not in need}
        lines = (ROOT / "constraints.txt").read_text().splitlines()
        kept = [line for line in lines if name_of(line) not in {"torch", *own}]
        self.constraints = self.folder / "constraints.txt"
        self.constraints.write_text("\n".join([*kept, f"torch=={version}", ""]))
        self.pip("setuptools")

    def add_project(self, extras: set[str]) -> None:
        """Installs zerolab from this checkout with its extras."""
        if "deepspeed" in extras:
            # DeepSpeed is built from source and looks at torch meanwhile; isolation would fetch a torch for that.
            self.pip("--no-build-isolation", "deepspeed", DS_BUILD_OPS="0")
        self.pip("--build-constraint", str(ROOT / "constraints.txt"), "-e", f".[{','.join(sorted(extras))}]")


def plan(made: dict[str, Any], options: argparse.Namespace) -> dict[str, Any] | None:
    """The note that the environment should carry, or None if it carries it already.

    Args:
        made: the note of the environment that is there, empty if there is none.
        options: `torch`, `extras` and `switch` of the command line.

    """
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    other_torch = options.torch not in {"auto", made.get("torch")}
    other_python = options.switch and version != made.get("python")
    keep = bool(made) and not other_torch and not other_python
    extras = {*options.extras.split(","), *(made["extras"] if keep else ())}  # extras are added, never taken away
    note = {"fingerprint": fingerprint(), "extras": sorted(extras)}
    if keep and all(made[key] == value for key, value in note.items()):
        return None
    return {
        **note,
        "torch": made["torch"] if keep else choose_torch(options.torch),
        "python": made["python"] if keep else version,
        "fresh": bool(made) and not keep,
    }


def main() -> None:
    """Brings `.venv/` up to date, or does nothing where it is."""
    parser = argparse.ArgumentParser(description="make .venv/")
    parser.add_argument("--torch", default="auto", help="cpu, cuda, cuda12, system or auto")
    parser.add_argument("--extras", default="lab,test", help="which extras of zerolab to install")
    parser.add_argument("--switch", action="store_true", help="make it anew if it was made with another Python")
    parser.add_argument("--folder", type=Path, default=ROOT / ".venv")
    options = parser.parse_args()

    environment = Environment(options.folder)
    note = plan(environment.made(), options)
    if note is None:
        return
    check_prerequisites(sys.version_info[:2], shutil.which, importable)
    check_room(environment.folder, note["torch"], shutil.disk_usage(environment.folder.parent).free / 1e9)
    print(f"make env: torch is {SIZES[note['torch']]}; everything else: about 0.3 GB to download, 0.9 GB on disk.")
    print(
        f"make env: {environment.folder} with extras {', '.join(note['extras'])}; takes a few minutes.",
        flush=True,
    )
    environment.create(note["torch"], fresh=note.pop("fresh"))
    environment.add_torch(note["torch"])
    environment.add_project(set(note["extras"]))
    environment.note.write_text(json.dumps(note, indent=1) + "\n")
    environment.command.touch()


if __name__ == "__main__":
    main()
