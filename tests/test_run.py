"""Training on several nodes: two torchrun agents in two network namespaces of this machine, as two hosts would be."""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
import torch

from zerolab import Cluster, Recording, models, run, theory
from zerolab.recording import clocks, pingpong
from zerolab.recording.recorder import Recorder
from zerolab.runtime import devices

ROOT = Path(__file__).parents[1]
HOST, OTHER = "10.211.77.1", "10.211.77.2"
PORT = 29411
AHEAD = 5000  # seconds by which the other node's clock is set forward
PATIENCE = 150


class Node:
    """A host of its own as far as the network is concerned: a namespace with one interface."""

    def __init__(self, name, address, folder):
        self.name, self.address, self.folder = name, address, folder
        self.agent = None

    def launch(self, *training, nodes="2", ahead=0, conf="", launcher=(), fresh_store=False):
        is_host = str(self.address == HOST).lower()
        clock = ["unshare", "--time", "--monotonic", str(ahead), "--fork"] if ahead else []
        command = [
            *["ip", "netns", "exec", self.name, *clock],
            *[sys.executable, "-m", "torch.distributed.run"],
            *[f"--nnodes={nodes}", "--nproc-per-node=2", *launcher],
            *["--rdzv-backend=c10d", f"--rdzv-endpoint={HOST}:{PORT}", f"--rdzv-conf=is_host={is_host}{conf}"],
            *[f"--local-addr={self.address}", "-m", "zerolab.run", *map(str, training)],
        ]
        self.log = (self.folder / f"{self.name}.log").open("w")
        # torch's launcher leaves a folder for its logs behind, wherever temporary files go.
        environment = os.environ | {"GLOO_SOCKET_IFNAME": "node", "CUDA_VISIBLE_DEVICES": "", "TMPDIR": self.folder}
        if fresh_store:
            environment["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
        self.agent = subprocess.Popen(command, stdout=self.log, stderr=subprocess.STDOUT, env=environment)

    def pids(self):
        listed = subprocess.run(["ip", "netns", "pids", self.name], capture_output=True, text=True, check=False)
        return [int(pid) for pid in listed.stdout.split()]

    def lose_power(self):
        """Every process of this node is killed, the agent among them."""
        subprocess.run(["kill", "-9", *map(str, self.pids())], check=False)
        self.agent.wait()

    def said(self):
        return Path(self.log.name).read_text()

    def remove(self):
        while pids := self.pids():
            subprocess.run(["kill", "-9", *map(str, pids)], check=False)
        if self.agent is not None:
            self.agent.wait()
            self.log.close()
        subprocess.run(["ip", "netns", "del", self.name], check=False)


def why_no_namespaces():
    """What keeps this box from having two network namespaces joined by a cable; empty if nothing does."""
    if shutil.which("ip") is None:
        return "the command ip"
    probe = f"zerolab-probe-{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", probe], capture_output=True, text=True, check=False)
    subprocess.run(["ip", "netns", "del", probe], capture_output=True, check=False)
    return "" if made.returncode == 0 else f"the right to make network namespaces ({made.stderr.strip()})"


@pytest.fixture
def nodes(require, tmp_path):
    missing = why_no_namespaces()
    require(not missing, missing, "run as root on Linux with iproute2 (apt install iproute2)")
    pair = [
        Node(f"zerolab{os.getpid()}{end}", address, tmp_path) for end, address in zip("ab", (HOST, OTHER), strict=True)
    ]
    for node in pair:
        subprocess.run(["ip", "netns", "add", node.name], check=True)
    first, second = (node.name for node in pair)
    cable = f"ip link add node netns {first} type veth peer name node netns {second}"
    subprocess.run(cable.split(), check=True)
    for node in pair:
        for command in (f"addr add {node.address}/24 dev node", "link set node up", "link set lo up"):
            subprocess.run(["ip", "-n", node.name, *command.split()], check=True)
    yield pair
    for node in pair:
        node.remove()


def finish(*nodes):
    deadline = time.monotonic() + PATIENCE
    for node in nodes:
        try:
            code = node.agent.wait(max(1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            code = "no"
        assert code == 0, f"{node.name} ended with status {code}:\n" + "\n".join(n.said() for n in nodes)


def losses(*nodes):
    """Every loss that was printed, by step; a step that was trained twice has two."""
    found = {}
    for node in nodes:
        for step, loss in re.findall(r"step (\d+) of \d+: loss ([\d.]+)", node.said()):
            found.setdefault(int(step), []).append(float(loss))
    return found


def losses_on_one_rank(steps):
    """The same training without any node but this one, and without torchrun."""

    def train():
        engine = run.ENGINES["ddp"](models.build("gpt-tiny"), torch.optim.AdamW, lr=run.LEARNING_RATE)
        batches = models.batches("gpt-tiny", 1, 0, steps, rows=run.ROWS)
        return [engine.training_step(*batch, models.loss).item() for batch in batches]

    with Cluster(1, device="cpu") as cluster:
        return cluster.run(train)[0]


@pytest.mark.slow
def test_two_nodes_with_clocks_of_their_own_make_one_recording(nodes, tmp_path):
    host, other = nodes
    out = tmp_path / "run.json"
    host.launch("--stage", "zero3", "--out", out, "--steps", 3)
    other.launch("--stage", "zero3", "--out", out, "--steps", 3, ahead=AHEAD)
    finish(*nodes)

    recording = Recording.load(out)
    assert [rank.rank for rank in recording.ranks] == [0, 1, 2, 3]
    assert all(rank.complete for rank in recording.ranks)
    num_params = recording.num_params
    sent = 4 * theory.traffic_elements("zero3", num_params, 4)
    assert recording.sent == pytest.approx(sent, rel=0.01), "but for padding"
    expected = losses_on_one_rank(3)
    assert {step: [loss] for step, loss in enumerate(expected, 1)} == {
        step: [pytest.approx(loss, abs=1e-4) for loss in printed] for step, printed in losses(*nodes).items()
    }

    clock = {rank.rank: rank.info.clock for rank in recording.ranks}
    apart = [abs(clock[rank]["offset_ns"]) for rank in range(4)]
    assert apart == [
        pytest.approx(true * 1e9, abs=clock[rank]["uncertainty_ns"]) for rank, true in enumerate((0, 0, AHEAD, AHEAD))
    ]
    assert "rank 0's clock, to within" in recording.info.clocks
    # No rank can leave an all-gather before the last one has entered it: on one clock this holds across nodes, too.
    slack = 2 * max(each["uncertainty_ns"] for each in clock.values())
    gathers = [each for each in recording.collectives if each.ops == ("all_gather",) and each.step]
    assert len(gathers) > 10
    for gather in gathers:
        assert len(gather.events) == 4
        last = max(event.t_start for event in gather.events.values())
        assert last <= end_of(recording, gather) + slack

    page = tmp_path / "run.html"
    recording.to_html(page)
    assert "rank 0's clock" in out.read_text()
    assert page.stat().st_size > out.stat().st_size / 50
    assert "torch's store at" in host.said() + other.said()


def end_of(recording, collective):
    """When the first rank had what the collective brings: the end of its wait, where there is one."""
    ends = []
    for event in collective.events.values():
        waits = [e.t_end for e in recording.rank(event.rank).events if e.kind == "wait" and e.parent == event.seq]
        ends.append(max([event.t_end, *waits]))
    return min(ends)


SLURM = re.compile(r"^## SLURM\n+(?P<script>(?:    .*\n|\n)+)", re.MULTILINE)
SRUN = """#!/bin/bash
[[ $1 == --cpus-per-task=* ]] || exit 3
shift
SLURM_NODEID=0 "$@" &
first=$!
SLURM_NODEID=1 ip netns exec {other} "$@" && wait $first
"""


@pytest.mark.slow
def test_the_script_for_slurm_trains_on_two_nodes_when_srun_starts_one_task_on_each(nodes, tmp_path):
    script = textwrap.dedent(SLURM.search((ROOT / "docs" / "several-nodes.md").read_text())["script"])
    for there, here in (("ib0", "node"), ("node 4", "node 2"), ("gpt-10m", "gpt-tiny"), ("--steps 20", "--steps 2")):
        assert there in script
        script = script.replace(there, here)
    (tmp_path / "job").write_text(script)
    srun = tmp_path / "srun"
    srun.write_text(SRUN.format(other=nodes[1].name))
    srun.chmod(0o700)
    slurm = {"NNODES": "2", "JOB_ID": "11", "CPUS_PER_TASK": "8", "SUBMIT_DIR": str(tmp_path)}
    environment = os.environ | {f"SLURM_{name}": value for name, value in slurm.items()}
    environment |= {
        "PATH": f"{tmp_path}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        "CUDA_VISIBLE_DEVICES": "",
        "TMPDIR": str(tmp_path),
    }
    command = ["ip", "netns", "exec", nodes[0].name, "bash", "-eu", tmp_path / "job"]
    ended = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False, timeout=PATIENCE, cwd=tmp_path
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "zero3 on 4 ranks of 2 nodes" in ended.stdout
    assert Recording.load(tmp_path / "run.json").world_size == 4


@pytest.mark.slow
def test_a_node_that_dies_is_missed_by_nobody_in_the_losses(nodes, tmp_path):
    host, other = nodes
    out, checkpoint, steps = tmp_path / "run.json", tmp_path / "checkpoint.safetensors", 60
    training = ("--stage", "zero3", "--out", out, "--steps", steps, "--checkpoint", checkpoint, "--every", 5)
    elastic = {
        "nodes": "1:2",
        "launcher": ["--max-restarts=3"],
        "fresh_store": True,
        "conf": ",last_call_timeout=4,keep_alive_interval=1,keep_alive_max_attempt=2",
    }
    for node in nodes:
        node.launch(*training, **elastic)
    deadline = time.monotonic() + PATIENCE
    while not checkpoint.exists() and time.monotonic() < deadline:
        assert host.agent.poll() is None, host.said()
        time.sleep(0.01)
    other.lose_power()
    finish(host)

    recording = Recording.load(out)
    first = recording.info.first_step
    assert recording.world_size == 2
    assert first > 1
    assert (first - 1) % 5 == 0, "after a checkpoint, whose steps are multiples of 5"
    printed = losses(host, other)
    assert sorted(printed) == list(range(1, steps + 1))
    for step, loss in enumerate(losses_on_one_rank(steps), 1):
        assert printed[step] == [pytest.approx(loss, abs=2e-3)] * len(printed[step]), f"step {step}"


def test_a_clock_that_is_wrong_and_drifts_is_put_right_to_within_what_is_said():
    offset, drift = 7_000_000_000_123, 200e-6  # two hours ahead, and gaining 0.2 ms a second

    def train():
        rank = torch.distributed.get_rank()

        def wrong(true):
            return true + rank * (offset + round((true - origin) * drift))

        origin = time.monotonic_ns()
        before = pingpong.read(lambda: wrong(time.monotonic_ns()))
        with Recorder() as recorder:
            engine = run.ENGINES["zero2"](models.build("mlp-odd"), torch.optim.AdamW)
            for batch in models.batches("mlp-odd", 2, rank, 3):
                engine.training_step(*batch, models.loss)
                time.sleep(0.2)
        after = pingpong.read(lambda: wrong(time.monotonic_ns()))
        true = recorder.finish()
        events = tuple(replace(e, t_start=wrong(e.t_start), t_end=wrong(e.t_end)) for e in true.events)
        info = replace(true.info, started_ns=wrong(true.info.started_ns))
        return before, after, true, replace(true, events=events, info=info)

    with Cluster(2, device="cpu") as cluster:
        (before, after, _, first), (nothing, _, true, wrong) = cluster.run(train)
    assert nothing == []
    assert clocks.align(first, before[0], after[0]).events == first.events, "rank 0's clock is the clock"
    aligned = clocks.align(wrong, before[1], after[1])
    clock = aligned.info.clock
    assert clock["offset_ns"] == pytest.approx(offset, rel=1e-6)
    span = after[1].at - before[1].at
    assert clock["drift_ppm"] == pytest.approx(drift * 1e6, abs=2e6 * clock["uncertainty_ns"] / span)
    # A clock that gains runs through more nanoseconds: the uncertainty is one of readings, the rest of rounding.
    furthest = max(abs(a.t_start - t.t_start) for a, t in zip(aligned.events, true.events, strict=True))
    assert furthest <= clock["uncertainty_ns"] + 2
    assert abs(aligned.info.started_ns - true.info.started_ns) <= clock["uncertainty_ns"] + 2


def options(**changed):
    return argparse.Namespace(**{"model": "mlp-odd", "steps": 2, "global_rows": 24, "every": 1} | changed)


def train_with_a_steeper_loss(choice, factor):
    """`run._train` on this rank; the step after which it began."""
    plain = models.loss
    models.loss = lambda outputs, targets: factor * plain(outputs, targets)
    try:
        return run._train(choice, torch.device("cpu"))
    finally:
        models.loss = plain


def test_a_run_goes_on_after_its_last_step_though_fp16_has_skipped_some(tmp_path):
    choice = {"stage": "zero2", "precision": "fp16", "checkpoint": tmp_path / "state"}
    with Cluster(2, device="cpu") as cluster:
        assert cluster.run(train_with_a_steeper_loss, options(steps=3, **choice), 1e30) == [0, 0]
        assert cluster.run(train_with_a_steeper_loss, options(steps=5, **choice), 1.0) == [3, 3]
        assert cluster.run(train_with_a_steeper_loss, options(steps=6, **choice), 1.0) == [5, 5]


def test_the_rows_of_a_step_are_the_same_however_many_ranks_share_them():
    whole = models.batches("mlp-odd", 1, 0, 2, rows=24)
    with Cluster(3, device="cpu") as cluster:
        shares = cluster.run(run._batches, options())
    for step in range(2):
        assert torch.equal(torch.cat([share[step][0] for share in shares]), whole[step][0])


@pytest.mark.slow
def test_ranks_that_could_not_train_end_before_they_meet_and_one_of_them_says_why(tmp_path):
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "zerolab.run"]
    asked = [*launch, "--stage", "zero3", "--out", str(tmp_path / "run.json"), "--global-rows", "25"]
    ended = subprocess.run(asked, capture_output=True, text=True, check=False, timeout=PATIENCE)
    assert ended.returncode != 0
    sentence = "zerolab.run: 2 ranks cannot share 25 rows evenly: give --global-rows a multiple of 2"
    assert ended.stderr.count(sentence) == 1
    assert "in _check" not in ended.stderr, "of a rank there is one sentence, and no traceback"
    assert "accepts whoever can reach it" not in ended.stdout, "they had met"


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        (["--out", "/nowhere/run.json"], "cannot write '/nowhere/run.json': its folder does not exist"),
        (["--checkpoint", "/nowhere/a.safetensors"], "cannot write '/nowhere/a.safetensors': its folder does not"),
        (["--timeout", "nan"], "--timeout is nan: give seconds above 0"),
        (["--timeout", "-1"], "--timeout is -1: give seconds above 0"),
    ],
)
def test_what_would_fail_after_the_training_or_as_the_ranks_meet_is_refused_before(
    asked, sentence, monkeypatch, tmp_path
):
    monkeypatch.setenv("RANK", "0")
    options = run._parse(["--stage", "zero3", "--out", str(tmp_path / "run.json"), *asked])
    with pytest.raises(SystemExit, match=f"^zerolab.run: {re.escape(sentence)}"):
        run._check(options)


@pytest.mark.parametrize(
    "old", [["zero3", "--out", "run.json", "--rows", "48"], ["--rows=48", "--out=run.json", "zero3"]]
)
def test_the_spelling_of_the_first_edition_works_and_says_on_one_rank_what_to_write_now(old, monkeypatch, capsys):
    new = run._parse(["--stage", "zero3", "--out", "run.json", "--global-rows", "48"])
    assert capsys.readouterr().err == ""
    monkeypatch.setenv("RANK", "0")
    found = run._parse(old)
    assert (found.stage, found.global_rows, found.out) == (new.stage, new.global_rows, new.out)
    said = capsys.readouterr().err.splitlines()
    assert [line.split(";")[0] for line in said] == [
        "zerolab.run: write --stage zero3",
        "zerolab.run: write --global-rows 48",
    ]
    monkeypatch.setenv("RANK", "1")
    run._parse(old)
    assert capsys.readouterr().err == ""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("torchrun", "sentence"),
    [
        ({}, "zerolab.run was not started by torchrun; on one node: torchrun --standalone"),
        (
            {
                "TORCHELASTIC_RUN_ID": "7",
                "TORCHELASTIC_MAX_RESTARTS": "3",
                "TORCHELASTIC_USE_AGENT_STORE": "True",
            },
            "torchrun may restart the ranks, and the new ones would find the addresses of the old ones in its store: ",
        ),
    ],
)
def test_a_start_that_cannot_go_well_is_refused_with_the_remedy(tmp_path, torchrun, sentence):
    command = [sys.executable, "-m", "zerolab.run", "--stage", "zero3", "--out", str(tmp_path / "run.json")]
    ended = subprocess.run(command, env=os.environ | torchrun, capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert ended.stderr.startswith(sentence)
    assert "Traceback" not in ended.stderr


@pytest.mark.slow
def test_on_one_node_a_second_start_goes_on_from_the_checkpoint(tmp_path):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=1", "-m", "zerolab.run"]
    command += [
        "--stage",
        "zero1",
        "--model",
        "mlp-odd",
        "--out",
        "run.json",
        "--checkpoint",
        "state",
        "--every",
        "2",
        "--steps",
    ]
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": "", "GLOO_SOCKET_IFNAME": "lo"}
    said = [
        subprocess.run(
            [*command, steps], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
        ).stdout
        for steps in ("2", "5")
    ]
    assert re.findall(r"step (\d) of", said[0]) == ["1", "2"]
    assert re.findall(r"step (\d) of", said[1]) == ["3", "4", "5"]
    assert json.loads((tmp_path / "run.json").read_text())["meta"]["first_step"] == 3


def backends(gpus_a_rank):
    """What each rank of unequal nodes is told, and what is printed."""
    store, world_size = torch.distributed.HashStore(), len(gpus_a_rank)
    store.set_timeout(timedelta(seconds=20))
    with ThreadPoolExecutor(world_size) as ranks:
        asked = [
            ranks.submit(run._agreed_backend, store, rank, world_size, gpus_a_rank[rank]) for rank in range(world_size)
        ]
        return [each.result() for each in asked]


@pytest.mark.parametrize(
    ("gpus_a_rank", "backend", "said"),
    [
        ((1.0, 1.0, 2.0), devices.NCCL, ""),
        ((1.0, 1.0, 0.5), "gloo", "a node has fewer GPUs than ranks: all use gloo\n"),
        ((1.0, 0.0), run.CPU_ONLY, "a node has no GPU: all ranks compute on the CPU\n"),
        ((0.0, 1.0), run.CPU_ONLY, "a node has no GPU: all ranks compute on the CPU\n"),
        ((0.0, 0.0), run.CPU_ONLY, ""),
    ],
)
def test_unequal_nodes_use_one_backend_that_all_of_them_have(capsys, gpus_a_rank, backend, said):
    assert backends(gpus_a_rank) == [backend] * len(gpus_a_rank)
    assert capsys.readouterr().err == said
