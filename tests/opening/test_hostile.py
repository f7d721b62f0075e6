"""Whatever a file is, the answer is a recording or one sentence: nothing in it is executed, and memory stays small."""

import contextlib
import os
import pickle
import socket
import subprocess
import sys
import tracemalloc
from pathlib import Path

import hostile
import pytest

from zerolab import Recording, cli
from zerolab.opening import pickles

SIGN = "executed-by-a-pickle"
FILES = list(hostile.all_files(SIGN))


def test_there_are_a_hundred_of_them_and_the_worst_would_work_elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert len(FILES) >= 100
    assert len({name for name, _ in FILES}) == len(FILES)
    pickle.loads(dict(FILES)["reduce-4.pickle"])  # noqa: S301  (what Python's own does with it)
    assert Path(SIGN).exists()


@pytest.mark.parametrize(("name", "data"), FILES, ids=[name for name, _ in FILES])
def test_a_hostile_file_gets_one_sentence_and_does_nothing(name, data, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = set(sys.modules)
    Path(name).write_bytes(data)
    with pytest.raises(ValueError, match=f"{name.split('.')[0]}") as refused:
        Recording.open(name)
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 400
    assert os.listdir() == [name]  # noqa: PTH208  (plain names)
    assert not [module for module in set(sys.modules) - before if not module.startswith("encodings")]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (
            "system-2.pickle",
            "asks for more than plain values (GLOBAL, which imports or calls something): nothing of it",
        ),
        ("system-stack.pickle", "asks for more than plain values (STACK_GLOBAL"),
        ("binpersid.pickle", "asks for more than plain values (BINPERSID"),
        ("half-0.6.pickle", "is half a pickle, or damaged (before byte"),
        ("memo-bomb.pickle", "is a pickle of plain values, but neither a dump of the flight recorder nor a memory"),
        ("no-history.pickle", "without a history, so nothing of it can be played: call torch.cuda.memory._record"),
        ("no-entries.pickle", "without an entry: set TORCH_FR_BUFFER_SIZE before the run"),
        ("chrome.json", "is a Chrome trace, but not of torch.profiler"),
        ("zerolab-chrome.json", "zerolab made it of a recording, so play the recording"),
        ("recording.json", "is a recording already: zerolab play shows it"),
        ("half-0.9.json", "is half a file: its events do not end"),
        ("no-events.json", "with neither collectives nor updates in it: record whole training steps"),
        ("ranks.json", "there is a file of rank 7, but a world of 2 ranks"),
        ("sqlite.sqlite", "is an SQLite database, as Nsight Systems exports it"),
        ("checkpoint.pt", "is a zip archive, such as torch.save writes"),
        ("half.json.gz", "is half a file of gzip, or damaged"),
        ("changed.json.gz", "is half a file of gzip, or damaged (CRC check failed"),
        ("bomb.json.gz", "unpacks to more than 400 times its size, as no trace does"),
        ("nothing.json", "is empty: the run was perhaps ended before it was written"),
    ],
)
def test_the_sentence_says_what_the_file_is(name, said, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path(name).write_bytes(dict(FILES)[name])
    assert cli.main(["open", name]) == 2
    assert said in capsys.readouterr().err


def test_the_folder_one_is_in_is_called_a_folder(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["open", "."]) == 2
    assert "'.' is a folder: name the files in it" in capsys.readouterr().err


def test_places_without_a_file_get_a_sentence(tmp_path):
    with pytest.raises(ValueError, match="is a folder: name the files in it"):
        Recording.open(tmp_path)
    with pytest.raises(FileNotFoundError, match="does not exist: check the name"):
        Recording.open(tmp_path / "trace.json")
    with pytest.raises(ValueError, match="no file was named"):
        Recording.open()
    os.mkfifo(tmp_path / "pipe.json")
    with pytest.raises(ValueError, match="is no file, but a device or a pipe"):
        Recording.open(tmp_path / "pipe.json")


def make_socket(place):
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(place)


ENDLESS = {"pipe": os.mkfifo, "socket": make_socket, "device": lambda place: Path(place).symlink_to("/dev/zero")}
READERS = {"open": "trace.json", "why": "hang.json", "play": "run.json", "diff": "run.json.fingerprints/rank-0.json"}


@pytest.mark.parametrize("kind", ENDLESS)
@pytest.mark.parametrize("command", READERS)
def test_what_may_give_bytes_without_an_end_is_refused_in_a_sentence(command, kind, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("run.json.fingerprints").mkdir()
    place = READERS[command]
    ENDLESS[kind](place)
    assert cli.main([command, *(["run.json"] * 2 if command == "diff" else [place])]) == 2
    said = f"zerolab: {place!r} is no file, but a device or a pipe: write what comes out of it into a file\n"
    assert capsys.readouterr().err == said


@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")  # as of a file that is left open
@pytest.mark.parametrize("command", ["open", "why", "play"])
def test_a_file_that_its_disk_does_not_give_is_named(command, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("trace.json").symlink_to("/proc/self/mem")  # whose first page cannot be read
    assert cli.main([command, "trace.json"]) == 2
    assert capsys.readouterr().err == "zerolab: [Errno 5] Input/output error: 'trace.json'\n"


@pytest.mark.slow
def test_bombs_take_no_memory(tmp_path):
    names = [name for name, _ in FILES if any(word in name for word in ("bomb", "byte", "deep", "marks", "brackets"))]
    for name in names:
        (tmp_path / name).write_bytes(dict(FILES)[name])
    script = (
        "import resource, sys\nfrom zerolab import Recording\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "for name in sys.argv[1:]:\n    try:\n        Recording.open(name)\n    except ValueError:\n        pass\n"
        "    else:\n        raise SystemExit(f'{name} was opened')\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, *names], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 200 * 1024  # KB, of which the scanner's pieces are most


def test_a_pickle_that_would_fill_the_memory_is_refused_before_it_is_read():
    with pytest.raises(ValueError, match="'lists' may make more values than there is memory for: record fewer"):
        pickles.loads(b"\x80\x02" + b"]" * pickles.MOST + b".", "lists")


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_a_pickle_that_ends_anywhere_is_refused(protocol):
    whole = pickle.dumps(
        {"version": "2.10", "entries": [{"id": 70_000, "size": 2**40, "ends": (1.5, "at", "last")}]}, protocol
    )
    for end in range(len(whole)):
        with pytest.raises(ValueError, match="half a pickle, or damaged"):
            pickles.loads(whole[:end], "half")
    assert pickles.loads(whole, "whole")["entries"][0]["ends"] == (1.5, "at", "last")


SHARED = b"q\0h\0\x86" * 60  # a pair of itself twice, sixty times: 2**60 values for whoever follows them all


@pytest.mark.slow
@pytest.mark.parametrize(
    "key", [b")" + b"\x85" * 300_000, b")" + SHARED, b")" + b"\x85" * 5000], ids=["nested", "shared", "equal"]
)
@pytest.mark.parametrize("items", [b"}%sNs.", b"}(%sNu.", b"}(NN%sNu."], ids=["item", "items", "second"])
def test_tuples_are_no_keys(key, items):
    with pytest.raises(ValueError, match="half a pickle, or damaged"):
        pickles.loads(b"\x80\x02" + items.replace(b"%s", key), "keys")


def nested(depth):
    """A list that has one twice, which has one twice: 2**depth values as written out, few in a pickle."""
    value = ["deep"]
    for _ in range(depth):
        value = [value, value]
    return value


@pytest.mark.parametrize(
    "place", ["state", "entry", "time_created_ns", "profiling_name", "sizes", "group", "frames", "version"]
)
def test_values_that_share_parts_are_told_in_few_words(tmp_path, place):
    deep, sizes = nested(22), nested(60)
    entry = {
        "time_created_ns": 1,
        "time_discovered_completed_ns": 2,
        "collective_seq_id": 1,
        "profiling_name": "nccl:_reduce_scatter_base",
    }
    entry |= {"input_sizes": [[8]], "input_dtypes": ["Float"], "output_sizes": [[4]], "output_dtypes": ["Float"]}
    entry |= {"process_group": ("0", "default"), "state": "completed"}
    change = {
        "time_created_ns": {"time_created_ns": deep},
        "profiling_name": {"profiling_name": deep},
        "sizes": {"input_sizes": nested(60), "output_sizes": sizes},
        "group": {"process_group": [deep]},
        "frames": {"frames": [{"line": 1, "filename": deep, "name": deep}]},
    }.get(place, {})
    document = {
        "version": deep if place == "version" else "2.10",
        "entries": [entry | change],
        "pg_config": {"0": {"ranks": "[0, 1]"}},
    }
    if place in ("state", "entry"):
        alloc = {"action": "alloc", "size": 8, "time_us": 5, "addr": 0}
        document = {"segments": [{"blocks": [{"state": deep, "size": 8}]}], "device_traces": [[alloc]]}
        document["device_traces"][0].append(alloc | {"size": deep} if place == "entry" else alloc)
    (tmp_path / "rank0.pickle").write_bytes(pickle.dumps(document, 2))
    tracemalloc.start()
    try:
        with contextlib.suppress(ValueError):
            Recording.open(tmp_path / "rank0.pickle")
        assert tracemalloc.get_traced_memory()[1] < 20_000_000  # written out, those are 40 million
    finally:
        tracemalloc.stop()
