"""An ordinary exit of the kernel: it is quick, and the fork server ends what ranks had started, however slow it is."""

import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the fork server is Linux's")

KERNEL = """
import os, signal, subprocess, sys, time
from zerolab import Cluster
from zerolab.runtime import launch

def start():
    return subprocess.Popen(["sleep", "1000"], start_new_session=True).pid

launch.EXIT_WAIT = float(sys.argv[1])  # seconds
server = launch.launcher()._process.pid
said = [server]
"""
WITH_A_RANK = KERNEL + "cluster = Cluster(1, device='cpu')\nsaid += cluster.run(start)\n"
TELL = "\nprint(*said)"
FOR_EVER = 1000.0


def processes_of(program, exit_wait):
    """Runs a kernel to its end, within a minute; the processes that it spoke of."""
    # From 3.12 on Python warns of each fork in a process with threads, as a notebook's kernel is.
    command = [sys.executable, "-W", "ignore:This process:DeprecationWarning", "-c", program + TELL, str(exit_wait)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert ended.stderr == ""
    return [int(number) for number in ended.stdout.split()]


def left(numbers):
    """Those of the processes that do not end."""
    deadline = time.monotonic() + 20
    while (there := [pid for pid in numbers if psutil.pid_exists(pid)]) and time.monotonic() < deadline:
        time.sleep(0.02)
    return there


@pytest.mark.slow
def test_a_server_that_is_slower_than_the_kernel_waits_ends_what_ranks_had_started_and_then_itself():
    assert left(processes_of(WITH_A_RANK, exit_wait=0)) == []


@pytest.mark.slow
def test_a_server_that_somebody_has_halted_goes_on_to_its_end():
    assert left(processes_of(WITH_A_RANK + "os.kill(server, signal.SIGSTOP)", exit_wait=2)) == []


@pytest.mark.slow
def test_a_server_that_still_imports_is_not_waited_for():
    assert left(processes_of(KERNEL + "os.kill(server, signal.SIGSTOP)", FOR_EVER)) == []


@pytest.mark.slow
def test_a_copy_of_the_kernel_that_holds_the_servers_socket_open_keeps_nobody_waiting():
    fork = "said += [os.fork()]\nif said[-1] == 0:\n    os.close(1), os.close(2), time.sleep(1000)\n"
    *ours, copy = processes_of(WITH_A_RANK + fork, FOR_EVER)
    try:
        assert left(ours) == []
    finally:
        os.kill(copy, signal.SIGKILL)
