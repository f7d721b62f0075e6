"""What a notebook does to its own process, sockets, signals and streams, costs no rank."""

import gc
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import torch.distributed as dist

from zerolab import Cluster, RankError
from zerolab.runtime import output
from zerolab.runtime.interrupts import interruptible
from zerolab.runtime.launch import ForkLauncher
from zerolab.runtime.ranks import Ranks

TIMEOUT_AND_SIGNALS = """
import os, signal, socket
from zerolab import Cluster, RankError
socket.setdefaulttimeout(5)
signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
with Cluster(2, device="cpu", timeout=5) as cluster:
    print(cluster.run(lambda: sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ()))))
    try:
        cluster.run(os._exit, 3)
    except RankError as error:
        print("exit code", error.exitcode)
"""

FOLDERS_THAT_ARE_PATHS = """
import sys
from pathlib import Path
from zerolab import Cluster, RankError
sys.path.append(Path("lessons"))  # which Python passes over without a word

def fail():
    sys.path.append(Path("lessons"))
    raise ValueError("no batch")

with Cluster(2, device="cpu") as cluster:
    try:
        cluster.run(fail)
    except RankError as error:
        print(error.said)
"""

STOPPED_AT_THE_START = """
import gc, os, signal, subprocess, psutil, torch.distributed as dist
from zerolab import Cluster

def stopped(owner, name):
    really = getattr(owner, name)
    def press(*args, **kwargs):
        made = really(*args, **kwargs)
        signal.raise_signal(signal.SIGINT)
        return made
    setattr(owner, name, press)
    try:
        Cluster(2, device="cpu")
    except KeyboardInterrupt:
        return name
    finally:
        setattr(owner, name, really)

signal.signal(signal.SIGINT, signal.default_int_handler)
print(stopped(subprocess, "Popen"))
Cluster(2, device="cpu").close()
gc.collect()
before = psutil.Process().num_fds()
print(stopped(os, "pipe"))
gc.collect()
print("left open", psutil.Process().num_fds() - before)
with Cluster(2, device="cpu") as cluster:
    print(cluster.run(dist.get_rank), "servers", len(psutil.Process().children()))
"""

STOPPED_DURING_AN_IMPORT = """
import signal, sys

class PressStop:
    def find_spec(self, name, path=None, target=None):
        if name == "torch.nn" and self in sys.meta_path:
            sys.meta_path.remove(self)
            signal.raise_signal(signal.SIGINT)

signal.signal(signal.SIGINT, signal.default_int_handler)
sys.meta_path.insert(0, PressStop())
import zerolab
try:
    zerolab.Zero1
except KeyboardInterrupt:
    print("stopped", zerolab.Zero1.__name__)
"""

IN_A_FOLDER_OF_AN_OLD_DISK = """
import os, torch, torch.distributed as dist
from zerolab import Cluster, RankError

def train():
    dist.all_reduce(torch.ones(1))
    if dist.get_rank() == 1:
        raise ValueError("no batch")

def größer():
    os._exit(dist.get_rank())

with Cluster(2, device="cpu") as cluster:
    print(cluster.record(dist.get_rank).results)
    for function in (train, größer):
        try:
            cluster.run(function)
        except RankError as error:
            print(error.where)
            print(*error.traceback.encode().decode().splitlines(), sep=" | ")  # no half a letter
"""

FOREIGN_LETTERS = """
from zerolab import Cluster
with Cluster(2, device="cpu") as cluster:
    cluster.run(print, "caf\\xe9 \\u2192")
"""


def fail():
    raise ValueError("the batch is empty")


@pytest.mark.slow
def test_sockets_with_a_timeout_and_signals_that_are_blocked_stay_the_notebooks_own_affair():
    # In a process of its own, for the fork server inherits what there is as it starts.
    command = [sys.executable, "-c", TIMEOUT_AND_SIGNALS]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert ended.stdout.splitlines() == ["[[], []]", "exit code 3"], ended.stderr


@pytest.mark.slow
def test_ranks_start_and_say_what_fails_whatever_stands_among_the_folders_to_import_from():
    python = [sys.executable, "-c", FOLDERS_THAT_ARE_PATHS]
    assert subprocess.run(python, capture_output=True, text=True, check=True).stdout == "no batch\n"


@pytest.mark.slow
def test_stop_as_the_fork_server_or_a_pipe_is_made_leaves_no_process_and_nothing_open():
    command = [sys.executable, "-c", STOPPED_AT_THE_START]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert ended.stdout.splitlines() == ["Popen", "pipe", "left open 0", "[0, 1] servers 1"], ended.stderr


@pytest.mark.slow
def test_stop_as_a_name_is_imported_leaves_no_half_of_torch_behind():
    command = [sys.executable, "-c", STOPPED_DURING_AN_IMPORT]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert ended.stdout == "stopped Zero1\n", ended.stderr


@pytest.fixture
def stop_button():
    """Stop raises KeyboardInterrupt, as in a kernel; a shell that starts the tests with `&` has SIGINT ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.slow
@pytest.mark.usefixtures("stop_button")
def test_a_second_stop_while_ranks_are_ended_leaves_nothing_open_and_the_next_run_works(cluster, monkeypatch):
    assert cluster.run(dist.get_rank) == [0, 1]
    members = cluster._ranks.members
    gc.collect()  # what other tests have left for the collector would go in between
    before = psutil.Process().num_fds()

    def kill(launcher, pids, *, really=ForkLauncher.kill):
        signal.raise_signal(signal.SIGINT)
        really(launcher, pids)

    with monkeypatch.context() as pressed:
        pressed.setattr(ForkLauncher, "kill", kill)
        with pytest.raises(KeyboardInterrupt):
            cluster.run(fail)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert all(member.commands.closed for member in members)
    assert cluster.run(dist.get_rank) == [0, 1]
    gc.collect()  # the board goes with the errors that still know it
    assert psutil.Process().num_fds() == before


@pytest.mark.usefixtures("stop_button")
def test_stop_pressed_all_the_time_is_answered_once_and_says_what_it_costs(cluster, monkeypatch):
    assert cluster.run(dist.get_rank) == [0, 1]

    def wait(ranks, limit, *, really=Ranks.wait):
        if limit:  # as the kernel waits for a result, and again as it asks where the ranks are
            with interruptible():
                signal.raise_signal(signal.SIGINT)
        return really(ranks, limit)

    def kill(launcher, pids, *, really=ForkLauncher.kill):
        signal.raise_signal(signal.SIGINT)
        really(launcher, pids)

    with monkeypatch.context() as pressed:
        pressed.setattr(Ranks, "wait", wait)
        pressed.setattr(ForkLauncher, "kill", kill)
        with pytest.raises(KeyboardInterrupt, match=r"^stopped; the next run starts fresh ranks") as caught:
            cluster.run(time.sleep, 1000)
    assert caught.value.__context__ is None or caught.value.__suppress_context__
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert cluster.run(dist.get_rank) == [0, 1]


def test_a_handler_that_interrupts_nothing_hears_every_stop(cluster, monkeypatch):
    """A loop that leaves after this step when Stop is pressed once, and now when it is pressed twice."""
    heard = []

    def wait(ranks, limit, *, really=Ranks.wait):
        for _ in range(2 if limit and not heard else 0):
            with interruptible():
                signal.raise_signal(signal.SIGINT)
                signal.raise_signal(signal.SIGINT)
        return really(ranks, limit)

    before = signal.signal(signal.SIGINT, lambda number, _: heard.append(number))
    try:
        monkeypatch.setattr(Ranks, "wait", wait)
        assert cluster.run(dist.get_rank) == [0, 1]
        assert heard == [signal.SIGINT] * 4
    finally:
        signal.signal(signal.SIGINT, before)


UNDER_ASYNCIO = """
import asyncio, os, signal, time
import torch.distributed as dist
from zerolab import Cluster

notebook = os.getpid()

def press_stop(seconds):
    if dist.get_rank() == 0:
        os.kill(notebook, signal.SIGINT)
    time.sleep(seconds)

async def train(seconds):
    return cluster.run(press_stop, seconds)

async def train_with_a_handler():
    pressed = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, lambda: (print("heard"), pressed.set()))
    answers = cluster.run(press_stop, 0.3)
    await pressed.wait()
    return answers

signal.signal(signal.SIGINT, signal.default_int_handler)
with Cluster(2, device="cpu", timeout=5) as cluster:
    print(asyncio.run(train_with_a_handler()))
    started = time.monotonic()
    try:
        asyncio.run(train(60))
    except KeyboardInterrupt:
        print("stopped", time.monotonic() - started < 30)
"""


def test_stop_under_asyncio_run_acts_at_once_and_a_handler_of_ones_own_hears_it_and_interrupts_nothing():
    # In a process of its own: where a browser is driven in this one, its thread has a loop that runs.
    command = [sys.executable, "-c", UNDER_ASYNCIO]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    heard, answers, *_, stopped = done.stdout.splitlines()  # between them it may say where the ranks were
    assert (heard, answers, stopped) == ("heard", "[None, None]", "stopped True")


def test_ranks_that_stop_kept_from_being_ended_are_not_used_again(cluster, monkeypatch):
    before = cluster.run(os.getpid)

    def interrupted(self):
        raise KeyboardInterrupt

    with monkeypatch.context() as pressed:
        pressed.setattr(Cluster, "_release", interrupted)
        with pytest.raises(KeyboardInterrupt):
            cluster.run(fail)
    assert not set(before) & set(cluster.run(os.getpid))


@pytest.mark.usefixtures("stop_button")
def test_stop_as_a_run_comes_to_its_end_leaves_the_cluster_free_for_the_next(cluster, monkeypatch):
    before = cluster.run(os.getpid)
    with monkeypatch.context() as pressed:
        pressed.setattr(cluster._idle, "touch", lambda: signal.raise_signal(signal.SIGINT))
        with pytest.raises(KeyboardInterrupt):
            cluster.run(dist.get_rank)
    assert cluster.run(os.getpid) == before


def speak():
    print(f"rank {dist.get_rank()} speaks")
    return os.getpid()


@pytest.mark.parametrize("stdout", ["none", "full", "closed"])
def test_a_stdout_that_fails_costs_what_was_printed_and_no_rank(cluster, monkeypatch, capsys, stdout):
    before = cluster.run(os.getpid)
    monkeypatch.setattr(output, "_failures", set())
    stream = None if stdout == "none" else Path("/dev/full").open("w", buffering=1)  # noqa: SIM115
    if stdout == "closed":
        stream.close()
    with monkeypatch.context() as instead:
        instead.setattr(sys, "stdout", stream)
        assert cluster.run(speak) == before
        assert cluster.run(speak) == before
        with pytest.raises(RankError, match="the batch is empty"):
            cluster.run(fail)
        fresh = cluster.run(speak)  # "fresh ranks: ..." is not shown either
    assert cluster.run(speak) == fresh
    shown, said = capsys.readouterr()
    assert shown.count("speaks") == 2
    assert said.count("what the ranks print cannot be shown: ") == (0 if stdout == "none" else 1)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="names of files are Unicode on macOS")
def test_a_script_in_a_folder_whose_name_is_no_unicode_runs_and_is_named(tmp_path):
    script = tmp_path / os.fsdecode(b"caf\xe9") / os.fsdecode(b"le\xe7on.py")
    script.parent.mkdir()
    script.write_text(IN_A_FOLDER_OF_AN_OLD_DISK, encoding="utf-8")
    ended = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=120, check=False)
    first, raised, trace, _, died, stack = ended.stdout.splitlines()
    assert first == "[0, 1]", ended
    assert raised == 'le\\udce7on.py, line 8: raise ValueError("no batch")'
    assert died == "le\\udce7on.py, line 11: os._exit(dist.get_rank())"
    assert 'File "le\\udce7on.py", line 8, in train |' in trace
    assert 'File "le\\udce7on.py", line 11, in größer |     os._exit(dist.get_rank())' in stack


@pytest.mark.slow
@pytest.mark.parametrize(("encoding", "shown"), [("latin-1", "café \\u2192"), ("koi8-r", "caf\\xe9 \\u2192")])
def test_letters_that_stdout_does_not_have_are_written_as_their_numbers(encoding, shown):
    environment = os.environ | {"PYTHONIOENCODING": encoding}
    command = [sys.executable, "-c", FOREIGN_LETTERS]
    ended = subprocess.run(command, env=environment, capture_output=True, timeout=120, check=False)
    assert (ended.stdout.decode(encoding), ended.stderr) == (f"[ranks 0-1] {shown}\n", b"")
