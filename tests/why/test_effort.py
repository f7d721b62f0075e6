"""What counts as work of a rank that others wait for; the process is real, and its notes are written by hand."""

import os
import subprocess
import sys
import time
import types
from pathlib import Path

import pytest

from zerolab.runtime.board import DONE, IN_FLIGHT, INSIDE, Position
from zerolab.why import watch
from zerolab.why.notes import Notes
from zerolab.why.watch import Options, _Rank, _Ranks, born

TIMEOUT = 1.0


@pytest.fixture(scope="module")
def busy():
    """A process that never rests."""
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    yield process
    process.kill()
    process.wait()


@pytest.mark.parametrize(
    ("position", "silent_for", "works"),
    [
        ((INSIDE, "all_reduce"), 0.0, False),
        ((INSIDE, "init_process_group"), 0.0, True),
        ((DONE, "init_process_group"), 0.0, False),
        ((DONE, "all_reduce"), 0.0, False),
        ((DONE, "all_reduce"), 0.6 * TIMEOUT, True),
    ],
    ids=["waits", "joins", "goes round a loop after joining", "goes round a loop", "has no time to say anything"],
)
def test_a_busy_process_works_where_it_joins_or_cannot_tell(busy, tmp_path, position, silent_for, works):
    notes = Notes(tmp_path / "rank-0", new=True)
    notes.page.write(Position(*position, 0, time.monotonic_ns()))
    rank = _Rank(notes, {"pid": busy.pid}, TIMEOUT)
    rank.said["time"] = time.monotonic_ns() + int(1e9 * (0.5 - silent_for))  # at the look that follows
    before = rank.effort()
    time.sleep(0.5)
    assert (rank.effort() != before) == works


@pytest.mark.parametrize(("silent_for", "remark"), [(0.6, "it computes"), (1.6, "its native code keeps Python's lock")])
def test_a_thread_that_is_a_little_late_is_not_taken_for_one_that_has_no_lock(busy, tmp_path, silent_for, remark):
    notes = Notes(tmp_path / "rank-0", new=True)
    notes.page.write(Position(DONE, "all_reduce", 0, time.monotonic_ns()))
    rank = _Rank(notes, {"pid": busy.pid, "native": True}, TIMEOUT)
    rank.effort()
    time.sleep(0.5)
    rank.effort()
    rank.said["time"] = time.monotonic_ns() - int(1e9 * silent_for)
    assert rank.remark.startswith(remark)


BESIDE = """
import hashlib, threading, time
data, begun = bytes(1 << 22), threading.Event()

def run():
    while True:
        {turn}
        begun.set()

threading.Thread(target=run, daemon=True).start()
begun.wait()
print("begun", flush=True)
threading.Event().wait()
"""


@pytest.mark.parametrize(
    ("turn", "works"), [("hashlib.sha256(data)", True), ("time.sleep(0.3)", False)], ids=["a pool", "a heartbeat"]
)
def test_a_rank_whose_other_threads_compute_works(tmp_path, turn, works):
    notes = Notes(tmp_path / "rank-0", new=True)
    notes.page.write(Position(DONE, "all_reduce", 0, time.monotonic_ns()))
    command = [sys.executable, "-c", BESIDE.format(turn=turn)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        rank = _Rank(notes, {"pid": process.pid, "native": True, "time": time.monotonic_ns()}, TIMEOUT)
        efforts = []
        for _ in range(2):  # the first look has nothing to compare with
            time.sleep(0.4)
            efforts.append(rank.effort()[0])
        process.kill()
    assert (efforts[1] > efforts[0]) == works


def test_the_process_that_looks_does_not_take_its_own_work_for_that_of_the_rank_that_started_it(busy, monkeypatch):
    its_thread = Path(f"/proc/{busy.pid}/task/{busy.pid}")
    before = watch._spent(os.getpid())
    time.sleep(0.5)
    after = watch._spent(os.getpid())
    assert after[its_thread] > before[its_thread], "it works, and would count as its parent's"
    monkeypatch.setattr(watch, "os", types.SimpleNamespace(getpid=lambda: busy.pid))
    assert set(after) - set(watch._spent(os.getpid())) == {its_thread}


def test_ranks_of_one_run_are_found_whoever_their_parents_are_and_those_of_an_earlier_one_are_not(busy, tmp_path):
    about = {"world_size": 3, "local": 3, "pid": busy.pid, "born": born(busy.pid), "run": "1-1-0"}
    kept = [Notes(tmp_path / f"rank-{rank}", new=True) for rank in range(3)]
    kept[0].say(**about)
    kept[1].say(**about | {"run": "2-2-0"})
    kept[2].say(**about | {"run": "3-3-0", "born": about["born"] - 1})
    ranks = _Ranks(Options(str(tmp_path), "", "1-1-0", 3, TIMEOUT, end=False))
    ranks.find()
    assert set(ranks.members) == {0, 1}


def test_ranks_of_a_run_that_still_hangs_are_not_taken_for_those_of_a_new_one_in_the_same_folder(busy, tmp_path):
    about = {"world_size": 3, "local": 3, "pid": busy.pid, "born": born(busy.pid), "run": "1-1-0"}
    began = about["born"] + 200_000  # much later, and the process that hangs still lives
    options = Options(str(tmp_path), "", "2-2-0", 3, TIMEOUT, end=False, born=began)
    for rank in (0, 1, 4):
        Notes(tmp_path / f"rank-{rank}", new=True).say(**about)
    Notes(tmp_path / "rank-2", new=True).say(**about | {"world_size": 5})
    earlier, ranks = _Ranks(options._replace(run="1-1-0", born=about["born"])), _Ranks(options)
    earlier.find()
    ranks.find()
    assert (set(earlier.members), set(ranks.members)) == ({0, 1}, set())
    kept = earlier.members[1]
    Notes(tmp_path / "rank-1", new=True).say(**about | {"run": "2-2-0", "born": began})
    for each in (earlier, ranks):
        each.find()
    assert (earlier.members[1], set(ranks.members)) == (kept, {1})


def test_a_rank_of_an_earlier_run_gives_way_to_that_of_the_new_one_once_it_begins(busy, tmp_path):
    about = {"world_size": 2, "local": 2, "pid": busy.pid, "born": born(busy.pid), "run": "1-1-0"}
    Notes(tmp_path / "rank-1", new=True).say(**about)
    ranks = _Ranks(Options(str(tmp_path), "", "2-2-0", 2, TIMEOUT, end=False, born=about["born"] + 100))
    ranks.find()
    assert ranks.members[1].said["run"] == "1-1-0", "it lives, and might have a shell of its own for a parent"
    Notes(tmp_path / "rank-1", new=True).say(**about | {"run": "2-2-0", "born": about["born"] + 100})
    ranks.find()
    assert ranks.members[1].said["run"] == "2-2-0"


def test_what_a_thread_goes_on_to_call_does_not_say_that_a_hang_was_none(tmp_path, capfd):
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        about = {"world_size": 1, "local": 1, "pid": process.pid, "born": born(process.pid), "run": "1-1-0"}
        notes = Notes(tmp_path / "rank-0", new=True)
        notes.page.beside.write(Position(IN_FLIGHT, "recv", None, time.monotonic_ns()))
        notes.say(**about)
        looking = watch.Watch(Options(str(tmp_path), "", "1-1-0", 1, 0.3, end=False))
        looking._ranks.find()
        while looking._told is None:
            looking._look_at_waits([0])
        notes.page.beside.write(Position())
        looking._look_at_waits([0])
        assert watch.GO_ON not in capfd.readouterr().err
        notes.page.write(Position(DONE, "barrier", 0, time.monotonic_ns()))
        looking._look_at_waits([0])
        assert watch.GO_ON in capfd.readouterr().err


def test_a_rank_that_has_ended_is_not_shown_in_what_a_thread_of_its_was_in(busy, tmp_path):
    notes = [Notes(tmp_path / f"rank-{rank}", new=True) for rank in (0, 1)]
    for each in notes:
        each.page.beside.write(Position(IN_FLIGHT, "recv", None, time.monotonic_ns()))
        each.say(world_size=2, local=2, pid=busy.pid, born=born(busy.pid), run="1-1-0")
    ranks = _Ranks(Options(str(tmp_path), "", "1-1-0", 2, TIMEOUT, end=False))
    ranks.find()
    notes[0].say(time=time.monotonic_ns(), pid=busy.pid, born=born(busy.pid), ended="finished")
    assert ranks.unfinished() == [1]
    assert [each.position.name for each in ranks.standings()] == ["", "recv"]


NAMED = """
import ctypes, sys
ctypes.CDLL(None).prctl(15, b"reads letters \\xc3", 0, 0, 0)  # PR_SET_NAME, of at most 15 bytes
print("is named", flush=True)
sys.stdin.read()
"""


def test_a_process_whose_name_linux_has_cut_within_a_letter_is_not_taken_for_one_that_is_gone():
    with subprocess.Popen([sys.executable, "-c", NAMED], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        assert born(process.pid) > 0
