"""One JupyterLab, which Notebook 7 shares, for all notebooks."""

import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from zerolab.lessons.workspace import SETTINGS

sys.path.insert(0, str(Path(__file__).parents[1] / "nccl"))  # for contract.py

ROOT = Path(__file__).resolve().parents[2]
NO_AUTOSAVE = {"@jupyterlab/docmanager-extension/plugin.jupyterlab-settings": {"autosave": False}}
"""Lab saves a notebook two minutes after it was opened, by itself. Where a test saves it in the same instant, Lab takes
one of its two saves for somebody else's, and asks; from then on no notebook that is opened comes to the front."""


@pytest.fixture(scope="package")
def lab_folder(tmp_path_factory):
    """What the server shows: a copy of each notebook in a folder of its own, and what a test puts beside them."""
    work = tmp_path_factory.mktemp("lab") / "work"
    for notebook in (ROOT / "notebooks").glob("*.ipynb"):
        (work / notebook.stem).mkdir(parents=True)
        shutil.copy(notebook, work / notebook.stem)
    return work


@pytest.fixture(scope="package")
def lab(lab_folder):
    """The address of a JupyterLab over copies of the notebooks; one server for all of them, ended afterwards.

    The folder that it serves is `lab_folder`.
    """
    home, work = lab_folder.parent, lab_folder
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    folders = {f"JUPYTER_{name}_DIR": str(home / name.lower()) for name in ("CONFIG", "RUNTIME")}
    for name, setting in NO_AUTOSAVE.items():
        file = home / "settings" / name
        file.parent.mkdir(parents=True)
        file.write_text(json.dumps(setting))
    settings = {
        "LabApp.expose_app_in_browser": True,
        "JupyterNotebookApp.expose_app_in_browser": True,
        "LabApp.app_settings_dir": SETTINGS,  # as `zerolab lab` has it
        "LabServerApp.workspaces_dir": home / "workspaces",
        "LabServerApp.user_settings_dir": home / "settings",
        "ServerApp.root_dir": work,
        "ServerApp.port": port,
        "ServerApp.port_retries": 0,
        "IdentityProvider.token": "",
        "ExtensionManager.enabled": False,
    }
    flags = [f"--{name}={value}" for name, value in settings.items()]
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", *flags]
    with (home / "log").open("w") as log:
        server = subprocess.Popen(command, cwd=work, env=os.environ | folders, stdout=log, stderr=log)
    try:
        yield _when_ready(f"http://127.0.0.1:{port}", server, home / "log")
    finally:
        server.terminate()
        server.wait(20)


def _when_ready(address, server, log):
    deadline = time.monotonic() + 120  # no promise of ours
    while time.monotonic() < deadline:
        try:
            urllib.request.urlopen(f"{address}/api/status", timeout=2).close()
        except (urllib.error.URLError, TimeoutError):
            assert server.poll() is None, log.read_text()[-3000:]
            time.sleep(0.1)
        else:
            return address
    pytest.fail(f"JupyterLab did not start within 2 minutes: {log.read_text()[-3000:]}")
