"""Clean environments, each an empty venv away from the checkout, in which only torch and pip are already there."""

import importlib.metadata
import os
import shutil
import stat
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
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", self.folder], check=True)
        self.borrow("torch")
        self.borrow("pip")
        command = self.folder / "bin" / "pip"
        command.write_text('#!/bin/sh\nexec python -m pip "$@"\n')
        command.chmod(stat.S_IRWXU)

    def borrow(self, package):
        """Shows one package of ours to this environment: one that is the same everywhere and slow to install.

        It lies outside the environment, so that pip takes it as there and never touches it.
        """
        shelf = self.folder / "borrowed"
        shelf.mkdir(exist_ok=True)
        source = Path(importlib.metadata.distribution(package).locate_file(""))
        for name in {Path(str(file)).parts[0] for file in importlib.metadata.files(package)} - {"..", "__pycache__"}:
            (shelf / name).symlink_to(source / name)
        [site] = self.folder.glob("lib/python*/site-packages")
        (site / "borrowed.pth").write_text(f"{shelf}\n")

    def run(self, *command, folder=None, **variables):
        """Runs a command as a person who has activated this environment would; returns what it printed."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL"))}
        environment |= {
            "PATH": f"{self.folder / 'bin'}:{environment['PATH']}",
            "HOME": str(self.home),
            "PIP_NO_COMPILE": "1",
            **variables,
        }
        done = subprocess.run(
            command, cwd=folder or self.home, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{command} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}"
        return done.stdout


@pytest.fixture
def clean_venv(tmp_path):
    """A clean environment with pip, torch and nothing else."""
    return Venv(tmp_path)


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


@pytest.fixture(scope="session")
def binders(tree, tmp_path_factory):
    """The environment of binder's image: a clean one in which its script has run."""
    venv = Venv(tmp_path_factory.mktemp("binder"))
    venv.run("bash", "binder/postBuild", folder=tree, PIP_RETRIES="0")
    return venv
