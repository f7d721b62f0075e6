"""Through a real Jupyter kernel, as a learner meets it."""

import os
import re
import time

import printed_lines
import psutil
import pytest

MAKE = "import os, time, torch, torch.distributed as dist\nfrom zerolab import Cluster\n"


@pytest.fixture(scope="module")
def notebook(kernel):
    printed, error = kernel.run(MAKE + "cluster = Cluster(2, device='cpu', timeout=3)", timeout=60)
    assert (printed, error) == ("", None)
    return kernel


def test_kernels_of_the_tests_write_their_history_into_no_file_that_another_may_have_locked(notebook):
    assert notebook.run("get_ipython().history_manager.hist_file") == ("':memory:'\n", None)


def test_a_function_of_a_cell_runs_on_every_rank_and_what_it_prints_is_labelled(notebook):
    printed, error = notebook.run(
        "def greet():\n    print('hello', dist.get_rank())\n    return 7\n\ncluster.run(greet)"
    )
    assert error is None
    assert sorted(printed.splitlines()) == ["[7, 7]", "[rank 0] hello 0", "[rank 1] hello 1"]


def test_an_error_on_a_rank_shows_the_cells_label_and_lines_and_nothing_of_the_kernels_own_stack(notebook):
    _, error = notebook.run(
        "def fail():\n    if dist.get_rank() == 1:\n        raise ValueError('no data')\n    dist.barrier()"
    )
    assert error is None
    _, error = notebook.run("cluster.run(fail)")
    shown = "\n".join(error["traceback"])
    assert error["ename"] == "RankError"
    assert re.match(r"RankError: rank 1 \(pid \d+\) raised ValueError: no data", shown)
    assert re.search(r'File "cell \[\d+\]", line 3, in fail\n +raise ValueError', shown)
    assert re.search(r"waiting in barrier #0  +cell \[\d+\], line 4: dist.barrier\(\)", shown)
    assert "cluster.py" not in shown
    assert "/tmp" not in shown  # noqa: S108
    printed, error = notebook.run("cluster.run(dist.get_rank)")
    assert error is None
    assert printed.splitlines()[-1] == "[0, 1]"
    assert "lost" in printed


@pytest.mark.parametrize("work", ["time.sleep(1000)", "dist.barrier() if dist.get_rank() else time.sleep(1000)"])
def test_the_stop_button_returns_within_three_seconds_and_leaves_a_usable_cluster(notebook, work):
    cell = notebook.start_cell(f"def work():\n    print('started')\n    {work}\n\ncluster.run(work)")
    notebook.wait_for_print("started")
    time.sleep(0.3)
    started = time.monotonic()
    notebook.manager.interrupt_kernel()
    printed, error = notebook.finish_cell(cell)
    assert time.monotonic() - started < 3
    assert error["ename"] == "KeyboardInterrupt"
    assert [line.split(";")[0] for line in error["traceback"]] == ["KeyboardInterrupt: stopped"]
    assert re.search(r"^0 .*line 3", printed, re.MULTILINE), "where the ranks were"
    printed, error = notebook.run("cluster.run(dist.get_rank)")
    assert error is None
    assert printed.splitlines()[-1] == "[0, 1]"


def test_the_stop_button_acts_at_once_in_a_cell_with_an_await(notebook):
    notebook.run("import asyncio\ncluster.run(os.getpid)")
    cell = notebook.start_cell(
        "def work():\n    print('started')\n    time.sleep(1000)\n\ncluster.run(work)\nawait asyncio.sleep(0)"
    )
    notebook.wait_for_print("started")
    time.sleep(0.3)
    started = time.monotonic()
    notebook.manager.interrupt_kernel()
    _, error = notebook.finish_cell(cell)
    assert time.monotonic() - started < 3
    assert [line.split(";")[0] for line in error["traceback"]] == ["KeyboardInterrupt: stopped"]
    assert notebook.run("await asyncio.sleep(0)\ncluster.run(dist.get_rank)")[0].splitlines()[-1] == "[0, 1]"


def test_ranks_that_idle_do_not_notice_the_stop_button(notebook):
    before, _ = notebook.run("cluster.run(os.getpid)")
    cell = notebook.start_cell("time.sleep(1000)")
    time.sleep(0.5)
    notebook.manager.interrupt_kernel()
    notebook.finish_cell(cell)
    assert notebook.run("cluster.run(os.getpid)")[0] == before


def test_a_ranks_cell_keeps_its_names_and_prints_the_value_of_a_last_expression_by_rank(notebook):
    assert notebook.run("%%ranks\nimport torch.distributed as dist\nmine = dist.get_rank() * 10") == ("", None)
    printed, error = notebook.run("%%ranks\nmine += 1\nmine")
    assert error is None
    assert sorted(printed.splitlines()) == ["[rank 0] 1", "[rank 1] 11"]
    assert notebook.run("%%ranks 1\nmine") == ("[rank 1] 11\n", None)
    assert notebook.run("%%ranks 0,1\nNone") == ("", None)
    assert notebook.run("%%ranks\nmine;") == ("", None)
    assert notebook.run("%%ranks\nmine;  # and no more") == ("", None), "as IPython does it"
    assert notebook.run("%%ranks 1\nmine  # above;") == ("[rank 1] 11\n", None)


def test_an_error_in_a_ranks_cell_names_its_line_counted_from_the_first_below_the_magic(notebook):
    _, error = notebook.run("%%ranks 1\nx = 1\nx / 0")
    assert error["ename"] == "RankError"
    assert re.search(r'File "cell \[\d+\]", line 2, in <module>\n +x / 0', "\n".join(error["traceback"]))


@pytest.mark.parametrize(
    ("line", "sentence"),
    [("7", "there is no rank 7; this cluster has 0 to 1"), ("all", "give ranks such as %%ranks 0,2")],
)
def test_ranks_that_do_not_exist_are_refused_in_one_sentence(notebook, line, sentence):
    printed, _ = notebook.run(f"%%ranks {line}\n1")
    assert printed.startswith(f"UsageError: %%ranks {line}: {sentence}")
    assert len(printed.splitlines()) == 1


def test_a_ranks_cell_that_is_not_python_is_refused_without_troubling_the_ranks(notebook):
    notebook.run("cluster.run(os.getpid)")
    before, _ = notebook.run("cluster.run(os.getpid)")
    printed, error = notebook.run("%%ranks\nx = = 1")
    assert (printed, error["ename"]) == ("", "SyntaxError")
    printed, error = notebook.run("%%ranks\n!ls")
    assert printed.startswith("ranks run plain Python: no %magics and no !commands")
    assert notebook.run("cluster.run(os.getpid)")[0] == before


def test_a_notebook_that_is_stored_shows_what_ranks_print_grouped_by_rank(notebook):
    notebook.run("os.environ['ZEROLAB_STATIC'] = '1'")
    code = """def talk():
    for line in range(3):
        print("line", line, "of", dist.get_rank())
        dist.barrier()
cluster.run(talk);"""
    printed, error = notebook.run(code)
    assert error is None
    assert printed.splitlines() == [f"[rank {rank}] line {line} of {rank}" for rank in (0, 1) for line in range(3)]
    notebook.run("del os.environ['ZEROLAB_STATIC']")


def test_a_ranks_cell_without_a_cluster_makes_one_and_names_it(notebook):
    notebook.run("cluster.close()\ndel cluster")
    notebook.run("os.environ['OMP_NUM_THREADS'] = '1'")
    printed, error = notebook.run("%%ranks\n1 + 1", timeout=60)
    assert error is None
    assert printed.startswith("no cluster was open: made cluster = Cluster(world_size=")
    assert "[rank 0] 2" in printed_lines.by_rank(printed)
    printed, error = notebook.run("cluster.close()\ncluster.closed")
    assert printed == "True\n"


def test_nothing_listens_beyond_loopback_while_a_notebook_runs_ranks(notebook):
    notebook.run("cluster = Cluster(2, device='cpu')")
    listening = [
        (process.name(), connection.laddr)
        for process in [*notebook.family(), psutil.Process(notebook.pid)]
        for connection in process.net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    ]
    assert listening
    assert {address.ip for _, address in listening} <= {"127.0.0.1", "::1"}


BUSY = """
import subprocess

def wait():
    subprocess.Popen(["sleep", "1000"], start_new_session=True)  # out of reach of whatever ends its rank's session
    print("busy")
    dist.barrier() if dist.get_rank() else time.sleep(1000)

cluster.run(wait)
"""


@pytest.mark.slow
def test_restart_shutdown_and_kill_leave_no_process_and_no_file_and_no_other_notebook_is_touched(start_kernel):
    first, second = start_kernel(), start_kernel()
    for kernel in (first, second):
        kernel.run(
            MAKE + "cluster = Cluster(2, device='cpu', timeout=60)\nother = Cluster(1, device='cpu')", timeout=90
        )
    assert len(first.family()) == 4, "a fork server and three ranks"

    _, error = first.run("cluster.run(os._exit, 1)")  # a failing cell, and then a restart
    assert error["ename"] == "RankError"
    old = {process.pid for process in first.family()}
    first.restart()
    deadline = time.monotonic() + 3
    while any(psutil.pid_exists(pid) for pid in old) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not [pid for pid in old if psutil.pid_exists(pid)]
    assert first.leftovers() == []

    first.run(MAKE + "cluster = Cluster(2, device='cpu', timeout=60)", timeout=90)
    first.start_cell(BUSY)
    first.wait_for_print("busy")
    first.kill()
    assert first.leftovers() == []
    assert second.run("cluster.run(dist.get_rank), other.run(dist.get_rank)") == ("([0, 1], [0])\n", None)

    second.client.shutdown()
    deadline = time.monotonic() + 10
    while psutil.pid_exists(second.pid) and psutil.Process(second.pid).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert second.leftovers() == []


@pytest.mark.slow
def test_a_kernel_killed_while_ranks_are_being_started_leaves_nothing(start_kernel):
    kernel = start_kernel()
    kernel.start_cell(MAKE + "cluster = Cluster(2, device='cpu')")
    deadline = time.monotonic() + 20
    while not kernel.family() and time.monotonic() < deadline:
        time.sleep(0.02)
    os.kill(kernel.pid, 9)
    assert kernel.leftovers() == []


@pytest.mark.slow
def test_the_stop_button_while_ranks_are_being_started_leaves_none_behind_and_the_next_cluster_works(start_kernel):
    kernel = start_kernel()
    kernel.run("import torch", timeout=60)  # torch itself does not survive being stopped in the middle of its import
    cell = kernel.start_cell(MAKE + "cluster = Cluster(2, device='cpu')")
    deadline = time.monotonic() + 20
    while not kernel.family() and time.monotonic() < deadline:
        time.sleep(0.02)
    kernel.manager.interrupt_kernel()
    _, error = kernel.finish_cell(cell)
    assert error["ename"] == "KeyboardInterrupt"
    printed, error = kernel.run(MAKE + "cluster = Cluster(2, device='cpu')\ncluster.run(dist.get_rank)", timeout=60)
    assert (printed, error) == ("[0, 1]\n", None)
    assert len(kernel.family()) == 3, "a fork server and two ranks"
