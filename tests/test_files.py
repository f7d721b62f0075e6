"""Files are written whole or not at all, whoever writes them."""

import ast
import errno
import os
import stat
import sys
import threading
from pathlib import Path

import pytest

import zerolab
from zerolab import files

PACKAGE = Path(zerolab.__file__).parent


def left(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_file_that_fails_half_way_leaves_the_old_one_and_nothing_else(tmp_path):
    target = tmp_path / "run.json"
    files.write_json(target, [1])

    def stopped():
        with files.replacing(target) as part:
            part.write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stopped()
    with pytest.raises(TypeError):
        files.write_json(target, [object()])
    assert target.read_text() == "[\n 1\n]\n"
    assert left(tmp_path) == ["run.json"]


def test_the_bytes_are_on_the_disk_before_the_name_leads_to_them(tmp_path, monkeypatch):
    done = []
    monkeypatch.setattr(files.os, "fsync", lambda descriptor: done.append(os.fstat(descriptor).st_size))
    replace = Path.replace
    monkeypatch.setattr(Path, "replace", lambda part, target: (done.append("moved"), replace(part, target)))
    files.write_text(tmp_path / "run.json", "four")
    assert done == [4, "moved"]


@pytest.mark.parametrize("mask", [0o022, 0o077])
def test_a_new_file_is_as_open_as_any_other_and_a_replaced_one_stays_as_it_was(tmp_path, mask):
    before = os.umask(mask)
    try:
        files.write_text(tmp_path / "new", "text")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o666 & ~mask
    (tmp_path / "new").chmod(0o640)
    files.write_text(tmp_path / "new", "other")
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o640


def test_a_link_stays_a_link(tmp_path):
    (tmp_path / "kept").mkdir()
    (tmp_path / "run.json").symlink_to(tmp_path / "kept" / "run.json")
    files.write_text(tmp_path / "run.json", "text")
    assert (tmp_path / "run.json").is_symlink()
    assert (tmp_path / "kept" / "run.json").read_text() == "text"
    assert left(tmp_path) == ["kept", "run.json"]


def test_a_pipe_gets_what_is_written_and_stays_a_pipe(tmp_path):
    pipe, read = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()))
    reader.start()
    files.write_text(pipe, "text")
    reader.join(10)
    assert read == ["text"]
    assert pipe.is_fifo()
    assert left(tmp_path) == ["pipe"]


def test_a_pipe_that_is_only_a_descriptor_of_this_process_gets_what_is_written():
    reader, writer = os.pipe()
    files.write_text(f"/dev/fd/{writer}", "text")
    assert os.read(reader, 10) == b"text"
    os.close(reader)
    os.close(writer)


def test_a_name_as_long_as_names_can_be_is_no_longer_on_the_way(tmp_path):
    files.write_text(tmp_path / ("Ψ" * 127), "text")
    assert left(tmp_path) == ["Ψ" * 127]


@pytest.mark.parametrize(("place", "why"), [("", "it is a folder"), ("none/run.json", "its folder does not exist")])
def test_a_place_that_cannot_be_written_to_is_refused_in_a_sentence(tmp_path, place, why):
    with pytest.raises(ValueError, match=f"^cannot write '.*': {why}"):
        files.write_text(tmp_path / place, "text")
    assert left(tmp_path) == []


def test_a_folder_of_somebody_elses_is_refused_in_a_sentence(tmp_path, monkeypatch):
    monkeypatch.setattr(files.os, "access", lambda place, _: place != tmp_path)  # root may write everywhere
    with pytest.raises(ValueError, match="you have no permission to write there"):
        files.write_text(tmp_path / "run.json", "text")


@pytest.mark.parametrize(("number", "is_named"), [(errno.ENOSPC, True), (errno.EPIPE, False)])
def test_a_full_disk_is_said_of_the_file_and_a_broken_pipe_of_the_callers_is_not(tmp_path, number, is_named):
    target = tmp_path / "run.json"
    with pytest.raises(OSError, match="Errno") as raised, files.replacing(target):
        raise OSError(number, os.strerror(number))
    assert raised.value.filename == (str(target) if is_named else None)


def test_a_device_without_room_is_named_as_a_full_disk_is():
    with pytest.raises(OSError, match="No space left") as caught, files.replacing("/dev/full") as place:
        place.write_text("all there is")
    assert (caught.value.errno, caught.value.filename) == (errno.ENOSPC, "/dev/full")


@pytest.mark.slow
def test_no_other_module_moves_files_into_their_place_or_makes_temporary_ones_by_itself():
    writers = {
        path.relative_to(PACKAGE).as_posix()
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if (isinstance(node, ast.Attribute) and node.attr in {"mkstemp", "fsync", "O_EXCL"})
        or (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and (node.func.attr == "replace" and len(node.args) == 1 and not node.keywords)
        )
    }
    assert writers == {"files.py"}


@pytest.mark.skipif(sys.platform != "linux", reason="/proc says that root may write there, and takes no file")
def test_a_folder_that_takes_no_file_is_said_of_the_name_that_was_given():
    with pytest.raises(ValueError, match=r"^cannot write '/proc/run\.json': .*; choose another folder$"):
        files.write_text("/proc/run.json", "")


def test_a_pipe_is_refused_where_a_file_is_to_be_read_unless_it_is_open_already(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ValueError, match="pipe' is no file, but a device or a pipe: write what comes out"):
        files.check_readable(tmp_path / "pipe")
    reader, writer = os.pipe()
    files.check_readable(f"/dev/fd/{reader}")
    os.close(reader)
    os.close(writer)
