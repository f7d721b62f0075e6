"""Small, full and shared machines: two gigabytes and one core, no room in /tmp, sixteen ranks, ranks that idle."""

import gc
import json
import os
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import psutil
import pytest
import torch
import torch.distributed as dist

from zerolab import Cluster, Zero3, doctor, models
from zerolab.runtime import devices, machine

ROOT = Path(__file__).resolve().parents[2]
GB = 10**9


def train(name="gpt-tiny", steps=2):
    engine = Zero3(models.build(name), torch.optim.AdamW)
    batches = models.batches(name, dist.get_world_size(), dist.get_rank(), steps)
    losses = [engine.training_step(*batch, models.loss).item() for batch in batches]
    return losses, torch.cat([value.flatten() for value in engine.state_dict().values()])


def smaps(pid):
    """What `/proc` says of a process's memory, in bytes by name."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    return {name.rstrip(":"): int(value) * 1024 for name, value, *_ in map(str.split, lines)}


class Memory(threading.Thread):
    """Samples the memory of a family of processes until it is stopped; `most` is the highest sum seen.

    Each page of a program's own counts in the shares in which the family has it mapped. A library's pages may be shared
    with strangers, this test for one, so of those the largest mapping of any member counts in full.
    """

    def __init__(self, family):
        super().__init__(daemon=True)
        self.family, self.most, self.done = family, 0, threading.Event()
        self.start()

    def run(self):
        while not self.done.wait(0.2):
            sums = []
            for pid in self.family():
                try:
                    sums.append(smaps(pid))
                except (OSError, ProcessLookupError):
                    continue  # it has just ended
            if sums:
                own = sum(each["Pss_Anon"] + each["Pss_Shmem"] for each in sums)
                files = max(each["Rss"] - each["Anonymous"] for each in sums)
                self.most = max(self.most, own + files, sum(each["Pss"] for each in sums))

    def stop(self):
        self.done.set()
        self.join()
        return self.most


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="memory is read from Linux's /proc")
def test_a_kernel_with_four_ranks_and_a_lesson_fits_in_two_gigabytes_and_on_one_core(start_kernel):
    kernel = start_kernel()
    process = psutil.Process(kernel.pid)
    process.cpu_affinity(process.cpu_affinity()[:1])
    memory = Memory(lambda: [kernel.pid, *(member.pid for member in kernel.family())])
    kernel.run(f"import os; os.chdir({str(ROOT / 'notebooks')!r})")
    lesson = json.loads((ROOT / "notebooks" / "04-zero1.ipynb").read_text())
    for cell in lesson["cells"]:
        if cell["cell_type"] == "code" and "same on your GPUs" not in str(cell):
            _, error = kernel.run("".join(cell["source"]), timeout=120)
            assert error is None, error
    assert kernel.run("os.sched_getaffinity(0)")[0].count(",") == 0, "one core"
    most = memory.stop()
    print(f"the most that kernel, fork server and ranks held: {most / 1e9:.2f} GB")
    assert 0.3 * GB < most <= doctor.LESSON_BYTES


def test_a_rank_takes_no_more_of_its_own_than_the_limit_of_the_world_size_counts_with(cluster):
    pids = cluster.run(os.getpid)
    cluster.run(train)
    for pid in pids:
        figures = smaps(pid)
        assert figures["Private_Dirty"] + figures["Private_Clean"] <= devices.RANK_BYTES


BOX = "/mnt/box"  # where the checkout is seen while its own place may lie under a full folder
FULL = f"""
set -e
mount -t tmpfs none /mnt
mkdir {BOX}
mount --bind {ROOT} {BOX}
mount -t tmpfs -o size=64m none /dev/shm
for folder in /var/tmp /tmp; do
    mount -t tmpfs -o size=100k none $folder
    mkdir $folder/work
    head -c 1M /dev/zero > $folder/filler 2>/dev/null || true
done
cd /tmp/work
exec "$@"
"""
LESSON = """
import sys, tempfile, torch, torch.distributed as dist
from zerolab import Cluster, Zero3, models
try:
    print("there is room in", tempfile.gettempdir())
except FileNotFoundError:
    pass

def train():
    engine = Zero3(models.build("gpt-tiny"), torch.optim.AdamW)
    for batch in models.batches("gpt-tiny", dist.get_world_size(), dist.get_rank(), 2):
        engine.training_step(*batch, models.loss)
    return torch.ones(25_000_000)  # more than /dev/shm holds

with Cluster(4, device="cpu") as cluster:
    recording = cluster.record(train)
    print(len(recording.ranks), [result.sum().item() for result in recording.results])
"""


@pytest.mark.slow
def test_no_room_for_temporary_files_and_a_small_shared_memory_do_not_matter(require):
    probe = subprocess.run(["unshare", "--mount", "mount", "-t", "tmpfs", "none", "/mnt"], check=False)
    require(probe.returncode == 0, "the right to mount in a namespace of one's own", "run as root on Linux")
    python = sys.executable.replace(str(ROOT), BOX)
    command = ["unshare", "--mount", "bash", "-c", FULL, "bash", python, "-c", LESSON]
    environment = os.environ | {"PYTHONPATH": BOX}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == "4 [25000000.0, 25000000.0, 25000000.0, 25000000.0]\n"


JOIN = """
from zerolab import Cluster
try:
    Cluster(2, device="cpu")
except RuntimeError as error:
    print(error)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="network namespaces are Linux's")
def test_without_a_loopback_interface_the_cause_is_named_and_no_rank_blames_a_peer(require):
    apart = ["unshare", "--map-root-user", "--net"]
    probe = subprocess.run([*apart, "true"], check=False)
    require(probe.returncode == 0, "the right to make a network namespace of one's own", "run as root on Linux")
    said = subprocess.run([*apart, sys.executable, "-c", JOIN], capture_output=True, text=True, check=True).stdout
    assert (
        "raised RuntimeError: the network interface lo, over which the ranks of one machine talk, has no addr" in said
    )
    assert "`ip link set lo up` brings it up" in said.splitlines()[0]
    assert "lost a peer" not in said


@pytest.mark.slow
def test_without_proc_the_cause_is_named_at_once(require):
    apart = ["unshare", "--mount", "sh", "-c", 'umount -l /proc && exec "$@"', "sh"]
    require(
        subprocess.run([*apart, "true"], check=False).returncode == 0, "the right to unmount", "run as root on Linux"
    )
    ended = subprocess.run([*apart, sys.executable, "-c", JOIN], capture_output=True, text=True, timeout=60, check=True)
    assert "raised RuntimeError: ranks find each other through /proc, which is not mounted here" in ended.stdout


FEW_FILES = """
import resource
from zerolab import Cluster
resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))
for world_size in (16, 2):
    try:
        with Cluster(world_size, device="cpu") as cluster:
            print(cluster.run(int))
    except RuntimeError as error:
        print(error)
"""


@pytest.mark.slow
def test_more_ranks_than_files_may_be_open_are_refused_in_a_sentence_and_fewer_start():
    said = subprocess.run([sys.executable, "-c", FEW_FILES], capture_output=True, text=True, check=True).stdout
    refused, started = said.splitlines()
    assert refused == (
        "16 ranks need more files than the 40 that this process may have open: ask for fewer ranks, or start Python "
        "where `ulimit -n` is higher"
    )
    assert started == "[0, 0]"


@pytest.mark.slow
def test_sixteen_ranks_on_two_cores_train_and_agree():
    everything = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(everything)[:2])  # ranks are forked by a server that inherits it
    script = textwrap.dedent(
        """
        import torch
        from test_machines import train
        from zerolab import Cluster

        with Cluster(16, device="cpu") as cluster:
            answers = cluster.run(train)
        assert all(torch.equal(answers[0][1], weights) for _, weights in answers)
        assert len({losses[0] for losses, _ in answers}) == 16, "everyone has rows of its own"
        print("agreed")
        """
    )
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parent)}
    try:
        ended = subprocess.run(
            [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False
        )
    finally:
        os.sched_setaffinity(0, everything)
    assert ended.stdout == "agreed\n", ended.stderr


@pytest.mark.parametrize(
    ("files", "group"),
    [
        ({"memory.max": "3000000000", "memory.current": "1200000000", "memory.stat": "inactive_file 200000000"}, "0::"),
        (
            {
                "memory.limit_in_bytes": "3000000000",
                "memory.usage_in_bytes": "1200000000",
                "memory.stat": "inactive_file 1\ntotal_inactive_file 200000000",
            },
            "4:memory:",
        ),
    ],
)
def test_the_limit_of_a_container_is_the_memory_there_is(tmp_path, monkeypatch, files, group):
    # What Linux writes, read by the real function; to make a real control group takes rights that a container lacks.
    home = tmp_path if group == "0::" else tmp_path / "memory"
    inner = home / "lab" / "person"
    inner.mkdir(parents=True)
    for name, text in files.items():
        (home / "lab" / name).write_text(text + "\n")
        (inner / name).write_text(text.replace("3000000000", "max" if group == "0::" else str(2**63 - 4096)) + "\n")
    listed = tmp_path / "cgroup"
    listed.write_text(f"1:cpu:/\n{group}/lab/person\n")
    monkeypatch.setattr(machine, "CGROUP", tmp_path)
    monkeypatch.setattr(machine, "MEMBERSHIP", listed)
    assert machine.memory() == (3_000_000_000, 2_000_000_000), "what can be reclaimed counts as free"


@pytest.mark.parametrize(
    ("files", "group", "cores"),
    [
        ({"cpu.max": "250000 100000"}, "0::", 2),
        ({"cpu.cfs_quota_us": "250000", "cpu.cfs_period_us": "100000"}, "4:cpuacct,cpu:", 2),
        ({"cpu.max": "50000 100000"}, "0::", 1),
        ({"cpu.max": "max 100000"}, "0::", 64),
        ({"cpu.cfs_quota_us": "-1", "cpu.cfs_period_us": "100000"}, "4:cpu:", 64),
    ],
)
def test_the_limit_of_a_container_is_the_cores_there_are(tmp_path, monkeypatch, files, group, cores):
    home = tmp_path if group == "0::" else tmp_path / "cpu"
    (home / "lab" / "person").mkdir(parents=True)
    for name, text in files.items():
        (home / "lab" / name).write_text(text + "\n")
    listed = tmp_path / "cgroup"
    listed.write_text(f"5:memory:/\n{group}/lab/person\n")
    monkeypatch.setattr(machine, "CGROUP", tmp_path)
    monkeypatch.setattr(machine, "MEMBERSHIP", listed)
    monkeypatch.setattr(machine.os, "sched_getaffinity", lambda _: set(range(64)), raising=False)
    assert machine.cores() == cores


@pytest.mark.slow
def test_ranks_that_idle_end_with_a_note_and_the_next_call_starts_fresh_ones(monkeypatch, capfd):
    monkeypatch.setenv("ZEROLAB_IDLE_MINUTES", "0.02")
    with Cluster(2, device="cpu") as cluster:
        # Whoever computes for longer does not idle; how long the machine takes between two calls is not told here.
        answers = cluster.run(lambda: (time.sleep(2), os.getpid(), time.monotonic()))
        patience = time.monotonic() + 20
        while any(psutil.pid_exists(pid) for _, pid, _ in answers) and time.monotonic() < patience:
            time.sleep(0.05)
        assert 1.2 <= time.monotonic() - max(ended for *_, ended in answers) < 20, "the time begins as the call ends"
        assert cluster.run(dist.get_rank) == [0, 1]
        printed = capfd.readouterr().out
    assert "2 idle ranks ended after 0.02 minutes; the next call starts fresh ones\n" in printed
    assert "fresh ranks: what the ranks held in memory was lost when they idled for 0.02 minutes\n" in printed


@pytest.mark.slow
def test_a_call_that_comes_while_idle_ranks_are_ended_waits_for_that(monkeypatch):
    monkeypatch.setenv("ZEROLAB_IDLE_MINUTES", "0.02")
    with Cluster(1, device="cpu") as cluster:
        kill, begun = cluster._finalizer, threading.Event()

        def slowly():
            begun.set()
            time.sleep(0.5)
            kill()

        cluster._finalizer = slowly
        assert begun.wait(20)
        assert cluster.run(dist.get_rank) == [0]


def test_ranks_that_were_called_just_before_they_would_have_been_ended_go_on(cluster, capfd):
    before = cluster.run(os.getpid)
    cluster._end_idle_ranks()  # as the watch calls it that has looked at the time before that call
    assert cluster.run(os.getpid) == before
    assert "idle" not in capfd.readouterr().out


def watchers():
    return [thread for thread in threading.enumerate() if thread.name == "zerolab-idle"]


def test_a_cluster_that_is_closed_or_forgotten_is_watched_no_longer():
    there = len(watchers())
    with Cluster(1, device="cpu"):
        assert len(watchers()) == there + 1
    forgotten = Cluster(1, device="cpu")
    forgotten.run(dist.get_rank)
    del forgotten
    gc.collect()
    patience = time.monotonic() + 5
    while len(watchers()) > there and time.monotonic() < patience:
        time.sleep(0.02)
    assert len(watchers()) == there
