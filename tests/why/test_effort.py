"""What counts as work of a rank that others wait for; the process is real, and its notes are written by hand."""

import subprocess
import sys
import time

import pytest

from zerolab.runtime.board import DONE, INSIDE, Position
from zerolab.why.notes import Notes
from zerolab.why.watch import _Rank, born

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
