"""Nothing of a cluster can be reached from outside, and no file that is loaded runs anything."""

import ast
import json
import os
import pickle
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import save_file

import zerolab
from zerolab import Cluster, RankError, Recording, Zero1, Zero3, models
from zerolab.engines.checkpoint import FORMAT
from zerolab.runtime.launch import launcher
from zerolab.theory import STAGES

PACKAGE = Path(zerolab.__file__).parent
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108  (looked at, never written)
LISTENING, BOUND = "0A", "07"
LOOPBACK = ("7F", "00000000000000000000000001000000")  # how 127.x.x.x ends, byte by byte backwards; ::1

linux = pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="sockets are read from Linux's /proc")


def sockets(pids):
    """Addresses on which these processes listen or receive, as (protocol, hexadecimal address)."""
    inodes = set()
    for pid in pids:
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            try:
                target = entry.readlink().name
            except OSError:
                continue  # closed meanwhile
            if target.startswith("socket:["):
                inodes.add(target[len("socket:[") : -1])
    found = set()
    for protocol in ("tcp", "tcp6", "udp", "udp6"):
        for line in Path(f"/proc/net/{protocol}").read_text().splitlines()[1:]:
            fields = line.split()
            waits = fields[3] == (LISTENING if protocol.startswith("tcp") else BOUND)
            if waits and fields[9] in inodes:
                found.add((protocol, fields[1].split(":")[0]))
    return found


def beyond_loopback(found):
    return {(protocol, address) for protocol, address in found if not is_loopback(address)}


def is_loopback(address):
    return address.endswith(LOOPBACK[0]) if len(address) == 8 else address == LOOPBACK[1] or is_mapped(address)


def is_mapped(address):
    """Whether this is an IPv4 loopback address that is written as one of IPv6."""
    return address.startswith("0000000000000000FFFF0000") and address.endswith("7F")


def family(cluster):
    """Every process that belongs to the cluster: this one, the fork server, the ranks."""
    return [os.getpid(), launcher()._process.pid, *cluster.run(os.getpid)]


def train(stage=Zero3, steps=2):
    engine = stage(models.build("mlp-odd"), torch.optim.AdamW)
    for batch in models.batches("mlp-odd", dist.get_world_size(), dist.get_rank(), steps):
        engine.training_step(*batch, models.loss)
    return engine


def open_a_door():
    import socket

    globals()["door"] = socket.create_server(("0.0.0.0", 0))  # noqa: S104  (what must not be)


@linux
def test_while_a_cluster_lives_and_works_nothing_listens_beyond_loopback():
    with Cluster(3, device="cpu") as cluster:
        mine = sockets([os.getpid()])
        pids = family(cluster)
        cluster.record(lambda: train() and None)
        found = sockets(pids) - mine
        assert found, "gloo listens on loopback, so an empty answer would mean that nothing was looked at"
        assert beyond_loopback(found) == set()
        cluster.run(open_a_door)
        assert beyond_loopback(sockets(pids) - mine) == {("tcp", "00000000")}, "an open door would have been seen"


def in_shared_memory():
    """The files there, but for those of a browser that another test drives meanwhile."""
    return {path for path in SHARED_MEMORY.iterdir() if "chromium" not in path.name}


@linux
def test_ranks_meet_in_memory_and_leave_no_file_that_others_could_read(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    shared = in_shared_memory()
    with Cluster(2, device="cpu") as cluster:
        cluster.run(lambda: train() and None)
        assert list(tmp_path.iterdir()) == []
        assert in_shared_memory() <= shared
        for pid in cluster.run(os.getpid):
            opened = {str(entry.readlink()) for entry in Path(f"/proc/{pid}/fd").iterdir()}
            named = {path for path in opened if path.startswith("/") and not path.startswith(("/dev/null", "/memfd:"))}
            assert named == set()
            assert any(path.startswith("/memfd:zerolab") for path in opened)


@linux
def test_another_user_cannot_open_what_ranks_share(require):
    require(os.geteuid() == 0, "a second user to try it as", "run as root")
    look = "import os, sys; print(os.listdir(f'/proc/{sys.argv[1]}/fd'))"
    with Cluster(1, device="cpu") as cluster:
        (pid,) = cluster.run(os.getpid)
        command = ["/usr/bin/env", "python3", "-c", look, str(pid)]
        as_me = subprocess.run(command, capture_output=True, text=True, check=False)
        as_nobody = subprocess.run(command, capture_output=True, text=True, check=False, user=65534, group=65534)
    assert as_me.returncode == 0
    assert as_nobody.returncode != 0


# --- what is unpickled ----------------------------------------------------------------------------------------------

UNPICKLES = {"pickle.loads", "pickle.load", "pickle.Unpickler", "torch.load", "marshal.loads", "shelve.open"}
OBJECTS = {"all_gather_object", "broadcast_object_list", "gather_object", "scatter_object_list", "recv_object_list"}
PIPES = {"runtime/call.py", "runtime/ranks.py", "runtime/travel.py", "runtime/worker.py"}  # what reads them


def calls(path):
    """Names of what a file calls, as they are written there."""
    tree = ast.parse(path.read_text())
    found = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    # With that keyword torch builds tensors and plain values, and calls nothing.
    return {ast.unparse(node.func) for node in found if "weights_only=True" not in map(ast.unparse, node.keywords)}


def unpicklers(path):
    """The bases of a file's classes that unpickle, as they are written there."""
    classes = (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ClassDef))
    return {name for node in classes for base in node.bases if (name := ast.unparse(base)).endswith("Unpickler")}


def test_only_what_is_tested_with_hostile_files_has_an_unpickler_of_its_own():
    found = {str(path.relative_to(PACKAGE)) for path in PACKAGE.rglob("*.py") if unpicklers(path)}
    assert found == {"engines/stored.py", "opening/pickles.py"}


def test_only_the_files_that_read_the_inherited_pipes_unpickle_anything():
    found = {str(path.relative_to(PACKAGE)): calls(path) for path in PACKAGE.rglob("*.py")}
    assert {name for name, called in found.items() if called & UNPICKLES} <= PIPES
    assert any(called & UNPICKLES for called in found.values()), "or this test looks for the wrong words"
    objects = {name for name, called in found.items() if {call.rpartition(".")[2] for call in called} & OBJECTS}
    assert objects == set(), "torch's collectives of objects unpickle what comes from the network"


def watch_for_pickles(folder, stage_name):
    """Trains, saves, loads and records, and tells every global that was looked up by an unpickler meanwhile."""
    from zerolab.engines import ENGINES
    from zerolab.recording.recorder import Recorder

    looked_up, watching = [], [True]

    def notice(event, arguments):
        if watching[0] and event == "pickle.find_class":
            looked_up.append(arguments[1:])

    sys.addaudithook(notice)
    with Recorder() as recorder:
        engine = train(ENGINES[stage_name])
        engine.save(f"{folder}/{stage_name}")
        engine.load(f"{folder}/{stage_name}")
    recorder.finish()
    during = list(looked_up)
    pickle.loads(pickle.dumps(Path("x")))  # noqa: S301  (to see that this would be noticed)
    watching[0] = False
    return during, looked_up


@pytest.mark.parametrize("stage", STAGES)
def test_training_saving_and_loading_unpickle_nothing(cluster, tmp_path, stage):
    for during, at_all in cluster.run(watch_for_pickles, str(tmp_path), stage):
        assert during == []
        assert at_all, "the watch must notice an unpickler"


# --- hostile files --------------------------------------------------------------------------------------------------


class Payload:
    """A pickle that leaves a mark when it is loaded."""

    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return os.mkdir, (str(self.mark),)


def hostile_files(folder):
    """Files that do something when they are unpickled, under innocent names; and the mark that they would leave."""
    mark = folder / "pwned"
    plain, zipped = folder / "plain", folder / "zipped"
    plain.write_bytes(pickle.dumps(Payload(mark)))
    torch.save({"model": Payload(mark)}, zipped)
    return [plain, zipped], mark


def test_a_pickle_that_is_called_a_recording_is_refused_and_not_run(tmp_path):
    files, mark = hostile_files(tmp_path)
    for path in files:
        with pytest.raises(ValueError, match="so it is no recording"):
            Recording.load(path)
    assert not mark.exists()
    pickle.loads(files[0].read_bytes())  # noqa: S301  (our own, to see what it does)
    assert mark.exists(), "the payload works, so the test above means something"


def load(path):
    train(Zero1).load(path)


def test_a_pickle_that_is_called_a_checkpoint_is_refused_and_not_run(cluster, tmp_path):
    files, mark = hostile_files(tmp_path)
    for path in files:
        with pytest.raises(RankError, match="cannot be read as a checkpoint"):
            cluster.run(load, path)
    assert not mark.exists()


@pytest.mark.parametrize(
    "groups", ["__import__('os').mkdir('pwned')", '[{"params": ["0.weight"], "lr": {"a": 1}}]', "7"]
)
def test_a_checkpoint_whose_words_are_code_is_refused(cluster, tmp_path, groups, monkeypatch):
    monkeypatch.chdir(tmp_path)
    about = {"format": FORMAT, "numbers": "{}", "groups": groups, "trained": "[]"}
    save_file({"model/x": torch.zeros(1)}, tmp_path / "state", metadata=about)
    with pytest.raises(RankError):
        cluster.run(load, tmp_path / "state")
    assert not (tmp_path / "pwned").exists()


def test_a_recording_with_a_script_in_it_makes_a_page_that_does_not_run_it(tmp_path):
    with Cluster(1, device="cpu") as cluster:
        recording = cluster.record(lambda: train() and None)
    recording.save(tmp_path / "run.json")
    attack = "</script><script>document.title = 'pwned'</script><img src=x onerror=alert(1)>"
    document = json.loads((tmp_path / "run.json").read_text())
    for source in document["sources"].values():
        source["label"] = source["text"] = attack
    for unit in document["units"]:
        unit["name"] = attack
    document["meta"]["stage"] = document["meta"]["optimizer"] = attack
    document["ranks"][0]["events"][0][5] = attack
    (tmp_path / "run.json").write_text(json.dumps(document))
    Recording.load(tmp_path / "run.json").to_html(tmp_path / "run.html")
    page = (tmp_path / "run.html").read_text()
    assert "<script>document.title" not in page
    assert "<img src=x" not in page
    assert "Content-Security-Policy" in page
