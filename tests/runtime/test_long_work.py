"""Ranks that wait for one that works, for however long and wherever it works; and the words if it does not."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from zerolab import Cluster, CollectiveHang
from zerolab.runtime import worker

SPIN = "import time\nend = time.monotonic() + {}\nwhile time.monotonic() < end: sum(range(10000))"


@pytest.fixture(scope="module")
def pair():
    with Cluster(2, device="cpu", timeout=2) as cluster:
        cluster.run(os.getpid)
        yield cluster


class Slow(torch.utils.data.Dataset):
    def __len__(self):
        return 2

    def __getitem__(self, index):
        end = time.monotonic() + 2
        while time.monotonic() < end:
            sum(range(10000))
        return index


def in_a_program():
    subprocess.run([sys.executable, "-c", SPIN.format(4)], check=True)


def in_a_program_with_a_session_of_its_own():
    subprocess.run([sys.executable, "-c", SPIN.format(4)], check=True, start_new_session=True)


def in_a_thread():
    thread = threading.Thread(target=list, args=(map(Slow().__getitem__, range(2)),))
    thread.start()
    thread.join()


def in_a_thread_that_keeps_the_lock():
    def add():
        end = time.monotonic() + 4
        while time.monotonic() < end:
            sum(range(3 * 10**7))  # one call into C

    thread = threading.Thread(target=add)
    thread.start()
    thread.join()


def in_a_worker_of_a_data_loader():
    list(torch.utils.data.DataLoader(Slow(), batch_size=2, num_workers=1))


PLACES = (
    in_a_program,
    in_a_program_with_a_session_of_its_own,
    in_a_thread,
    in_a_thread_that_keeps_the_lock,
    in_a_worker_of_a_data_loader,
)


@pytest.mark.slow
@pytest.mark.parametrize("work", PLACES, ids=[place.__name__ for place in PLACES])
def test_a_rank_that_works_elsewhere_than_in_its_main_thread_is_not_reported_as_hanging(pair, work):
    def train():
        if dist.get_rank() == 1:
            work()
        dist.barrier()
        return dist.get_rank()

    assert pair.run(train) == [0, 1]


def for_programs_that_sleep():
    subprocess.Popen(["sleep", "1000"], start_new_session=True)
    subprocess.run(["sleep", "1000"], check=True)


def for_a_thread_that_sleeps():
    thread = threading.Thread(target=time.sleep, args=(1000,), daemon=True)
    thread.start()
    thread.join()


@pytest.mark.slow
@pytest.mark.parametrize("wait", [for_programs_that_sleep, for_a_thread_that_sleeps])
def test_a_rank_that_waits_for_what_only_sleeps_is_found_and_named_with_its_line(pair, wait):
    def train():
        if dist.get_rank() == 1:
            wait()
        dist.barrier()

    with pytest.raises(CollectiveHang) as caught:
        pair.run(train)
    sentence = (
        r"rank 0 has waited in barrier #0 for 2 s, and no other rank moves: "
        r"rank 1 waits for no other rank, and uses hardly any CPU, at test_long_work.py, line \d+: "
    )
    assert re.match(sentence, str(caught.value)), str(caught.value)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seconds", "ends"),
    [(7, contextlib.nullcontext()), (60, pytest.raises(CollectiveHang, match="rank 1 waits for no other rank"))],
    ids=["a slow one", "one that is gone"],
)
def test_a_rank_may_wait_for_a_disk_for_as_long_as_the_timeout(tmp_path, seconds, ends):
    os.mkfifo(tmp_path / "slow")

    def write():
        if dist.get_rank() == 1:  # Linux counts waiting for a child that has not begun its program in the same way
            files = [(os.POSIX_SPAWN_OPEN, 0, tmp_path / "slow", os.O_RDONLY, 0)]
            os.waitpid(os.posix_spawn("/bin/true", ["true"], os.environ, file_actions=files), 0)
        dist.barrier()

    timer = threading.Timer(seconds, (tmp_path / "slow").write_bytes, [b""])
    with Cluster(2, device="cpu", timeout=5) as cluster:
        timer.start()
        with ends:
            cluster.run(write)
    timer.cancel()


@pytest.mark.slow
def test_a_rank_inside_a_collective_is_found_although_a_program_that_it_started_works(pair):
    def train():
        subprocess.Popen([sys.executable, "-c", SPIN.format(1000)])
        dist.barrier() if dist.get_rank() else dist.all_reduce(torch.ones(1))

    with pytest.raises(CollectiveHang, match="no other rank moves: they wait for each other"):
        pair.run(train)


@pytest.mark.slow
def test_a_hang_with_several_ranks_outside_collectives_names_them():
    def train():
        if dist.get_rank():
            signal.pause()
        dist.barrier()

    with (
        Cluster(3, device="cpu", timeout=1.5) as cluster,
        pytest.raises(CollectiveHang, match="moves: ranks 1, 2 wait for no other rank, and use hardly any CPU"),
    ):
        cluster.run(train)


def limits():
    """Of each way to wait for other ranks: after how long torch ends it."""
    from torch.distributed.device_mesh import init_device_mesh

    groups = [dist.group.WORLD, dist.new_group([0, 1]), init_device_mesh("cpu", (2, 1)).get_group(0)]
    cpu = torch.device("cpu")
    store = dist.distributed_c10d._world.pg_map[dist.group.WORLD][1]
    return [group._get_backend(cpu).options._timeout for group in groups] + [store.timeout]


def test_torch_ends_no_wait_for_another_rank_that_may_compute_for_hours(pair):
    for found in pair.run(limits):  # from torch 2.14 on, gloo's are an eighth of a second shorter
        assert [limit > worker.LONGEST_WAIT - timedelta(seconds=1) for limit in found] == [True] * 4
