"""Notes are read back as they were written, whatever is said in them, and only files of notes are taken for some."""

import subprocess
import sys

import pytest

from zerolab.why.notes import Notes, in_folder

ABOUT = {"rank": 1, "pid": 4711, "run": "4700-123-0", "failed": True}


@pytest.mark.parametrize("letter", ["a", "批", "\N{SNOWMAN}", "\N{GRINNING FACE}", "\0", '"', "\udc80"])
@pytest.mark.parametrize("count", [600, 700, 1_000, 10_000])
def test_of_a_long_error_as_much_is_read_back_as_there_is_room_for(letter, count, tmp_path):
    notes = Notes(tmp_path / "rank-1", new=True)
    text = f"raised ValueError: {letter * count}"
    notes.say(**ABOUT, where="train.py, line 7", ended=text)
    said = Notes(tmp_path / "rank-1").said()
    assert said | {"ended": ""} == {**ABOUT, "where": "train.py, line 7", "ended": ""}
    assert text.startswith(said["ended"])
    assert len(said["ended"]) > min(count, 500), "a letter takes six bytes at the most"


FULL = """
mount -t tmpfs -o size=64k none /mnt && head -c 44k /dev/zero > /mnt/filler || exit 1
exec "$@"
"""


@pytest.mark.slow
def test_where_a_disk_has_no_room_for_all_of_the_notes_that_is_said_and_no_rank_is_ended_by_them_later(require):
    probe = subprocess.run(["unshare", "--mount", "mount", "-t", "tmpfs", "none", "/mnt"], check=False)
    require(probe.returncode == 0, "the right to mount in a namespace of one's own", "run as root on Linux")
    command = [
        "unshare",
        "--mount",
        "bash",
        "-c",
        FULL,
        "bash",
        sys.executable,
        "-m",
        "zerolab.why",
        "--out",
        "/mnt/notes",
    ]
    ended = subprocess.run([*command, "-m", "this"], capture_output=True, text=True, check=False)
    assert ended.returncode == 2, ended
    assert "'/mnt/notes' cannot be a folder for the ranks' notes: No space left on device; name another" in ended.stderr


def test_where_several_texts_are_long_something_is_left_of_each(tmp_path):
    notes = Notes(tmp_path / "rank-1", new=True)
    notes.say(**ABOUT, where="行" * 1_000, called="调" * 5_000, ended="批" * 1_000)
    said = notes.said()
    assert min(len(said[key]) for key in ("where", "called", "ended")) > 300


def test_only_files_with_names_of_notes_are_taken_for_some(tmp_path):
    for name in ("rank-0", "rank-12", "rank-0.json", "rank-", "rank-x", "rank--1", ".rank-3.4711", "node-1.json"):
        (tmp_path / name).touch()
    assert in_folder(tmp_path) == {0: tmp_path / "rank-0", 12: tmp_path / "rank-12"}
