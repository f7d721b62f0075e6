"""The folder `work/` in which a learner works, and the JupyterLab that opens there.

The published notebooks stay as they are; a learner works in copies. `lab` makes the copies that are missing and starts
JupyterLab on them; `reset` restores one and keeps the learner's beside it.
"""

import importlib.util
import json
import os
import re
import secrets
import socket
import sys
from collections.abc import Mapping, Sequence
from itertools import chain, count
from pathlib import Path
from typing import NoReturn

from zerolab import files

FIRST_NOTEBOOK = "00-start-here.ipynb"
FIRST_PORT, PORTS = 8888, 100  # the first is JupyterLab's own
PACKAGE = Path(__file__).resolve().parent.parent
WORK = Path("work")
# What the lessons link to in docs/, and these pages in turn, but for what only the site shows.
PAGES = (
    "glossary", "gpus", "hosts", "map", "published-runs", "several-nodes", "what-can-go-wrong", "your-own-model",
    "your-own-run",
)  # fmt: skip
_LINK = re.compile(r"\[([^][]*)\]\((?:\.\./(?:docs/|notebooks/)?)?([\w.-]+\.(?:md|ipynb))(#[^)]*)?\)")
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
_POINTS = re.compile(r"[^\w -]")
# Defaults that a person may change: without them, JupyterLab asks over the first lesson whether it may fetch its news,
# and a lesson that is opened again on the next day says "model not found" in place of its players.
# And a Python kernel that keeps its history to itself: all kernels of a person write theirs into one file, and while
# one of them has it locked, IPython prints below another's cell that it cannot.
SETTINGS = PACKAGE / "data" / "jupyter"


def published() -> dict[str, Path]:
    """The files of a learner's folder by name: the notebooks, and the pages that they link to.

    Raises RuntimeError if there are none, so that this installation is incomplete.
    """
    # Notebooks are beside the package in a checkout, and inside it in a wheel.
    checkout = (PACKAGE.parent / "pyproject.toml").is_file()
    folder = PACKAGE.parent / "notebooks" if checkout else PACKAGE / "_notebooks"
    pages = PACKAGE.parent / "docs" if checkout else folder
    notebooks = sorted(folder.glob("*.ipynb"))
    if not notebooks:
        raise RuntimeError(f"no notebooks in {folder}, which this installation should have; install it again")
    return {path.name: path for path in (*notebooks, *(pages / f"{name}.md" for name in PAGES))}


def find() -> Path | None:
    """The learner's folder: this one, if it has been filled, or the `work/` in it; None if neither is one."""
    lessons = [name for name, path in published().items() if path.suffix == ".ipynb"]
    for folder in (Path.cwd(), Path.cwd() / WORK):
        # The checkout's notebooks/, which is nobody's to work in, has no glossary.
        if (folder / "glossary.md").is_file() and any((folder / name).is_file() for name in lessons):
            return folder
    return None


def fill(folder: Path = WORK) -> list[Path]:
    """Copies the published files that are missing in `folder`, and returns the new ones; changes nothing that exists.

    Raises RuntimeError if `folder` cannot be written to.
    """
    return [_copy(path, folder / name) for name, path in published().items() if not (folder / name).exists()]


def _copy(path: Path, target: Path) -> Path:
    """Copies a text, whole or not at all."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        files.write_text(target, _text(path))
    except (OSError, ValueError) as problem:
        raise RuntimeError(
            f"{target} could not be written ({problem}); start zerolab in a folder of your own"
        ) from problem
    return target


def _text(path: Path) -> str:
    """A published text with its links changed to the learner's folder; text alone where that lacks the file."""
    there = published()

    def changed(link: re.Match[str]) -> str:
        words, page, place = link.groups()
        if page not in there:
            return words
        return f"[{words}]({page}{_in_lab(there[page], place) if place else ''})"

    return _LINK.sub(changed, path.read_text(encoding="utf-8"))


def _in_lab(page: Path, place: str) -> str:
    """A heading's place in a page or lesson: JupyterLab keeps its capitals and points, which others leave out."""
    text = page.read_text(encoding="utf-8")
    if page.suffix == ".ipynb":
        cells = json.loads(text)["cells"]
        text = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
    for heading in _HEADING.findall(text.replace("`", "")):
        if place == "#" + _POINTS.sub("", heading).replace(" ", "-").lower():
            return f"#{heading.replace(' ', '-')}"
    return place


def reset(which: str, folder: Path | None = None) -> list[tuple[Path, Path | None]]:
    """Restores the notebook whose name begins with `which`, such as `04`, or `all`, in the folder that `find` finds.

    Returns each, and where the learner's is kept (None if it was unchanged). Raises ValueError if no notebook begins
    so, or more than one, and RuntimeError if no folder is given and there is none here.
    """
    lessons = {name: path for name, path in published().items() if path.suffix == ".ipynb"}
    found = list(lessons) if which == "all" else [name for name in lessons if name.startswith(which)]
    if which != "all" and (len(found) != 1 or not which):
        begin = f"{len(found)} notebooks begin" if found else "no notebook begins"
        raise ValueError(f"{begin} with {which!r}; choose one of {', '.join(found or lessons)}, or all")
    if folder is None and (folder := find()) is None:
        raise RuntimeError(f"no lessons of yours in {Path.cwd()}: go to the folder in which you started zerolab lab")
    return [_bring_back(lessons[name], folder / name) for name in found]


def _bring_back(path: Path, target: Path) -> tuple[Path, Path | None]:
    if target.exists() and target.read_text(encoding="utf-8", errors="replace") == _text(path):
        return target, None
    kept = keep(target) if target.exists() else None
    return _copy(path, target), kept


def keep(target: Path) -> Path:
    """Renames a file to the first free one of `.bak`, `.bak2`, `.bak3`, so that no earlier copy is lost."""
    places = (target.with_name(f"{target.name}.bak{number}") for number in chain([""], count(2)))
    return target.rename(next(place for place in places if not place.exists()))


def take_port(first: int = FIRST_PORT) -> tuple[int, socket.socket]:
    """The first free port from `first` on, and a socket that reserves it until JupyterLab listens on it.

    Thirty people who start at the same time would all find the same port free. So each first binds the UDP port of the
    same number, which only one of them can do. JupyterLab, which replaces this process, inherits the socket.

    Raises ValueError if `first` is not a port, and RuntimeError if a hundred ports in a row are taken.
    """
    if not 0 < first < 65536:  # 0 would be any port, and the address is printed before JupyterLab chooses one
        raise ValueError(f"the port is {first}; give a number from 1 to 65535, such as {FIRST_PORT}")
    for port in range(first, min(first + PORTS, 65536)):
        keep = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            # As the server itself does: a port that has just been closed counts as free.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                keep.bind(("127.0.0.1", port))
                probe.bind(("127.0.0.1", port))
            except OSError:
                keep.close()
                continue
            return port, keep
    raise RuntimeError(f"ports {first} to {first + PORTS - 1} are all taken; close a JupyterLab or give another --port")


def has_display(environment: Mapping[str, str]) -> bool:
    """Whether a person would see a browser that is opened here."""
    return sys.platform == "darwin" or bool(environment.get("DISPLAY") or environment.get("WAYLAND_DISPLAY"))


def how_to_reach(port: int, token: str, environment: Mapping[str, str]) -> str:
    """The address of the first lesson, and the `ssh -L` line that forwards it to the learner's own machine."""
    # The address by which the learner has reached this host, whose own name may be unknown outside.
    connection = environment.get("SSH_CONNECTION", "").split()
    host = connection[2] if len(connection) == len(("client", "port", "server", "port")) else socket.gethostname()
    user = environment.get("USER") or environment.get("LOGNAME") or "USER"
    return (
        f"JupyterLab runs here without a display. On this machine:\n"
        f"    http://127.0.0.1:{port}/lab/tree/{FIRST_NOTEBOOK}?token={token}\n"
        f"From your own machine, first leave this running there, then open the address above:\n"
        f"    ssh -N -L {port}:127.0.0.1:{port} {user}@{host}"
    )


def lab_command(folder: Path, port: int, *, browser: bool, root: bool) -> list[str]:
    """The command that starts JupyterLab on the loopback address, in the learner's folder.

    The token is not among its arguments, which all users of a shared box can read.
    """
    return [
        sys.executable,
        "-m",
        "jupyterlab",
        "--ServerApp.ip=127.0.0.1",
        f"--ServerApp.port={port}",
        # The address has been printed, so Jupyter must not choose another port.
        "--ServerApp.port_retries=0",
        f"--ServerApp.root_dir={folder}",
        f"--LabApp.default_url=/lab/tree/{FIRST_NOTEBOOK}",
        f"--LabApp.app_settings_dir={SETTINGS}",
        *([] if browser else ["--no-browser"]),
        *(["--allow-root"] if root else []),
    ]


def lab_environment(environment: Mapping[str, str], token: str) -> dict[str, str]:
    """The environment that JupyterLab starts in: its token, and where it finds our kernel before others of the name.

    And where its terminals find the commands of this environment, such as torchrun, which may not be activated.
    """
    jupyter = [str(SETTINGS), *filter(None, [environment.get("JUPYTER_PATH")])]
    commands = [str(Path(sys.executable).parent), environment.get("PATH", os.defpath)]
    changed = {"JUPYTER_PATH": os.pathsep.join(jupyter), "PATH": os.pathsep.join(commands)}
    return {**environment, "JUPYTER_TOKEN": token, **changed}


def check_jupyters_folder() -> None:
    """Refuses to start where JupyterLab could not: it would say so in tracebacks, below an address that looks fine."""
    from jupyter_core.paths import jupyter_runtime_dir

    remedy = "set HOME, or JUPYTER_RUNTIME_DIR, to a folder of your own"
    try:
        Path(jupyter_runtime_dir()).mkdir(parents=True, exist_ok=True)
    except RuntimeError as problem:
        raise RuntimeError(f"JupyterLab finds no place to keep what runs ({problem}): {remedy}") from problem
    except OSError as problem:
        raise RuntimeError(
            f"JupyterLab cannot make {jupyter_runtime_dir()!r} ({problem.strerror}), where it keeps what runs: {remedy}"
        ) from problem


def lab(
    folder: Path | None = None, *, port: int = FIRST_PORT, browser: bool | None = None, options: Sequence[str] = ()
) -> NoReturn:
    """Fills `folder`, prints the address, and replaces this process with JupyterLab, which `options` are for.

    The folder is by default the one that `find` finds, or `work/`, which is made; the port the first free one from
    `port` on; a browser opens by default where there is a display. Raises RuntimeError if JupyterLab is not installed,
    no port is free, or a folder cannot be written to.
    """
    if importlib.util.find_spec("jupyterlab") is None:
        raise RuntimeError('JupyterLab is not installed here; pip install -c constraints.txt "zerolab[lab]"')
    check_jupyters_folder()
    folder = (folder or find() or WORK).resolve()
    new = fill(folder)  # first, because it may fail for lack of permissions
    chosen, keep = take_port(port)
    keep.set_inheritable(True)
    token = os.environ.get("JUPYTER_TOKEN") or secrets.token_urlsafe(24)
    browser = has_display(os.environ) if browser is None else browser
    root = os.geteuid() == 0
    print(f"{len(new)} files copied to {folder}; what was there is untouched.")
    if root:
        print("You are root, and so is every cell that you run; --allow-root is added. A user of your own is safer.")
    if not browser:
        print(how_to_reach(chosen, token, os.environ))
    # execve would lose what Python has not written yet.
    sys.stdout.flush()
    command = [*lab_command(folder, chosen, browser=browser, root=root), *options]
    os.execve(command[0], command, lab_environment(os.environ, token))  # noqa: S606  (no shell is wanted)
