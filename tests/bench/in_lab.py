"""The player in JupyterLab: from the start of a cell to the second frame after the player stands in its output.

The kernel has read the recording in a cell before; what is measured is payload, widget, comm, script and drawing.
"""

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import nbformat
from measuring import Figure

from zerolab import Recording

sys.path.append(str(Path(__file__).parents[2] / "tools"))
from headless import chromium

BUDGET = 1_500.0  # ms, at 2,000 events
READY = """() => {
  const kernel = window.jupyterapp?.shell.currentWidget?.sessionContext?.session?.kernel;
  return kernel?.connectionStatus === "connected" && kernel.status === "idle";
}"""
# Cell 0 imports and reads, cell 1 shows; a cell that ran before is cleared by running again.
RUN_FIRST = """async () => {
  const { content } = window.jupyterapp.shell.currentWidget;
  content.activeCellIndex = 0;
  await window.jupyterapp.commands.execute("notebook:run-cell");
}"""
SHOW = """() => new Promise((done, failed) => {
  const { content } = window.jupyterapp.shell.currentWidget;
  content.activeCellIndex = 1;
  const before = window.zerolabPlayers?.at(-1);
  const start = performance.now();
  const look = () => {
    const now = window.zerolabPlayers?.at(-1);
    if (performance.now() - start > 60_000) return failed(new Error("no player was drawn within a minute"));
    if (!now || now === before || !now.width) return requestAnimationFrame(look);
    requestAnimationFrame(() => requestAnimationFrame(() => done(performance.now() - start)));
  };
  window.jupyterapp.commands.execute("notebook:run-cell");
  look();
})"""


def first_draw_in_lab(recording: Recording, rounds: int) -> Figure:
    """Milliseconds from the start of the cell `recording.play()` to the player drawn in its output, round by round."""
    title = f"First draw in JupyterLab from the start of the cell, {len(recording.events):,} events"
    figure = Figure("player_first_draw_lab", title, "ms", None, {"player": BUDGET})
    with tempfile.TemporaryDirectory() as folder, _lab(recording, Path(folder)) as address, chromium() as browser:
        tab = browser.new_page(viewport={"width": 1400, "height": 1100})
        tab.goto(f"{address}/lab/tree/player.ipynb")
        tab.wait_for_function(READY, timeout=90_000)
        tab.evaluate(RUN_FIRST)
        tab.wait_for_function(READY, timeout=90_000)
        tab.evaluate(SHOW)  # the first time the kernel imports anywidget, which any widget of the notebook would do
        for _ in range(rounds):
            tab.wait_for_timeout(1000)
            figure.add("player", tab.evaluate(SHOW))
    return figure


@contextmanager
def _lab(recording: Recording, home: Path) -> Iterator[str]:
    """The address of a JupyterLab with a notebook of two cells, ended afterwards."""
    work = home / "work"
    work.mkdir()
    recording.save(work / "run.json")
    cells: Any = ('from zerolab import Recording\nrecording = Recording.load("run.json")', "recording.play()")
    made = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in cells])  # type: ignore[no-untyped-call]
    made["metadata"]["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    (work / "player.ipynb").write_text(json.dumps(made))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    # `expose_app_in_browser` lets the page run a cell at a known moment; a click would measure the mouse, too.
    settings = {
        "LabApp.expose_app_in_browser": True,
        "LabApp.news_url": None,
        "LabServerApp.workspaces_dir": home / "workspaces",
        "ServerApp.root_dir": work,
        "ServerApp.port": port,
        "IdentityProvider.token": "",
    }
    folders = {f"JUPYTER_{name}_DIR": str(home / name.lower()) for name in ("CONFIG", "RUNTIME")}
    flags = [f"--{name}={value}" for name, value in settings.items()]
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", *flags]
    with (home / "log").open("w") as log:
        server = subprocess.Popen(command, cwd=work, env=os.environ | folders, stdout=log, stderr=log)
    try:
        _until_ready(f"http://127.0.0.1:{port}", server)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait(20)


def _until_ready(address: str, server: "subprocess.Popen[bytes]") -> None:
    """Waits until the server answers; RuntimeError if it ended or takes longer than 60 s."""
    for _ in range(600):
        try:
            urllib.request.urlopen(f"{address}/api/status", timeout=2).close()
        except (urllib.error.URLError, TimeoutError):
            if server.poll() is not None:
                raise RuntimeError(f"JupyterLab ended with status {server.returncode} before it answered.") from None
            time.sleep(0.1)
        else:
            return
    raise RuntimeError("JupyterLab did not answer within 60 s.")
