import gc
import json
import os
import re
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
import torch.distributed as dist

from zerolab import Cluster, RankError
from zerolab.runtime import hang, launch
from zerolab.runtime.cluster import most_recent
from zerolab.runtime.ranks import Ranks


def pids(cluster):
    return cluster.run(os.getpid)


def are_gone(numbers, within=3.0):
    deadline = time.monotonic() + within
    while any(psutil.pid_exists(pid) for pid in numbers) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not any(psutil.pid_exists(pid) for pid in numbers)


def test_a_function_runs_once_on_every_rank_and_results_come_in_rank_order(cluster):
    assert cluster.run(lambda a, b: (dist.get_rank(), dist.get_world_size(), a, b), 1, b="x") == [
        (0, 2, 1, "x"),
        (1, 2, 1, "x"),
    ]


def test_ranks_stay_the_same_processes_from_call_to_call(cluster):
    assert pids(cluster) == pids(cluster)
    assert len({*pids(cluster), os.getpid()}) == 3


def test_a_closure_travels_with_its_values_and_ranks_communicate(cluster):
    weight = torch.arange(3.0)

    def total():
        mine = weight * (dist.get_rank() + 1)
        dist.all_reduce(mine)
        return mine

    assert all(torch.equal(result, weight * 3) for result in cluster.run(total))


def test_tensors_come_back_as_cpu_copies_of_their_own_elements_without_gradient_tracking(cluster):
    def make():
        big = torch.zeros(1_000_000, requires_grad=True)
        return {"view": big[:3] * 1, "leaf": big[:0], "half": torch.ones(2, 2, dtype=torch.bfloat16), "zero": big.sum()}

    result = cluster.run(make)[0]
    assert result["view"].tolist() == [0, 0, 0]
    assert result["view"].untyped_storage().nbytes() == 12
    assert not any(tensor.requires_grad for tensor in result.values())
    assert result["leaf"].shape == (0,)
    assert result["half"].dtype == torch.bfloat16
    assert result["zero"].shape == ()
    result["view"].add_(1)  # a copy belongs to whoever holds it


def test_tensors_come_back_in_main_memory_whatever_the_default_device_here_is(cluster):
    with torch.device("meta"):  # stands for a GPU
        full, empty = cluster.run(lambda: (torch.ones(2), torch.ones(0)))[0]
    assert (full.device.type, empty.device.type) == ("cpu", "cpu")


def test_a_module_comes_back_with_its_parameters_trainable_and_tied_ones_tied(cluster):
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 3))
    model[1].weight = model[0].weight
    back = cluster.run(lambda: model)[1]
    assert back[1].weight is back[0].weight
    assert back[0].weight.requires_grad
    assert torch.equal(back[0].weight, model[0].weight)


def test_a_leaf_that_wants_a_gradient_still_does_on_the_rank(cluster):
    weight = torch.ones(2, requires_grad=True)

    def gradient():
        (weight * 3).sum().backward()
        return weight.grad

    assert cluster.run(gradient)[0].tolist() == [3, 3]


def test_an_object_of_a_class_made_here_comes_back_as_that_class(cluster):
    class Point:
        def __init__(self, x):
            self.x = x

    assert all(isinstance(point, Point) for point in cluster.run(lambda: Point(dist.get_rank())))


@pytest.mark.parametrize(
    ("arguments", "error", "sentence"),
    [
        ({"world_size": 0}, ValueError, "world_size is 0, .*give 1 or more"),
        ({"world_size": -3}, ValueError, "world_size is -3, .*give 1 or more"),
        ({"world_size": 2.0}, TypeError, "world_size is 2.0, .*such as 4"),
        ({"world_size": "4"}, TypeError, "world_size is '4', .*such as 4"),
        ({"world_size": True}, TypeError, "world_size is True, .*such as 4"),
        ({"device": "tpu"}, ValueError, "device is 'tpu', .*'auto', 'cpu', 'cuda'"),
        ({"timeout": 0}, ValueError, "timeout is 0, .*such as 20.0"),
        ({"timeout": -1.5}, ValueError, "timeout is -1.5, .*such as 20.0"),
        ({"timeout": float("nan")}, ValueError, "timeout is nan, .*such as 20.0"),
        ({"timeout": "soon"}, TypeError, "timeout is 'soon', .*such as 20.0"),
    ],
)
def test_arguments_that_make_no_sense_are_refused_with_the_value_and_the_remedy(arguments, error, sentence):
    with pytest.raises(error, match=f"^{sentence}$") as caught:
        Cluster(**arguments)
    assert "\n" not in str(caught.value)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this box has a GPU")
def test_cuda_without_a_gpu_is_refused_in_one_sentence():
    with pytest.raises(ValueError, match=r"'cuda', but torch sees no GPU here: .*; use device='cpu'$"):
        Cluster(2, device="cuda")


def test_what_cannot_be_sent_is_refused_before_it_is_sent_and_the_ranks_are_kept(cluster):
    before, lock = pids(cluster), threading.Lock()
    with pytest.raises(
        TypeError,
        match=r"<lambda> cannot be sent to the ranks because of lock, which .*lock.* inside the function instead",
    ):
        cluster.run(lambda: lock)
    with pytest.raises(TypeError, match="A Cluster stays in the notebook"):
        cluster.run(lambda: cluster.world_size)
    assert pids(cluster) == before


def test_a_result_that_cannot_be_sent_back_is_named():
    with Cluster(1, device="cpu") as cluster, pytest.raises(RankError, match="the result, a generator, cannot be sent"):
        cluster.run(lambda: (x for x in range(3)))


def test_a_closed_cluster_says_so_and_its_ranks_are_gone():
    with Cluster(2, device="cpu") as cluster:
        ranks = pids(cluster)
        assert most_recent() is cluster
    assert cluster.closed
    assert are_gone(ranks)
    assert most_recent() is not cluster
    cluster.close()
    with pytest.raises(RuntimeError, match=r"Cluster\(world_size=2, .*closed\) was closed; make a new one"):
        cluster.run(os.getpid)


def test_a_dropped_cluster_takes_its_ranks_along():
    cluster = Cluster(2, device="cpu")
    ranks = pids(cluster)
    del cluster
    gc.collect()
    assert are_gone(ranks)


def test_a_rank_whose_number_an_earlier_process_had_is_not_taken_for_that_one():
    """Numbers come round again, soon on a busy box: here all that Linux gives out next have been used before."""
    most = int(Path("/proc/sys/kernel/pid_max").read_text())
    with Cluster(1, device="cpu") as cluster:
        (last,) = pids(cluster)
    used = [300 + (last - 300 + step) % (most - 300) for step in range(2000)]
    launch.launcher()._ended.update(dict.fromkeys(used, (-9, 0)))
    with Cluster(2, device="cpu") as cluster:
        assert set(pids(cluster)) <= set(used)


def test_two_clusters_live_side_by_side(cluster):
    with Cluster(1, device="cpu") as other:
        assert other.run(dist.get_world_size) == [1]
        assert cluster.run(dist.get_world_size) == [2, 2]


def test_a_second_call_from_another_thread_is_refused_while_one_runs(cluster, tmp_path):
    def wait_for_the_end(folder):
        (folder / f"begun {dist.get_rank()}").touch()
        while not (folder / "end").exists():
            time.sleep(0.02)

    thread = threading.Thread(target=cluster.run, args=(wait_for_the_end, tmp_path))
    thread.start()
    while not (tmp_path / "begun 0").exists():
        time.sleep(0.02)
    with pytest.raises(RuntimeError, match="running something already, one call at a time"):
        cluster.run(os.getpid)
    (tmp_path / "end").touch()
    thread.join()
    assert len(cluster.run(os.getpid)) == 2


def test_a_cluster_that_another_thread_closes_while_it_runs_says_so(tmp_path):
    cluster = Cluster(2, device="cpu")

    def close_when_it_runs():
        while not (tmp_path / "runs").exists():
            time.sleep(0.01)
        cluster.close()

    def run_until_killed():
        (tmp_path / "runs").touch()
        time.sleep(1000)

    thread = threading.Thread(target=close_when_it_runs)
    thread.start()
    with pytest.raises(RuntimeError, match=r"closed\) was closed while it was running something"):
        cluster.run(run_until_killed)
    thread.join()


def test_a_run_whose_cluster_is_closed_meanwhile_never_reads_what_was_opened_in_the_place_of_its_pipes(
    monkeypatch, tmp_path
):
    cluster, opened, really = Cluster(2, device="cpu"), [], Ranks.wait
    (tmp_path / "file").write_text("mine")

    def close_and_open_others():
        cluster.close()
        opened.extend(os.open(tmp_path / "file", os.O_RDWR) for _ in range(40))

    def wait(ranks, limit):
        arrived = really(ranks, limit)
        if arrived and not opened:
            closing = threading.Thread(target=close_and_open_others)
            closing.start()
            closing.join()
        return arrived

    ranks, members = pids(cluster), cluster._ranks.members
    monkeypatch.setattr(Ranks, "wait", wait)
    with pytest.raises(RuntimeError, match="was closed while it was running something"):
        cluster.run(lambda: print("something arrives", flush=True) or time.sleep(1000))
    assert are_gone(ranks)
    assert all(member.commands.closed for member in members)
    assert [os.read(descriptor, 100) for descriptor in opened] == [b"mine"] * 40
    for descriptor in opened:
        os.close(descriptor)


class Closing:
    """An argument that closes the cluster while it is packed, as another thread might just then."""

    def __init__(self, cluster):
        self.cluster = cluster

    def __reduce__(self):
        self.cluster.close()
        return str, ()


def test_a_cluster_that_is_closed_as_a_run_begins_starts_no_fresh_ranks():
    with Cluster(1, device="cpu") as cluster:
        with pytest.raises(RuntimeError, match="was closed while it was running something"):
            cluster.run(print, Closing(cluster))
        assert cluster._ranks is None


def test_a_cluster_that_is_closed_while_it_starts_fresh_ranks_ends_those_too(monkeypatch):
    cluster, start = Cluster(1, device="cpu"), Cluster._start
    with pytest.raises(RankError):
        cluster.run(os._exit, 3)

    def close_meanwhile(self):
        closing = threading.Thread(target=cluster.close)
        closing.start()
        closing.join()
        return start(self)

    monkeypatch.setattr(Cluster, "_start", close_meanwhile)
    with pytest.raises(RuntimeError, match="was closed while it was running something"):
        cluster.run(os.getpid)
    assert cluster._ranks is None


def test_ranks_see_the_environment_folder_and_path_of_the_moment_they_start(monkeypatch, tmp_path):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5")
    monkeypatch.setenv("SET_IN_A_CELL", "yes")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "beside_the_notebook.py").write_text("answer = 42\n")

    def look():
        import beside_the_notebook

        return (
            os.environ["CUDA_VISIBLE_DEVICES"],
            os.environ["SET_IN_A_CELL"],
            str(Path.cwd()),
            beside_the_notebook.answer,
        )

    with Cluster(1, device="cpu") as cluster:
        assert cluster.run(look) == [("5", "yes", str(tmp_path), 42)]


def test_ranks_draw_different_numpy_numbers_and_share_the_cores(cluster):
    (first, threads), (second, _) = cluster.run(lambda: (np.random.rand(), torch.get_num_threads()))  # noqa: NPY002
    assert first != second
    assert threads == max(1, len(os.sched_getaffinity(0)) // 2)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has such policies")
def test_a_rank_and_its_threads_of_gloos_run_as_batch_work_and_the_one_that_answers_for_it_does_not(cluster):
    def policies():
        threads = {(thread / "comm").read_text().strip(): thread.name for thread in Path("/proc/self/task").iterdir()}
        of = {name: os.sched_getscheduler(int(thread)) for name, thread in threads.items()}
        return os.sched_getscheduler(0), {of[name] for name in of if "gloo" in name}, of[hang.LIFELINE]

    assert cluster.run(policies) == [(os.SCHED_BATCH, {os.SCHED_BATCH}, os.SCHED_OTHER)] * 2


def test_a_first_training_step_imports_next_to_nothing(cluster):
    def modules_of_a_step():
        before = set(sys.modules)
        model = torch.nn.Linear(4, 4)
        optimizer = torch.optim.AdamW(model.parameters())
        model(torch.randn(2, 4)).sum().backward()
        optimizer.step()
        return set(sys.modules) - before

    assert len(cluster.run(modules_of_a_step)[0]) < 5  # with torch alone preloaded it is 800


def test_a_first_recording_imports_nothing_of_ours():
    def ours():
        return {name for name in sys.modules if name.startswith("zerolab")}

    with Cluster(1, device="cpu") as fresh:
        (before,) = fresh.run(ours)
        (during,) = fresh.record(ours).results
        assert during == before == fresh.run(ours)[0]


@pytest.mark.slow
def test_what_the_fork_server_imports_never_asks_for_a_gpu():
    program = """
        import torch
        asked = []
        # A CUDA build, in which more is looked at; what asks C about GPUs would poison the fork, too.
        torch.version.cuda, torch.cuda._is_compiled = "13.0", lambda: True
        for name in ("is_available", "device_count", "_lazy_init", "current_device", "get_device_capability"):
            setattr(torch.cuda, name, lambda *args, name=name: asked.append(name) or 0)
        for name in ("_cuda_getDeviceCount", "_cuda_init", "_cuda_getCurrentRawStream"):
            setattr(torch._C, name, lambda *args, name=name: asked.append(name) or 0)
        from zerolab.runtime.server import preload
        preload()
        print(asked)
    """
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "[]"


def test_no_socket_of_a_rank_or_of_the_fork_server_listens_beyond_loopback(cluster):
    family = [psutil.Process(pid) for pid in pids(cluster)] + psutil.Process(pids(cluster)[0]).parents()[:1]
    listening = [c for process in family for c in process.net_connections("inet") if c.status == psutil.CONN_LISTEN]
    assert listening, "gloo listens for its peers"
    assert {connection.laddr.ip for connection in listening} <= {"127.0.0.1", "::1"}


SCRIPT = """
import json, os, torch, torch.distributed as dist
from zerolab import Cluster

print("the script runs once")

def ranks_see():
    import __main__
    return dist.get_rank(), hasattr(__main__, "ranks_see")

cluster = Cluster(2, device="cpu")
print(json.dumps(cluster.run(ranks_see)))
"""


@pytest.mark.slow
def test_an_unguarded_script_works_and_leaves_nothing_behind(tmp_path):
    script, folder = tmp_path / "script.py", tmp_path / "tmp"
    script.write_text(SCRIPT)
    folder.mkdir()
    result = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, check=True, env=os.environ | {"TMPDIR": str(folder)}
    )
    lines = result.stdout.splitlines()
    assert lines[0] == "the script runs once"
    assert json.loads(lines[1]) == [[0, False], [1, False]]
    assert result.stderr == ""
    assert list(folder.iterdir()) == []


def test_naming_a_cluster_loads_neither_torch_nor_jupyter():
    program = (
        "import sys, zerolab; zerolab.Cluster, zerolab.RankError; "
        "print([m for m in ('torch', 'IPython', 'plotly', 'ipykernel') if m in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the fork server is Linux's")
def test_while_the_fork_server_imports_the_kernel_imports_torch_too_and_a_first_call_need_not_wait():
    program = "import sys; from zerolab import Cluster; c = Cluster(1, device='cpu'); print('torch' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "True"


SPAWNED = """
import os, signal
from zerolab import Cluster, RankError
from zerolab.runtime import launch

launch._launchers[os.getpid()] = launch.SpawnLauncher()
with Cluster(2, device="cpu") as cluster:
    import torch.distributed as dist
    print(cluster.run(dist.get_rank))
    try:
        cluster.run(lambda: dist.get_rank() and os.kill(os.getpid(), signal.SIGKILL))
    except RankError as error:
        print(error.rank, error.signal)
"""


@pytest.mark.slow
def test_where_forking_is_not_allowed_ranks_are_spawned_with_the_same_promises(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SPAWNED)
    result = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
    assert result.stdout.splitlines() == ["[0, 1]", "1 SIGKILL"]


@pytest.mark.slow
def test_a_fork_server_that_was_killed_is_replaced(own_server, capsys):
    with Cluster(1, device="cpu") as cluster:
        (rank,) = pids(cluster)
        server = psutil.Process(rank).parent()
        server.kill()
        assert are_gone([rank])
        with pytest.raises(RankError, match=rf"^rank 0 \(pid {rank}\) is gone"):
            pids(cluster)
        assert pids(cluster) != [rank]
        assert re.fullmatch("fresh ranks: .*lost.*\n", capsys.readouterr().out)
