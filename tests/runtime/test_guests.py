"""What thirty people's functions do to their ranks in an hour: it works, or one sentence says why not."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time

import printed_lines
import psutil
import pytest
import torch
import torch.distributed as dist

from zerolab import RankError


def works(cluster):
    """Whether the next run does, and its prints arrive."""

    def add_up():
        print("hello", file=sys.stdout)
        total = torch.ones(1)
        dist.all_reduce(total)
        return total.item()

    return cluster.run(add_up) == [2.0, 2.0]


def test_a_process_that_a_rank_forked_never_answers_in_its_name(cluster, capsys):
    def fork(fails):
        parent = os.getpid()
        child = os.fork()
        if os.getpid() != parent:
            if fails:
                raise ValueError("in the child")
            return "child"
        os.waitpid(child, 0)
        return "parent"

    for fails in (False, True):
        assert cluster.run(fork, fails) == ["parent", "parent"]
        printed = capsys.readouterr().out
        assert "a process that this rank had forked reached the end of the function" in printed
        assert ("ValueError: in the child" in printed) == fails
        assert works(cluster)


@pytest.mark.parametrize("how", ["close", "None", "descriptor"])
def test_a_rank_that_closes_its_streams_answers_and_prints_again_in_the_next_run(cluster, capsys, how):
    def close():
        print("before")
        if how == "close":
            sys.stdout.close()
            sys.stderr.close()
        elif how == "None":
            sys.stdout = sys.stderr = None
        else:
            os.close(1)
        return "done"

    before = cluster.run(os.getpid)
    assert cluster.run(close) == ["done", "done"]
    assert printed_lines.by_rank(capsys.readouterr().out) == ["[rank 0] before", "[rank 1] before"]
    assert works(cluster)
    assert printed_lines.by_rank(capsys.readouterr().out) == ["[rank 0] hello", "[rank 1] hello"]
    assert cluster.run(os.getpid) == before


class UnspeakableError(Exception):
    def __str__(self):
        raise ValueError("no words")


def test_an_error_that_cannot_say_what_it_is_is_reported_all_the_same(cluster):
    def fail():
        raise UnspeakableError

    with pytest.raises(RankError, match=re.escape("raised UnspeakableError: (its __str__ raised ValueError)")):
        cluster.run(fail)
    assert works(cluster)


def test_of_a_message_that_is_megabytes_long_beginning_and_end_are_shown(cluster):
    def fail():
        raise ValueError("first" + "x" * 10_000_000 + "last")

    with pytest.raises(RankError, match=r"raised ValueError: firstx+\n\.\.\. [\d,]+ characters are left out") as caught:
        cluster.run(fail)
    assert len(str(caught.value)) < 100_000
    assert "xlast\n" in str(caught.value)


def test_the_two_calls_that_begin_and_end_a_script_for_torchrun_are_refused_with_the_remedy(cluster):
    with pytest.raises(RankError, match="joined their process group already; leave init_process_group out"):
        cluster.run(lambda: dist.init_process_group("gloo"))
    with pytest.raises(RankError, match=r"leave destroy_process_group out, cluster\.close\(\) ends it"):
        cluster.run(dist.destroy_process_group)

    def use_a_group_of_ones_own():
        group = dist.new_group([0, 1])
        dist.barrier(group)
        dist.destroy_process_group(group)

    cluster.run(use_a_group_of_ones_own)
    assert works(cluster)


def test_a_rank_cannot_become_another_program_and_what_it_forks_can(cluster):
    with pytest.raises(RankError, match=r"become another program \(exec\); start that one with subprocess.run"):
        cluster.run(lambda: os.execlp("true", "true"))  # noqa: S606  # what is refused

    def fork():
        if (pid := os.fork()) == 0:
            os.execvp("sh", ["sh", "-c", "exit 7"])  # noqa: S606  # what is allowed
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    assert cluster.run(fork) == [7, 7]


@pytest.mark.parametrize("ask", [lambda: input("name? "), breakpoint])
def test_whoever_asks_on_a_rank_is_told_that_nobody_is_there_to_answer(cluster, ask):
    with pytest.raises(RankError, match="a rank has no keyboard: ask in the notebook"):
        cluster.run(ask)


def test_a_thread_that_fails_says_where_without_this_machines_paths_and_its_rank_goes_on(cluster, capsys):
    def start():
        thread = threading.Thread(target=lambda: 1 / 0, name="helper")
        thread.start()
        thread.join()
        return "fine"

    assert cluster.run(start) == ["fine", "fine"]
    printed = capsys.readouterr().out
    assert "Exception in thread helper:" in printed
    assert "ZeroDivisionError: division by zero" in printed
    assert 'File "/' not in printed


def test_a_function_whose_result_would_not_be_its_result_is_refused(cluster):
    async def wait():
        return 1

    def count():
        yield 1

    with pytest.raises(TypeError, match="wait is an async function, which a rank would not await"):
        cluster.run(wait)
    with pytest.raises(TypeError, match="count is a generator function"):
        cluster.run(count)


def test_a_recursion_without_end_is_an_error_like_any_other(cluster):
    def again(depth):
        return again(depth + 1)

    with pytest.raises(RankError, match="raised RecursionError"):
        cluster.run(again, 0)
    assert works(cluster)


def endless(value):
    return endless(value)  # from Python to Python: takes memory, and no stack


class Endless:
    def __getattr__(self, name):
        return getattr(self, name)  # by way of C: takes stack


# From 3.12 on, Python has a limit of its own for what goes by way of C, and nobody can take that away.
BY_WAY_OF_C = "was killed by SIGSEGV" if sys.version_info < (3, 12) else "raised RecursionError"


@pytest.mark.parametrize(
    ("recursion", "words"),
    [(lambda: endless(1), "raised RecursionError"), (lambda: Endless().x, BY_WAY_OF_C)],
    ids=["in Python", "through native code"],
)
def test_a_recursion_whose_limit_was_taken_away_ends_before_the_memory_does(cluster, recursion, words):
    def take_the_limit_away():
        sys.setrecursionlimit(10**9)
        dist.get_rank() and recursion()
        dist.barrier()

    with pytest.raises(RankError, match=f"^rank 1 .* {words}") as caught:
        cluster.run(take_the_limit_away)
    assert len(str(caught.value)) < 10_000
    assert works(cluster)


def test_what_is_set_for_the_process_stays_on_the_ranks_and_keeps_no_run_or_recording_from_working(cluster):
    def set_everything():
        torch.set_default_dtype(torch.float64)
        torch.set_num_threads(3)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD):
            signal.signal(number, lambda *_: None)
        sys.setrecursionlimit(3000)
        sys.settrace(None)

    cluster.run(set_everything)
    assert cluster.run(lambda: torch.ones(1).dtype) == [torch.float64] * 2
    assert cluster.run(torch.get_num_threads) == [3, 3]
    assert len(cluster.record(lambda: dist.all_reduce(torch.ones(1))).collectives) == 1
    assert works(cluster)
    cluster.run(lambda: (torch.set_default_dtype(torch.float32), torch.set_num_threads(1)))


def test_a_folder_that_a_rank_deletes_under_itself_does_no_harm(cluster, tmp_path):
    def leave(folder):
        home = os.path.join(folder, str(dist.get_rank()))  # noqa: PTH118  (a rank's own few lines)
        os.mkdir(home)  # noqa: PTH102
        os.chdir(home)
        os.rmdir(home)  # noqa: PTH106

    cluster.run(leave, str(tmp_path))
    assert works(cluster)
    assert len(cluster.record(lambda: dist.all_reduce(torch.ones(1))).collectives) == 1
    with pytest.raises(RankError, match="ZeroDivisionError"):
        cluster.run(lambda: 1 / 0)


@pytest.mark.parametrize(
    "command",
    ["exec sleep 1000", "setsid sleep 1000", "timeout 1000 sleep 1000", "setsid sh -c 'sleep 1000; true' &"],
    ids=["as it comes", "in a session of its own", "in a group of its own", "and has lost its parent"],
)
def test_processes_that_ranks_start_and_leave_go_with_them(cluster, command):
    def start(mark):
        subprocess.Popen(command, shell=True, env=os.environ | {"STARTED_BY_A_RANK": mark})  # noqa: S602

    mark = f"{command} {time.time_ns()}"
    cluster.run(start, mark)
    deadline = time.monotonic() + 30
    while len(started := [pid for pid in marked(mark) if sleeps(pid)]) < 2 and time.monotonic() < deadline:
        time.sleep(0.02)
    assert len(started) == 2
    assert works(cluster)
    assert all(map(alive, started)), "they live as long as their rank"
    with pytest.raises(RankError):
        cluster.run(os._exit, 1)
    deadline = time.monotonic() + 10
    while marked(mark) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert marked(mark) == []


def marked(mark):
    """Living processes that carry a mark in their environment."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get("STARTED_BY_A_RANK") == mark and alive(process.pid):
                found.append(process.pid)
    return found


def sleeps(pid):
    with contextlib.suppress(psutil.Error):
        return psutil.Process(pid).name() == "sleep"
    return False


def alive(pid):
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


# --- in a real kernel ---------------------------------------------------------------------------------------------

MAKE = (
    "import os, sys, time, threading, torch, torch.distributed as dist\nfrom zerolab import Cluster\n"
    "cluster = Cluster(2, device='cpu', timeout=3)"
)


@pytest.fixture(scope="module")
def notebook(kernel):
    assert kernel.run(MAKE, timeout=60) == ("", None)
    return kernel


def test_bars_below_each_other_stand_in_one_line_of_the_cell_and_end_as_one(notebook):
    printed, error = notebook.run(
        "def steps():\n    from tqdm import tqdm\n"
        "    for _ in tqdm(range(2), 'outer', disable=dist.get_rank() != 0):\n"
        "        for _ in tqdm(range(3), 'inner', position=1, leave=False, disable=dist.get_rank() != 0):\n"
        "            time.sleep(0.2)\n\ncluster.run(steps);"
    )
    assert error is None
    assert "\x1b" not in printed
    assert printed.count("\n") == 1
    states = printed.split("\r")
    assert any(re.match(r"\[rank 0\] outer: .*50%.* inner: .*33%", state) for state in states)
    assert re.match(r"\[rank 0\] outer: 100%\|", states[-1])


@pytest.mark.parametrize("module", ["tqdm.auto", "tqdm.notebook"])
def test_a_bar_that_would_be_a_widget_is_text_on_a_rank(notebook, module):
    for code in (
        f"def steps():\n    from {module} import tqdm\n    return list(tqdm(range(3), disable=dist.get_rank() != 0))",
        f"from {module} import tqdm\ndef steps():\n    return list(tqdm(range(3), disable=dist.get_rank() != 0))",
    ):
        printed, error = notebook.run(code + "\n\ncluster.run(steps)[0]")
        assert error is None
        assert re.search(r"\[rank 0\] 100%\|", printed)


def test_what_a_thread_prints_after_its_cell_is_labelled_with_that_cell_and_comes_before_the_next_ones_output(
    notebook, tmp_path
):
    def say_late_words():
        """Let the threads speak, and wait until they have."""
        (tmp_path / "go").touch()
        while not all((tmp_path / f"said {rank}").exists() for rank in (0, 1)):
            time.sleep(0.02)
        for file in tmp_path.iterdir():
            file.unlink()

    printed, _ = notebook.run(
        f"import pathlib\nfolder = pathlib.Path({str(tmp_path)!r})\n"
        "def speak(rank):\n    while not (folder / 'go').exists():\n        time.sleep(0.02)\n"
        "    print('late', 'words')\n    (folder / f'said {rank}').touch()\n\n"
        "def start():\n    threading.Thread(target=speak, args=[dist.get_rank()]).start()\n    print('at once')\n\n"
        "cluster.run(start);"
    )
    assert printed_lines.by_rank(printed) == ["[rank 0] at once", "[rank 1] at once"]
    say_late_words()
    printed, error = notebook.run("def fail():\n    print('next')\n    raise ValueError\n\ncluster.run(fail)")
    this = int(re.search(r"cell \[(\d+)\]", "\n".join(error["traceback"]))[1])
    late = f", late from cell [{this - 1}]"
    assert printed_lines.by_rank(printed) == [
        line for rank in (0, 1) for line in (f"[rank {rank}{late}] late words", f"[rank {rank}] next")
    ]
    notebook.run("cluster.run(start);")
    say_late_words()
    printed, _ = notebook.run("cluster.close()")
    assert re.fullmatch(
        r"(\[rank \d, late from cell \[\d+\]\] late words\n?){2}", "\n".join(printed_lines.by_rank(printed))
    )
    notebook.run(MAKE)


@pytest.mark.parametrize("name", ["exit", "quit", "get_ipython"])
def test_the_notebooks_own_ipython_cannot_be_sent_and_is_named(notebook, name):
    _, error = notebook.run(f"def leave():\n    {name}()\n\ncluster.run(leave)")
    assert error["ename"] == "TypeError"
    assert re.search(f"because of (self of )?{name}(, which leave uses)?\\. ", error["evalue"])
    assert "belongs to the notebook's own IPython" in error["evalue"]
    assert notebook.run("cluster.run(dist.get_rank)") == ("[0, 1]\n", None)


def test_a_folder_that_was_deleted_under_the_notebook_is_named_as_the_reason(notebook):
    notebook.run("import tempfile\nold, new = os.getcwd(), tempfile.mkdtemp()\nos.chdir(new)\nos.rmdir(new)")
    _, error = notebook.run("Cluster(1, device='cpu')")
    assert error["evalue"].startswith("the folder in which this notebook works was deleted")
    assert notebook.run("os.chdir(old)\ncluster.run(dist.get_rank)") == ("[0, 1]\n", None)


def test_stop_pressed_three_times_is_as_good_as_once(notebook):
    cell = notebook.start_cell("def wait():\n    print('waits')\n    time.sleep(1000)\n\ncluster.run(wait)")
    notebook.wait_for_print("waits")
    for _ in range(3):
        notebook.manager.interrupt_kernel()
        time.sleep(0.1)
    _, error = notebook.finish_cell(cell)
    assert error["ename"] == "KeyboardInterrupt"
    printed, error = notebook.run("cluster.run(dist.get_rank)")
    assert (printed.splitlines()[-1], error) == ("[0, 1]", None)
