"""Real kernels, and a way to see what a process tree leaves behind."""

import gc
import os
import signal
import time
import uuid
from importlib.util import find_spec
from pathlib import Path
from queue import Empty

import psutil
import pytest

from zerolab import Cluster
from zerolab.runtime import launch

OURS_IN_SHARED_MEMORY = ("torch_", "zerolab", "pymp", "nccl", "sem.")


@pytest.fixture(scope="module")
def cluster():
    with Cluster(2, device="cpu") as cluster:
        yield cluster


@pytest.fixture(scope="module")
def one():
    with Cluster(1, device="cpu") as cluster:
        yield cluster


class Kernel:
    """A Jupyter kernel whose whole family of processes, and whose temporary folder, can be told apart."""

    def __init__(self, folder):
        from jupyter_client.manager import KernelManager

        self.folder = folder
        self.mark = uuid.uuid4().hex
        self.manager = KernelManager(kernel_name="python3")
        environment = os.environ | {"ZEROLAB_TEST_KERNEL": self.mark, "TMPDIR": str(folder)}
        self.manager.start_kernel(env=environment)
        self._connect()

    def _connect(self):
        self.client = self.manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=60)

    def start_cell(self, code):
        return self.client.execute(code)

    def finish_cell(self, cell, timeout=30):
        """What the cell shows at its end, and its error if it had one; `displayed` are its displays."""
        shown, places, error = [], {}, None
        deadline = time.monotonic() + timeout
        while True:
            message = self.client.get_iopub_msg(timeout=max(0.01, deadline - time.monotonic()))
            if message["parent_header"].get("msg_id") != cell:
                continue
            kind, content = message["msg_type"], message["content"]
            if kind == "stream":
                shown.append(content["text"])
            elif kind in ("execute_result", "display_data", "update_display_data"):
                # A line that says what is being waited for changes, and ends empty: a reader sees its last state.
                place = places.setdefault(content.get("transient", {}).get("display_id", len(shown)), len(shown))
                shown[place:] = [content["data"], *shown[place + 1 :]]
            elif kind == "error":
                error = content
            elif kind == "status" and content["execution_state"] == "idle":
                self.displayed = [part for part in shown if isinstance(part, dict) and part["text/plain"]]
                return "".join(part if isinstance(part, str) else _plain(part) for part in shown), error

    def run(self, code, timeout=30):
        return self.finish_cell(self.start_cell(code), timeout)

    def wait_for_print(self, text, timeout=20):
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            try:
                message = self.client.get_iopub_msg(timeout=1)
            except Empty:
                continue
            if message["msg_type"] == "stream" and text in message["content"]["text"]:
                return
        pytest.fail(f"{text!r} was not printed")

    @property
    def pid(self):
        return self.manager.provisioner.pid

    def close_the_tab(self):
        self.client.stop_channels()

    def open_it_again(self):
        self._connect()

    def kill(self):
        os.kill(self.pid, signal.SIGKILL)

    def restart(self):
        self.client.stop_channels()
        self.manager.restart_kernel(now=False)
        self._connect()

    def family(self):
        """Every living process that descends from this kernel, the kernel itself left out."""
        found = []
        for process in psutil.process_iter():
            try:
                mine = process.pid != self.pid and process.environ().get("ZEROLAB_TEST_KERNEL") == self.mark
                if mine and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
            except psutil.Error:
                continue
        return found

    def leftovers(self, within=3.0):
        """Processes and files that are still there after so many seconds."""
        deadline = time.monotonic() + within
        while (left := self._left()) and time.monotonic() < deadline:
            time.sleep(0.05)
        return left

    def _left(self):
        files = [str(path) for path in self.folder.rglob("*")]
        return [command_line(process) for process in self.family()] + files + shared_memory()

    def close(self):
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)


def _plain(data):
    return data["text/plain"] + "\n" if data["text/plain"] else ""


def command_line(process):
    """What a process was started as; it may end while it is asked."""
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return f"process {process.pid}, which was ending"


def shared_memory():
    return [path.name for path in Path("/dev/shm").iterdir() if path.name.startswith(OURS_IN_SHARED_MEMORY)]  # noqa: S108


@pytest.fixture(scope="session")
def jupyter(require):
    """What starts a notebook's kernel and reads a notebook, which a box of GPUs may not have."""
    require(
        find_spec("ipykernel") and find_spec("nbformat"), "Jupyter's kernel for Python", "pip install 'zerolab[lab]'"
    )


@pytest.fixture
def start_kernel(tmp_path, jupyter):
    kernels = []

    def start():
        folder = tmp_path / f"tmp{len(kernels)}"
        folder.mkdir()
        kernels.append(Kernel(folder))
        return kernels[-1]

    yield start
    for kernel in kernels:
        kernel.close()


@pytest.fixture(scope="module")
def kernel(tmp_path_factory, jupyter):
    kernel = Kernel(tmp_path_factory.mktemp("kernel"))
    yield kernel
    kernel.close()


@pytest.fixture
def own_server(monkeypatch):
    """A fork server for this test alone, which may kill it: other tests' clusters live on the one that there was."""
    gc.collect()  # clusters that other tests have dropped
    monkeypatch.setattr(launch, "_launchers", {})
    yield
    launch._close()
