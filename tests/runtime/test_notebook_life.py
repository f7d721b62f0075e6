"""What happens to a notebook in a classroom, through a real kernel: tabs close, modules are edited, clusters nest."""

import os
import subprocess
import sys
import time

import printed_lines
import psutil
import pytest

MAKE = "import os, time, torch, torch.distributed as dist\nfrom zerolab import Cluster\n"


@pytest.fixture(scope="module")
def notebook(kernel):
    printed, error = kernel.run(MAKE + "cluster = Cluster(2, device='cpu', timeout=2)", timeout=60)
    assert (printed, error) == ("", None)
    kernel.run("%load_ext zerolab")
    return kernel


@pytest.mark.slow
def test_a_hang_shows_who_waits_for_whom_before_the_message(notebook):
    _, error = notebook.run("def skip():\n    if dist.get_rank():\n        dist.barrier()\n\ncluster.run(skip)")
    assert error["ename"] == "CollectiveHang"
    (display,) = notebook.displayed
    assert display["image/svg+xml"].startswith("<svg")
    assert display["text/plain"].splitlines() == [
        "rank 0, finished, no collective yet",
        "rank 1, waiting in barrier #0 -> rank 0",
    ]
    assert "rank 0 has not reached barrier #0: finished, no collective yet" in "\n".join(error["traceback"])
    notebook.run("cluster.run(dist.get_rank)")


def test_prints_stream_into_the_cell_that_caused_them_while_it_runs(notebook, tmp_path):
    seen = tmp_path / "seen"  # the ranks go on only when what they said first has been seen
    code = (
        f"import pathlib\nseen = pathlib.Path({str(seen)!r})\n"
        "def talk():\n    print('first')\n    while not seen.exists():\n        time.sleep(0.02)\n"
        "    print('second')\n\n"
        "cluster.run(talk);"
    )
    cell, printed = notebook.start_cell(code), ""
    while printed_lines.by_rank(printed) != ["[rank 0] first", "[rank 1] first"]:
        message = notebook.client.get_iopub_msg(timeout=20)
        if message["msg_type"] == "stream":
            assert message["parent_header"]["msg_id"] == cell
            printed += message["content"]["text"]
    seen.touch()
    assert printed_lines.by_rank(notebook.finish_cell(cell)[0]) == ["[rank 0] second", "[rank 1] second"]


def test_a_progress_bar_of_rank_0_moves_in_its_line_and_ends_as_one_line(notebook):
    code = (
        "def steps():\n    from tqdm import tqdm\n    for _ in tqdm(range(4), disable=dist.get_rank() != 0):\n"
        "        time.sleep(0.3)\n\ncluster.run(steps);"
    )
    printed, error = notebook.run(code)
    assert error is None
    assert printed.count("\r") >= 2
    assert printed.count("\n") == 1
    assert "[rank 0] 100%|" in printed.splitlines()[-1]


def test_a_stored_notebook_shows_a_progress_bar_once(notebook):
    notebook.run("os.environ['ZEROLAB_STATIC'] = '1'")
    printed, _ = notebook.run(
        "from tqdm import tqdm\ndef steps():\n    for _ in tqdm(range(3)):\n        time.sleep(0.2)\n\n"
        "cluster.run(steps);"
    )
    notebook.run("del os.environ['ZEROLAB_STATIC']")
    assert "\r" not in printed
    assert all("] 100%|" in line for line in printed.splitlines()), "two ranks, or one line if they took the same time"
    assert 1 <= len(printed.splitlines()) <= 2


def test_closing_the_tab_while_a_cell_runs_leaves_the_run_alone(notebook):
    notebook.start_cell(
        "def slow():\n    for _ in range(20):\n        print('x' * 10_000)\n        time.sleep(0.05)\n"
        "    return dist.get_rank()\n\nanswer = cluster.run(slow)"
    )
    time.sleep(0.3)
    notebook.close_the_tab()
    time.sleep(0.5)
    notebook.open_it_again()
    assert notebook.run("answer") == ("[0, 1]\n", None)
    assert notebook.run("cluster.run(dist.get_rank)") == ("[0, 1]\n", None)


def test_with_autoreload_the_ranks_run_the_new_version_of_an_edited_module(notebook, tmp_path):
    module = tmp_path / "my_lesson.py"
    module.write_text("def answer():\n    return 1\n")
    (tmp_path / "my_helper.py").write_text("from my_lesson import answer\n\ndef twice():\n    return 2 * answer()\n")
    notebook.run(f"%load_ext autoreload\n%autoreload 2\nimport sys\nsys.path.insert(0, {str(tmp_path)!r})")
    assert (
        notebook.run("import my_lesson, my_helper\ncluster.close()\ncluster = Cluster(2, device='cpu', timeout=2)")[1]
        is None
    )
    ask = "cluster.run(my_lesson.answer), cluster.run(my_helper.twice)"
    assert notebook.run(ask) == ("([1, 1], [2, 2])\n", None)
    before, _ = notebook.run("cluster.run(os.getpid)")
    module.write_text("def answer():\n    return 40 + 2\n")
    os.utime(module, ns=(time.time_ns(), time.time_ns() + 10**9))
    assert notebook.run(ask) == ("([42, 42], [84, 84])\n", None)
    assert notebook.run("cluster.run(os.getpid)")[0] == before, "the ranks are the same"
    notebook.run("%autoreload 0")


def test_a_module_that_was_reloaded_by_hand_is_new_on_the_ranks_and_one_that_was_not_is_not(notebook, tmp_path):
    module = tmp_path / "by_hand.py"
    module.write_text("def answer():\n    return 1\n")
    notebook.run(f"import sys, importlib\nsys.path.insert(0, {str(tmp_path)!r})\ncluster.close()")
    notebook.run("cluster = Cluster(2, device='cpu', timeout=2)\nimport by_hand")
    assert notebook.run("cluster.run(by_hand.answer)") == ("[1, 1]\n", None)
    module.write_text("def answer():\n    return 22\n")
    assert notebook.run("by_hand.answer(), cluster.run(by_hand.answer)") == ("(1, [1, 1])\n", None)
    notebook.run("importlib.reload(by_hand);")
    assert notebook.run("by_hand.answer(), cluster.run(by_hand.answer)") == ("(22, [22, 22])\n", None)


def test_a_class_that_is_defined_again_is_another_class_on_the_ranks_as_in_the_notebook(notebook):
    notebook.run("class Point:\n    def __init__(self, x):\n        self.x = x\n\nold = Point(1)")
    check = "def same(point):\n    return isinstance(point, Point), point.x\n"
    assert notebook.run(check + "cluster.run(same, old)") == ("[(True, 1), (True, 1)]\n", None)
    assert notebook.run("%%ranks\nkept = None") == ("", None)
    keep = "def keep(point):\n    import __main__\n    __main__.kept = point\n\ncluster.run(keep, old);"
    assert notebook.run(keep)[1] is None
    still = "def is_still():\n    import __main__\n    return isinstance(__main__.kept, Point)\n\ncluster.run(is_still)"
    assert notebook.run(still) == ("[True, True]\n", None)
    notebook.run("class Point:\n    def __init__(self, x):\n        self.x = x\n        self.y = 0\n\nnew = Point(2)")
    assert notebook.run("isinstance(old, Point), isinstance(new, Point)") == ("(False, True)\n", None)
    assert notebook.run(check + "cluster.run(same, old), cluster.run(same, new)") == (
        "([(False, 1), (False, 1)], [(True, 2), (True, 2)])\n",
        None,
    )
    assert notebook.run(still) == ("[False, False]\n", None)
    back = "isinstance(cluster.run(lambda: Point(3))[0], Point)"
    assert notebook.run(back) == ("True\n", None)


def test_clusters_nest_and_the_outer_one_is_used_again_when_the_inner_one_has_ended(notebook):
    code = (
        "with Cluster(1, device='cpu') as outer:\n"
        "    with Cluster(2, device='cpu') as inner:\n"
        "        print(inner.run(dist.get_rank), outer.run(dist.get_world_size))\n"
        "        pids = inner.run(os.getpid)\n"
        "    print(outer.run(dist.get_rank), inner.closed, cluster.run(dist.get_rank))\n"
        "    get_ipython().run_cell_magic('ranks', '', 'dist.get_world_size() if \"dist\" in dir() else 1')\n"
    )
    printed, error = notebook.run(code)
    assert error is None
    assert printed.splitlines() == ["[0, 1] [1]", "[0] True [0, 1]", "[rank 0] 1"]
    printed, _ = notebook.run("print(*pids)")
    deadline = time.monotonic() + 3
    while any(psutil.pid_exists(int(pid)) for pid in printed.split()) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(psutil.pid_exists(int(pid)) for pid in printed.split())


@pytest.mark.slow
def test_a_cell_that_nbval_gives_up_on_leaves_no_process_behind(tmp_path, jupyter):
    import nbformat

    mark = f"nbval-{os.getpid()}-{time.time_ns()}"
    book = nbformat.v4.new_notebook()
    book.cells = [
        nbformat.v4.new_code_cell(MAKE + "cluster = Cluster(2, device='cpu', timeout=60)"),
        nbformat.v4.new_code_cell("cluster.run(lambda: dist.get_rank() and dist.barrier())"),
    ]
    book.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3"}
    path = tmp_path / "hangs.ipynb"
    nbformat.write(book, path)
    command = [sys.executable, "-m", "pytest", "--nbval-lax", "--nbval-current-env", "--nbval-cell-timeout", "8"]
    done = subprocess.run(
        [*command, "-p", "no:cacheprovider", "--rootdir", tmp_path, "-c", os.devnull, path],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"ZEROLAB_TEST_KERNEL": mark},
        timeout=120,
    )
    assert "timed out" in done.stdout.lower() or "timeout" in done.stdout.lower(), done.stdout
    deadline = time.monotonic() + 3
    while (left := marked(mark)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert left == []


def marked(mark):
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("ZEROLAB_TEST_KERNEL") == mark and process.status() != psutil.STATUS_ZOMBIE:
                found.append(" ".join(process.cmdline()))
        except psutil.Error:
            continue
    return found
