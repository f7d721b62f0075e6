"""What happens when the process that starts the ranks does not come up, or is killed."""

import os
import signal
import subprocess
import sys
import time

import psutil
import pytest
import torch.distributed as dist

from zerolab import Cluster, RankError
from zerolab.runtime import launch
from zerolab.runtime.launch import ForkLauncher

SHADOWED = """
import queue, random, secrets, sys, tempfile  # the kernel has them already
sys.path.insert(0, {!r})
from zerolab import Cluster
try:
    Cluster(1, device="cpu")
except RuntimeError as error:
    print(error)
"""

DROPPED_IN_A_CYCLE = """
import gc, sys
from zerolab import Cluster
from zerolab.runtime.launch import ForkLauncher

def looks(launcher, limit, *, really=ForkLauncher._is_readable):
    found = really(launcher, limit)
    if found and collected == [0] and sys._getframe(1).f_code.co_name == "start":
        collected[:] = [1]
        gc.collect()  # as may happen at any line
    return found

dropped = Cluster(1, device="cpu")
dropped.itself = dropped
gc.disable()
collected = [0]
ForkLauncher._is_readable = looks
del dropped
with Cluster(1, device="cpu") as cluster:
    print(collected, cluster.run(int, 1))
"""


def output_of(program):
    command = [sys.executable, "-c", program]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def are_gone(numbers, within=10.0):
    deadline = time.monotonic() + within
    while any(map(lives, numbers)) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not any(map(lives, numbers))


def lives(number):
    """A zombie, which the first process of a container may never collect, does not."""
    try:
        return psutil.Process(number).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.slow
def test_a_file_that_is_imported_in_place_of_pythons_own_module_is_the_reason_that_is_given(tmp_path):
    (tmp_path / "queue.py").write_text("x = 1")
    ended = output_of(SHADOWED.format(str(tmp_path)))
    assert ended.stdout.startswith("the process that starts the ranks did not come up:\n"), ended
    assert f"ImportError: cannot import name 'Queue' from 'queue' ({tmp_path / 'queue.py'})" in ended.stdout


@pytest.mark.slow
def test_a_cluster_that_is_collected_while_another_one_starts_takes_no_report_from_it():
    ended = output_of(DROPPED_IN_A_CYCLE)
    assert ended.stdout == "[1] [1]\n", ended


@pytest.fixture
def kill_server(own_server):
    """Kills the fork server, as the system does that runs out of memory."""

    def kill():
        process = launch.launcher()._process
        os.kill(process.pid, signal.SIGKILL)
        process.wait()

    return kill


def start_a_program():
    return subprocess.Popen(["sleep", "1000"]).pid


@pytest.mark.slow
def test_programs_of_ranks_whose_server_was_killed_end_and_the_next_run_says_what_happened(kill_server, capsys):
    with Cluster(2, device="cpu") as cluster:
        ranks, programs = cluster.run(os.getpid), cluster.run(start_a_program)
        kill_server()
        capsys.readouterr()
        with pytest.raises(RankError, match=rf"^rank 0 \(pid {ranks[0]}\) is gone, and its exit code unknown: the"):
            cluster.run(dist.get_rank)
        assert are_gone([*ranks, *programs])
        assert capsys.readouterr().out == ""
        assert cluster.run(dist.get_rank) == [0, 1]
        assert "was lost when the last run failed" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("ends", ["cluster", "kernel"])
def test_programs_of_ranks_whose_server_was_killed_end_at_the_latest_with_the(ends, kill_server):
    cluster = Cluster(2, device="cpu")
    programs = cluster.run(start_a_program)
    kill_server()
    if ends == "cluster":
        cluster.close()
    else:
        launch._close()
    assert are_gone(programs)
    cluster.close()


@pytest.mark.slow
def test_after_its_servers_death_no_process_is_killed_that_has_got_the_number_of_a_rank():
    launcher = ForkLauncher()
    stranger = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    try:
        launcher._living.add(stranger.pid)
        launcher._process.kill()
        launcher._process.wait()
        launcher.kill([stranger.pid])
        launcher.close()
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def test_what_the_server_is_told_to_import_every_rank_has_from_its_start():
    """One that does not exist keeps no rank from starting."""
    module = "this"  # Python's own, which nothing imports
    with Cluster(world_size=1, device="cpu") as cluster:
        assert cluster.run(lambda: module in sys.modules) == [False]
    launch.launcher().preload("no_such_module")
    launch.launcher().preload(module)
    with Cluster(world_size=2, device="cpu") as cluster:
        assert cluster.run(lambda: module in sys.modules) == [True, True]
