"""Hangs that people have asked about in public are made again on gloo; of each the rank and the line are named.

A script of `hangs/` says in its first line how many ranks it needs and where it was asked about, and marks the line at
which a rank is to be found with `# <- ` and the rank.
"""

import contextlib
import functools
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
import warm

from zerolab.why import watch
from zerolab.why.dumps import explain

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
TIMEOUT, GRACE = 1.2, 5.0  # seconds
MARKED = re.compile(r"# <- ([\d ]+)")


@pytest.fixture(scope="module")
def follow(tmp_path_factory):
    """`follow(script, ...)` runs a script's ranks until something is said of them, or they end; what was said."""
    process = subprocess.Popen(
        [sys.executable, HERE / "starter.py"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )

    def ask(script, *options, nodes=1, whole=False, timeout=TIMEOUT, limit=TIMEOUT + GRACE, beside=()):
        folder = tmp_path_factory.mktemp(script.stem)
        (folder / "the notes").mkdir()
        for name in beside:
            (folder / "the notes" / name).write_text("{}")
        asked = {
            "script": str(script), "ranks": int(script.read_text().split()[1]), "timeout": timeout, "limit": limit,
            "nodes": nodes, "whole": whole, "folder": str(folder / "the notes"), "output": str(folder / "output"),
            "options": options,
        }  # fmt: skip
        process.stdin.write(json.dumps(asked) + "\n")
        process.stdin.flush()
        return json.loads(process.stdout.readline()) | {"folder": folder / "the notes"}

    yield ask
    with contextlib.suppress(BrokenPipeError):
        process.stdin.close()
    process.wait(30)


def at_fault(script):
    """The lines that are marked, of each rank."""
    found = {}
    for line, text in enumerate(script.read_text().splitlines(), 1):
        if marked := MARKED.search(text):
            for rank in marked[1].split():
                found.setdefault(int(rank), set()).add(line)
    return found


def scripts(folder):
    return sorted((HERE / folder).glob("*.py"))


@pytest.mark.parametrize("script", scripts("hangs"), ids=lambda script: script.stem)
def test_the_rank_and_the_line_of_a_known_hang_are_named_within_seconds(follow, script):
    expected = at_fault(script)
    said = follow(script)
    assert said.get("ranks") == sorted(expected), said.get("text", said["output"])
    for rank, where in zip(said["ranks"], said["lines"], strict=True):
        place = re.search(rf"{script.name}, line (\d+): ", where)
        assert place, said["text"]
        assert int(place[1]) in expected[rank], said["text"]
    assert said["seconds"] < TIMEOUT + GRACE
    first = said["text"].splitlines()[0]
    assert all(re.search(rf"\b{rank}\b", first) for rank in expected)
    assert f"zerolab why: {first}" in said["output"]
    assert all("waiting in" in row for row in rows_of_those_said_to_wait(said["text"])), said["text"]


def rows_of_those_said_to_wait(text):
    """The rows of the table in which the ranks stand of which a sentence says that they have waited."""
    sentences = re.findall(r"^ranks? ([\d, and]+) ha(?:s|ve) waited in", text, re.MULTILINE)
    ranks = {rank for sentence in sentences for rank in re.findall(r"\d+", sentence)}
    return [row for row in text.splitlines() if row.startswith("  ") and row.split()[0] in ranks]


@pytest.mark.parametrize("script", scripts("moving"), ids=lambda script: script.stem)
def test_a_run_that_is_slow_and_moves_is_not_reported(follow, script):
    said = follow(script, limit=20.0)
    assert "text" not in said, said["text"]
    assert "zerolab why" not in said["output"]
    assert said["left"] == 0, said["output"]


def test_ranks_are_ended_if_that_was_asked_for(follow):
    said = follow(HERE / "hangs" / "sleeps.py", "--end")
    assert said["ranks"] == [0]
    assert "the ranks are ended, as --end asks; a launcher may call that SIGKILL the root cause" in said["output"]
    assert f"`zerolab why '{said['folder']}'` says again what is" in said["output"]


def test_a_rank_that_computes_is_named_after_ten_times_the_timeout(follow, tmp_path):
    # Ranks may take longer than the timeout to join, as on a busy machine; that is reported, and goes on.
    script, text = tmp_path / "computes.py", (HERE / "moving" / "computes.py").read_text()
    late = "c10d.rendezvous = lambda *args, find=c10d.rendezvous, **named: time.sleep(1.5) or find(*args, **named)"
    text = text.replace("import torch\n", "import torch\nimport torch.distributed.distributed_c10d as c10d\n")
    text = text.replace("dist.init", f"{late}\ndist.init")
    script.write_text(text)
    said = follow(script, timeout=0.5, limit=30.0, whole=True)
    assert "are in init_process_group, which counts on more" in said["output"]
    assert said["ranks"] == [1], said["output"]
    first, waits, *_ = said["text"].splitlines()
    assert first.endswith("; it computes")
    assert int(re.match(r"rank 0 has waited in barrier #1 for (\d+) s", waits)[1]) >= 10 * 0.5


def test_what_a_hang_ends_in_does_not_take_the_place_of_what_it_came_from(follow, tmp_path):
    # Ended one after the other, rank 1 sees its peer go and raises, as under a launcher's signals.
    ended = tmp_path / "ended.py"
    ending = "time.sleep(4); os._exit(1)"
    text = (HERE / "hangs" / "sleeps.py").read_text().replace("time.sleep(60)", ending)
    ended.write_text(text.replace("import time", "import os, time"))
    said = follow(ended, whole=True, limit=20.0)
    assert said["left"] == 0
    until = time.monotonic() + 10.0  # the process beside the ranks ends after them
    while "gone" not in (found := explain([said["folder"]])).text.splitlines()[-1] and time.monotonic() < until:
        time.sleep(0.1)
    assert found.ranks == (0,)
    assert found.text.startswith("rank 0 has not reached all_reduce #2")
    assert found.text.splitlines()[-1].startswith("rank 0 is gone without a word")


def test_ranks_that_go_on_after_all_are_said_to(follow, tmp_path):
    late = tmp_path / "late.py"
    said = f"pathlib.Path({str(tmp_path.parent)!r}).glob('late*/the notes/{watch.HANG}')"
    text = (HERE / "hangs" / "sleeps.py").read_text().replace("import time\n", "import pathlib, time\n")
    late.write_text(text.replace("time.sleep(60)", f"while not list({said}): time.sleep(0.1)"))
    said = follow(late, whole=True, limit=60.0)
    assert said["left"] == 0
    assert said["text"].startswith("rank 0 has not reached all_reduce #2")
    until = time.monotonic() + 10.0  # the process beside the ranks ends after them
    while "go on" not in (text := explain([said["folder"]]).text) and time.monotonic() < until:
        time.sleep(0.1)
    assert text.endswith("\nthe ranks go on: that was no hang, but took long")


def test_the_rank_and_the_line_are_named_on_another_node(follow):
    said = follow(HERE / "hangs" / "lock_held.py", nodes=3)
    assert said["ranks"] == [2]
    assert said["lines"][0].startswith(("tests/why/hangs/lock_held.py, line 12", "lock_held.py, line 12"))
    assert said["seconds"] < TIMEOUT + GRACE


def test_files_of_others_in_the_folder_do_not_end_the_watch(follow):
    # Such as fingerprints, which have names that begin alike.
    said = follow(HERE / "hangs" / "sleeps.py", beside=["rank-0.json", "rank-1.json", "rank-1"])
    assert said.get("ranks") == [0], said["output"]


def test_a_long_error_in_chinese_is_said(follow, tmp_path):
    failing = tmp_path / "failing.py"
    text = (HERE / "hangs" / "rank_raises.py").read_text(encoding="utf-8")
    failing.write_text(text.replace("row 17 has no label", "批" * 700), encoding="utf-8")
    said = follow(failing)
    assert said.get("ranks") == [2], said["output"]
    assert f"zerolab why: rank 2 raised ValueError: {'批' * 600}" in said["output"]


def test_torchrun_starts_it_and_the_command_says_it_again(tmp_path):
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    options = ["--timeout", "1.5", "--out", "notes", "--end", HERE / "hangs" / "sleeps.py"]
    command = [*launcher, "-m", "zerolab.why", *options]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode != 0
    sentence = (
        "rank 0 has not reached all_reduce #2: it is running, after all_reduce #1, at sleeps.py, line 10: time.sleep"
    )
    assert f"zerolab why: {sentence}" in done.stderr
    again = [sys.executable, "-m", "zerolab", "why", "notes"]
    assert subprocess.run(again, cwd=tmp_path, capture_output=True, text=True, check=True).stdout.startswith(sentence)


def test_a_process_that_ends_while_it_is_looked_at_does_not_end_the_watch(monkeypatch):
    listing = {name: getattr(os, name) for name in ("scandir", "listdir")}
    for look in (watch._spent, watch._below):
        child = subprocess.Popen(["sleep", "60"])

        def ended(place, *, name, child=child):
            child.kill()
            child.wait()
            return listing[name](place)

        for name in listing:
            monkeypatch.setattr(os, name, functools.partial(ended, name=name))
        assert not look(child.pid)
        assert child.returncode is not None, "it has ended in the middle of that look"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nowhere.py"], "there is no file 'nowhere.py'; for a module write -m before its name"),
        (["--timeout", "0", "train.py"], "'0' is no number of seconds: write 60, for a minute"),
        (["--out", __file__, __file__], "cannot be a folder for the ranks' notes: File exists; name another"),
    ],
)
def test_wrong_use_is_refused_before_anything_runs(arguments, said):
    done = warm.launch(["-m", "zerolab.why", *arguments], ranks=0, timeout=60)
    assert done.returncode == 2
    assert said in done.stderr


def test_a_folder_in_which_a_rank_cannot_write_its_notes_is_named(tmp_path):
    (tmp_path / "rank-0").mkdir()
    done = warm.launch(["-m", "zerolab.why", "--out", tmp_path, __file__], ranks=0, timeout=60)
    assert done.returncode == 2
    said = f"error: '{tmp_path}' cannot be a folder for the ranks' notes: Is a directory; name another"
    assert done.stderr.splitlines()[-1].endswith(said)


def test_a_worker_that_sleeps_is_ended_with_its_rank(follow, tmp_path):
    script, worker = tmp_path / "loading.py", tmp_path / "worker"
    sleeps = f"open({str(worker)!r}, 'w').write(str(os.getpid())); time.sleep(60)"
    text = (HERE / "hangs" / "data_loader.py").read_text().replace("time.sleep(60)", sleeps)
    script.write_text(text.replace("import time", "import os, time"))
    said = follow(script, "--end", whole=True, limit=20.0)
    assert (said["ranks"], said["left"]) == ([1], 0)
    assert "dataloader.py, " in said["text"].splitlines()[0]
    until = time.monotonic() + 5.0
    while watch.born(int(worker.read_text())) and time.monotonic() < until:
        time.sleep(0.1)
    assert not watch.born(int(worker.read_text()))
