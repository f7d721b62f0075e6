"""What happens when the process that starts the ranks does not come up, or is killed."""

import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

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

WITHOUT_STREAMS = """
import os, sys
said = os.dup(1)
os.closerange(0, 3)
from zerolab import Cluster
with Cluster(2, device="cpu") as cluster:
    os.write(said, repr(cluster.run(lambda: (os.read(0, 1), print("shown nowhere")))).encode())
"""

KILLED_WITH_A_REPORT_UNREAD = """
import os, signal, subprocess, threading, time
from zerolab import Cluster

def begin():
    return os.getpid(), subprocess.Popen(["sleep", "1000"], start_new_session=True).pid

def work():
    cluster = Cluster(2, device="cpu")
    (_, first), (rank, second) = cluster.run(begin)
    print(first, second, flush=True)
    os.kill(rank, signal.SIGKILL)
    while os.path.exists(f"/proc/{second}"):  # until the server has seen to it, and said that the rank has ended
        time.sleep(0.01)
    time.sleep(0.1)  # until it waits for the next request
    os.kill(os.getpid(), signal.SIGKILL)

# In a thread, or Linux would tell the server of the kernel's end, mostly before the socket
threading.Thread(target=work).start()
time.sleep(100)
"""

NO_FILE_LEFT = """
import os, resource
from zerolab import Cluster
resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))
taken = [open(os.devnull) for _ in range(35)]
try:
    Cluster(2, device="cpu")
except RuntimeError as error:
    print(error)
"""

FOLDER_DELETED = """
import os, tempfile
from zerolab import Cluster
os.chdir(tempfile.mkdtemp())
os.rmdir(os.getcwd())
try:
    Cluster(1, device="cpu")
except FileNotFoundError as error:
    print(error)
os.chdir("/")
with Cluster(1, device="cpu") as cluster:
    print(cluster.run(int))
"""

NO_MORE_PROCESSES = """
import errno, os
fork, tries = os.fork, []
def refused_once():
    tries.append(1)
    if len(tries) == 1:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
    return fork()
os.fork = refused_once
"""

SIGPIPE_ENDS_IT = """
import os, signal, time
from zerolab import Cluster, RankError
from zerolab.runtime import launch
from zerolab.runtime.ranks import Ranks
signal.signal(signal.SIGPIPE, signal.SIG_DFL)
cluster = Cluster(1, device="cpu")
os.kill(*cluster.run(os.getpid), signal.SIGKILL)
while Ranks.are_all_alive(cluster._ranks):
    time.sleep(0.01)
Ranks.are_all_alive = lambda ranks: True  # as if it had died only now
try:
    cluster.run(int)
except RankError as error:
    print(error.signal)
print(cluster.run(int))
server = launch.launcher()._process
server.kill()
server.wait()
cluster.close()
print("closed")
"""

FEW_THREADS = """
import os, resource, psutil
from zerolab import Cluster, RankError
from zerolab.runtime import launch
with Cluster(1, device="cpu") as cluster:
    before = cluster.run(os.getpid)
    found = [each.info for each in psutil.process_iter(["uids", "num_threads"])]
    threads = sum(each["num_threads"] or 0 for each in found if each["uids"] and each["uids"].real == os.getuid())
    limit = threads + 6, resource.getrlimit(resource.RLIMIT_NPROC)[1]
    for process in (os.getpid(), launch.launcher()._process.pid):
        resource.prlimit(process, resource.RLIMIT_NPROC, limit)
    try:
        Cluster(2, device="cpu")
    except RankError as error:
        print(error.said)
    print(cluster.run(os.getpid) == before)
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
def test_programs_of_ranks_end_with_a_kernel_that_is_killed_before_it_has_read_what_its_server_said():
    command = [sys.executable, "-c", KILLED_WITH_A_REPORT_UNREAD]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    deadline = time.monotonic() + 30
    while any(map(psutil.pid_exists, map(int, done.stdout.split()))):
        assert time.monotonic() < deadline
        time.sleep(0.05)


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


def test_a_server_that_was_stopped_goes_on_as_soon_as_a_rank_starts_or_ends(own_server):
    server = launch.launcher()._process
    with Cluster(1, device="cpu") as cluster:
        in_any_case = threading.Timer(60, server.kill)
        in_any_case.start()
        os.kill(server.pid, signal.SIGSTOP)
        with pytest.raises(RankError, match="ended with exit code 3"):
            cluster.run(os._exit, 3)
        os.kill(server.pid, signal.SIGSTOP)
        with Cluster(2, device="cpu") as other:
            assert other.run(dist.get_rank) == [0, 1]
        in_any_case.cancel()


def test_a_server_that_is_stopped_while_a_rank_is_waited_for_goes_on(own_server, monkeypatch):
    def start(launcher, fds, *, really=ForkLauncher.start):
        os.kill(launcher._process.pid, signal.SIGSTOP)
        return really(launcher, fds)

    in_any_case = threading.Timer(30, launch.launcher()._process.kill)
    in_any_case.start()
    monkeypatch.setattr(ForkLauncher, "start", start)
    with Cluster(1, device="cpu") as cluster:
        assert cluster.run(dist.get_rank) == [0]
    in_any_case.cancel()


def test_what_the_server_is_told_to_import_every_rank_has_from_its_start():
    """One that does not exist keeps no rank from starting."""
    module = "this"  # Python's own, which nothing imports
    with Cluster(world_size=1, device="cpu") as cluster:
        assert cluster.run(lambda: module in sys.modules) == [False]
    launch.launcher().preload("no_such_module")
    launch.launcher().preload(module)
    with Cluster(world_size=2, device="cpu") as cluster:
        assert cluster.run(lambda: module in sys.modules) == [True, True]


@pytest.mark.slow
def test_a_process_whose_own_streams_are_closed_has_ranks_like_any_other():
    ended = output_of(WITHOUT_STREAMS)
    assert ended.stdout == "[(b'', None), (b'', None)]", ended


@pytest.mark.slow
def test_a_process_that_may_open_no_file_more_is_told_so_before_there_is_a_fork_server():
    assert output_of(NO_FILE_LEFT).stdout.startswith("2 ranks need more files than the 40 that this process may have")


@pytest.mark.slow
def test_a_process_whose_folder_was_deleted_is_told_so_before_it_or_a_fork_server_imports_torch_there():
    said, results = output_of(FOLDER_DELETED).stdout.splitlines()
    assert said.startswith("the folder in which this notebook works was deleted")
    assert results == "[0]"


@pytest.mark.slow
def test_threads_that_make_their_clusters_at_once_share_one_fork_server(own_server):
    before = set(psutil.Process().children())
    with ThreadPoolExecutor(4) as pool:
        clusters = list(pool.map(lambda _: Cluster(1, device="cpu"), range(4)))
    assert [cluster.run(dist.get_rank) for cluster in clusters] == [[0]] * 4
    assert len(set(psutil.Process().children()) - before) == 1
    for cluster in clusters:
        cluster.close()


@pytest.mark.slow
def test_a_fork_that_the_system_refuses_costs_one_cluster_and_no_other(own_server, tmp_path, monkeypatch):
    (tmp_path / "no_more_processes.py").write_text(NO_MORE_PROCESSES)
    monkeypatch.syspath_prepend(tmp_path)
    with Cluster(1, device="cpu") as cluster:
        before = cluster.run(os.getpid)
        launch.launcher().preload("no_more_processes")
        with pytest.raises(RuntimeError, match=r"^no process can be started for a rank: Resource temporarily unavai"):
            Cluster(2, device="cpu")
        assert cluster.run(os.getpid) == before
        with Cluster(2, device="cpu") as other:
            assert other.run(dist.get_rank) == [0, 1]


@pytest.mark.slow
def test_a_server_that_imports_for_long_is_waited_for_as_long_as_it_works(own_server, tmp_path, monkeypatch):
    (tmp_path / "works_long.py").write_text(
        "import time; end = time.monotonic() + 6\nwhile time.monotonic() < end: pass"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(launch, "START_LIMIT", 3.0)
    with Cluster(1, device="cpu") as cluster:
        launch.launcher().preload("works_long")
        with Cluster(1, device="cpu") as other:
            assert other.run(dist.get_rank) == cluster.run(dist.get_rank)


@pytest.mark.slow
def test_a_rank_that_dies_while_the_server_is_busy_is_named_and_not_who_lost_it(own_server, tmp_path, monkeypatch):
    (tmp_path / "takes_long.py").write_text("import time; time.sleep(4)")
    monkeypatch.syspath_prepend(tmp_path)

    def die():
        if dist.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        dist.barrier()

    with Cluster(2, device="cpu") as cluster:
        launch.launcher().preload("takes_long")
        with pytest.raises(RankError, match=r"^rank 1 \(pid \d+\) was killed by SIGKILL"):
            cluster.run(die)


@pytest.mark.slow
def test_a_script_that_sigpipe_ends_outlives_its_ranks_and_their_server():
    ended = output_of(SIGPIPE_ENDS_IT)
    assert ended.returncode == 0, ended
    first, _, *others = ended.stdout.splitlines()  # between them is what was lost
    assert (first, others) == ("SIGKILL", ["[0]", "closed"])


@pytest.mark.slow
def test_where_no_more_threads_are_allowed_the_limit_is_named(require):
    # Root has no such limit.
    nobody = ["setpriv", "--reuid=65534", "--clear-groups", "--inh-caps=+dac_override", "--ambient-caps=+dac_override"]
    apart = nobody if os.getuid() == 0 else []
    is_possible = sys.platform == "linux" and subprocess.run([*apart, "true"], check=False).returncode == 0
    require(is_possible, "a user with a limit of processes", "run on Linux, not as root or with setpriv")
    command = [*apart, sys.executable, "-c", FEW_THREADS]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    # Before it, gloo may have written that it lost the rank, on the rank that was about to connect to it.
    *_, said, goes_on = ended.stdout.splitlines()
    assert said.startswith("no thread can be started for this rank; the limit of processes and threads ("), ended
    assert goes_on == "True"


@pytest.mark.slow
def test_a_rank_that_dies_before_it_is_told_anything_is_named(own_server, tmp_path, monkeypatch):
    (tmp_path / "dies_at_once.py").write_text("from zerolab.runtime import worker; worker.main = lambda _: exit(9)")
    monkeypatch.syspath_prepend(tmp_path)
    launch.launcher().preload("dies_at_once")
    monkeypatch.setenv("LONG", "x" * 1_000_000)  # more than a pipe holds: Linux gives no new program so much
    with pytest.raises(RankError, match=r"^rank [01] \(pid \d+\) ended with exit code 1"):
        Cluster(2, device="cpu")
