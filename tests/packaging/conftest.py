"""Clean environments, each an empty venv away from the checkout, in which torch alone is already there."""

import importlib.metadata
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


class Venv:
    """A clean virtual environment and a folder of its own to work in."""

    def __init__(self, folder):
        self.folder, self.home = folder / "venv", folder / "home"
        self.home.mkdir(parents=True)
        subprocess.run([sys.executable, "-m", "venv", self.folder], check=True)
        self.python = self.folder / "bin" / "python"

    def run(self, *command, folder=None, **variables):
        """Runs a command as a person who has activated this environment would; returns what it printed."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL"))}
        environment |= {"PATH": f"{self.folder / 'bin'}:{environment['PATH']}", "HOME": str(self.home), **variables}
        done = subprocess.run(
            command, cwd=folder or self.home, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{command} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def link_torch(self):
        """Puts torch there as pip would have, by hard links: the one package whose copying would cost a minute."""
        source = Path(importlib.metadata.distribution("torch").locate_file(""))
        target = Path(self.run(self.python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
        for name in {Path(str(file)).parts[0] for file in importlib.metadata.files("torch")} - {".."}:
            if (source / name).is_dir():
                shutil.copytree(source / name, target / name, copy_function=hard_link)
            else:
                shutil.copy2(source / name, target / name)


def hard_link(source, target):
    """A hard link, or a copy where the temporary folder lies on another disk."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


@pytest.fixture
def clean_venv(tmp_path):
    """A clean environment with torch and nothing else."""
    venv = Venv(tmp_path)
    venv.link_torch()
    return venv


@pytest.fixture(scope="session")
def tree(tmp_path_factory):
    """The project as a clone would give it: what git does not ignore, as it stands."""
    folder = tmp_path_factory.mktemp("clone")
    listed = subprocess.run(
        ["git", "ls-files", "-coz", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    return folder


@pytest.fixture(scope="session")
def wheel(tree, tmp_path_factory):
    """The wheel that a release would publish."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--build-constraint", "constraints.txt"]
    subprocess.run([*command, "-w", folder, "."], cwd=tree, check=True)
    return next(folder.glob("zerolab-*.whl"))
