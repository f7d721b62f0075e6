"""Scripts that know nothing of it are recorded on real ranks: as they are, and step by step."""

import json
import os
import re
import signal
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from launching import SCRIPTS, launch, losses, passes, run_alone, traced

import zerolab
from zerolab.recording.recording import Recording
from zerolab.recording.wrappers import COMPILED_EAGER, COMPILED_HIDDEN
from zerolab.trace import _Told
from zerolab.trace.ending import leaving
from zerolab.trace.parts import Parts

UNITS = ["root", "layers.0", "layers.1", "layers.2"]
NUMELS = {"root": 212, "layers.0": 2160, "layers.1": 2160, "layers.2": 2160}


@pytest.mark.slow
@pytest.mark.parametrize("system", ["ddp", "fsdp1", "fsdp2", "zero", "compiled"])
def test_a_script_trains_as_if_nobody_looked_and_its_steps_are_recorded(system, tmp_path):
    out = tmp_path / "run.json"
    plain = launch(SCRIPTS / "wrapped.py", system)
    done = traced(out, "wrapped.py", system, torchrun=system == "compiled")
    assert done.returncode == 0, done.stderr
    assert losses(done) == losses(plain)
    assert len(losses(done)) == 12
    assert f"zerolab: 3 steps of 2 ranks, from step 2 on, in {out}" in done.stderr
    assert not out.with_name("run.json.parts").exists()
    recording = Recording.load(out)
    assert (recording.info.steps, recording.info.first_step, recording.world_size) == (3, 2, 2)
    assert {unit.name: unit.numel for unit in recording.units} == NUMELS
    assert {event.step for rank in recording.ranks for event in rank.events} <= {0, 1, 2, 3}
    forwards = [unit for _, op, unit in passes(recording, 2) if op == "forward"]
    assert forwards == UNITS
    # Of whole copies a rank has 4 bytes an element of parameters; of FSDP's shards a half.
    whole = 4 * sum(NUMELS.values())
    held = {rank.state["parameters"] for rank in recording.ranks}
    assert held == ({whole // 2} if system.startswith("fsdp") else {whole})
    said = {event.text for rank in recording.ranks for event in rank.events if event.op == "torch.compile"}
    assert said == ({COMPILED_EAGER} if system == "compiled" else set())


@pytest.mark.slow
def test_of_a_compiled_model_times_are_its_own_and_what_is_hidden_is_said(tmp_path):
    traced(tmp_path / "run.json", "wrapped.py", "compiled", options=["--times-only"])
    recording = Recording.load(tmp_path / "run.json")
    assert COMPILED_HIDDEN in [event.text for event in recording.ranks[0].events]
    assert [unit for _, op, unit in passes(recording, 2) if op == "forward"] == ["root"]


def test_gathers_and_reductions_of_fsdp2_have_their_unit(tmp_path):
    traced(tmp_path / "run.json", "wrapped.py", "fsdp2")
    recording = Recording.load(tmp_path / "run.json")
    for step in (1, 2, 3):
        done = Counter((op, unit) for _, op, unit in passes(recording, step))
        assert {unit: done["reduce_scatter", unit] for unit in UNITS} == dict.fromkeys(UNITS, 1)
        assert {unit: done["all_gather", unit] for unit in UNITS} == {**dict.fromkeys(UNITS, 2), "root": 1}


@pytest.mark.slow
def test_a_rank_is_never_drawn_without_the_rows_that_it_keeps(tmp_path):
    traced(tmp_path / "run.json", "wrapped.py", "fsdp2")
    for rank in Recording.load(tmp_path / "run.json").ranks:
        holds = [event for event in rank.events if event.op == "hold" and event.category != "gradients" and event.step]
        assert [event for event in holds if not event.spans] == []
        whole = [event for event in holds if event.spans == ((0, NUMELS[event.unit]),)]
        assert {event.unit for event in whole} == set(UNITS)  # for as long as it is used


@pytest.mark.slow
def test_groups_of_two_levels_are_seen(tmp_path):
    done = traced(tmp_path / "run.json", "wrapped.py", "hsdp", ranks=4)
    assert done.returncode == 0, done.stderr
    events = [event for event in Recording.load(tmp_path / "run.json").ranks[3].events if event.step == 2]
    groups = {(event.op, event.group) for event in events if event.kind == "collective"}
    assert groups == {("all_gather", (2, 3)), ("reduce_scatter", (2, 3)), ("all_reduce", (1, 3))}


@pytest.mark.slow
def test_two_models_are_told_apart(tmp_path):
    out = tmp_path / "run.json"
    plain, done = launch(SCRIPTS / "gan.py"), traced(out, "gan.py", options=["--steps", "3:4"])
    assert losses(done) == losses(plain)
    recording = Recording.load(out)
    units = ["layers.0", "layers.2", "Critic.layers.0", "Critic.layers.2"]
    assert [unit.name for unit in recording.units] == units
    backwards = [unit for _, op, unit in passes(recording, 2) if op == "backward"]
    assert backwards == ["Critic.root", "Critic.layers.2", "Critic.layers.0", "root", "layers.2", "layers.0"]


def test_workers_that_are_forked_and_evaluations_and_several_optimizers_make_no_difference(tmp_path):
    out = tmp_path / "run.json"
    plain = launch(SCRIPTS / "plain.py", ranks=0)
    done = traced(out, "plain.py", ranks=0, options=["--steps", "2:5"])
    assert done.returncode == 0, done.stderr
    assert losses(done) == losses(plain)
    recording = Recording.load(out)
    assert recording.info.steps == 4
    for step in (1, 2, 3, 4):
        done = Counter(op for phase, op, _ in passes(recording, step))
        assert (done["forward"], done["backward"], done["step"]) == (4, 4, 2)
    # SGD's momentum and AdamW's two moments, to the byte: they were made before the recording.
    weights = 8 * 16 + 16 * 4 + 3 * 2 * 16 * 64
    others = sum(NUMELS.values()) - weights
    state = recording.ranks[0].info
    assert state.state["optimizer_state"] == 4 * weights + 8 * others + state.step_counters


def test_without_bytes_of_memory_it_is_the_same_steps(tmp_path):
    out = tmp_path / "run.json"
    traced(out, "wrapped.py", "fsdp2", options=["--times-only", "--steps", "3"])
    recording = Recording.load(out)
    assert (recording.info.times_only, recording.info.steps, recording.info.first_step) == (True, 1, 3)
    assert [unit for _, op, unit in passes(recording, 1) if op == "reduce_scatter"] == [*UNITS[:0:-1], "root"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "who", "torchrun"), [("raise", 0, False), ("raise", 1, True), ("kill", 0, True), ("kill", 1, False)]
)
def test_a_run_that_ends_within_the_steps_leaves_what_was_recorded(how, who, torchrun, tmp_path):
    out = tmp_path / "run.json"
    done = traced(out, "wrapped.py", "ddp", how, who, ranks=3, torchrun=torchrun)
    assert done.returncode != 0
    assert ("ValueError: a bad batch" in done.stderr) == (how == "raise")
    recording = Recording.load(out)
    lost = [who] if how == "kill" else []
    assert [rank.rank for rank in recording.ranks] == [rank for rank in range(3) if rank not in lost]
    assert not any(rank.complete for rank in recording.ranks)
    assert recording.info.steps == 1
    assert (f"nothing came from rank {who}" in done.stderr) == (how == "kill")


def test_a_run_that_never_reaches_the_steps_says_so_and_leaves_nothing(tmp_path):
    done = traced(tmp_path / "run.json", "wrapped.py", "ddp", options=["--steps", "20:21"])
    assert done.returncode == 0
    assert "zerolab: nothing was recorded: 6 steps ran, and none of steps 20 to 21" in done.stderr
    assert list(tmp_path.iterdir()) == []


LOOP = f"""import sys; sys.path.insert(0, {str(SCRIPTS)!r})
import torch, zerolab
from net import Net, loss_of
torch.manual_seed(0)
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with zerolab.recording("own.json", steps=(1, 2)) as window:
    for step in range(4):
        loss_of(model, step, 0).backward()
        optimizer.step()
        optimizer.zero_grad()
print(window.steps)
"""


def test_a_loop_is_recorded_within_a_block(tmp_path):
    done = run_alone(tmp_path, LOOP)
    assert done.stdout == "2\n", done.stderr  # it looks no longer than it has to
    assert Recording.load(tmp_path / "own.json").info.steps == 2


@pytest.mark.parametrize("steps", [(4, 2), (0, 2), (2,), 2, "2:4", (2.0, 4)])
def test_steps_that_are_no_pair_are_refused_in_a_sentence(steps, tmp_path):
    sentence = f"steps are {steps!r}: give the first and the last to be recorded, from 1, as (2, 4)"
    with pytest.raises(ValueError, match=re.escape(sentence)), zerolab.recording(tmp_path / "run.json", steps):
        pass


@pytest.mark.parametrize("steps", [[2, 4], np.array([2, 4]), (torch.tensor(2), np.int64(4))])
def test_steps_may_be_any_two_whole_numbers(steps, tmp_path, capsys):
    with zerolab.recording(tmp_path / "run.json", steps):
        pass
    assert "none of steps 2 to 4" in capsys.readouterr().err


FORKS = """import multiprocessing, os, time
def end_children():
    context = multiprocessing.get_context("fork")
    with context.Pool(2) as pool:  # whose end terminates its workers
        print(pool.map(abs, [-1, 2]))
    codes = set()
    for _ in range(30):  # mostly ended before their first line
        child = context.Process(target=time.sleep, args=(60,))
        child.start()
        child.terminate()
        child.join()
        codes.add(child.exitcode)
    print(codes)
"""


def test_a_script_that_ends_its_forked_children_trains_on_and_they_end_as_if_nobody_looked(tmp_path):
    script = FORKS + LOOP.replace("    loss_of", "    if step == 1:\n            end_children()\n        loss_of")
    done = run_alone(tmp_path, script)
    assert (done.returncode, done.stdout) == (0, "[1, 2]\n{-15}\n2\n"), done.stderr
    assert Recording.load(tmp_path / "own.json").info.steps == 2


def test_a_forked_child_that_ends_by_an_error_or_an_exit_leaves_no_recording_and_no_fingerprints(tmp_path):
    forks = (
        "import os, sys\ndef fork(error):\n    child = os.fork()\n    if child == 0:\n        raise error\n"
        "    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
        "    print(*map(os.path.exists, ('own.json', 'own.json.parts', 'own.json.fingerprints')))\n"
    )
    fork = "for error in (SystemExit(3), ValueError()):\n                fork(error)\n"
    loop = LOOP.replace("        loss_of", f"        if step == 1:\n            {fork}        loss_of")
    done = run_alone(tmp_path, forks + loop.replace("steps=(1, 2)", "steps=(1, 2), fingerprints=True"))
    assert done.stdout == "3\nFalse False False\n1\nFalse False False\n2\n", done.stderr
    assert [line for line in done.stderr.splitlines() if line.startswith("zerolab: ")] == [
        "zerolab: 2 steps of 1 rank, from step 1 on, in own.json"
    ]


def test_a_rank_that_fails_while_it_is_ended_does_not_write_over_what_was_put_together(tmp_path):
    run_alone(tmp_path, LOOP)
    mine = Recording.load(tmp_path / "own.json").ranks[0]
    other, mine = (replace(mine, rank=rank, world_size=2, complete=False) for rank in (0, 1))
    parts = Parts(tmp_path / "run.json")
    told = _Told(parts, 1, 2)
    parts.write(other, 1)
    told.interrupted(mine)
    told.finished(mine)
    assert [rank.rank for rank in Recording.load(tmp_path / "run.json").ranks] == [0, 1]


def test_a_script_that_takes_a_signal_for_a_reason_to_save_and_goes_on_leaves_all_of_its_steps(tmp_path):
    handler = "    signal.signal(signal.SIGTERM, lambda *_: print('saving'))\n    for step"
    ended = (
        "\n        if step == 0:\n            os.kill(os.getpid(), signal.SIGTERM)\n            time.sleep(1)\nprint"
    )
    script = LOOP.replace("steps=(1, 2)", "steps=(1, 5)").replace("    for step", handler).replace("\nprint", ended)
    done = run_alone(tmp_path, "import os, signal, time\n" + script)
    assert done.stdout == "saving\n4\n", done.stderr
    assert Recording.load(tmp_path / "own.json").info.steps == 4


def test_a_rank_that_is_ended_between_two_steps_leaves_the_one_before_them_whole(tmp_path):
    run_alone(tmp_path, LOOP.replace("(1, 2)", "(1, 1)"))
    whole = Recording.load(tmp_path / "own.json").ranks[0].info
    ended = "os.kill(os.getpid(), signal.SIGTERM)\n            time.sleep(9)\n        loss_of"
    script = LOOP.replace("        loss_of", f"        if step == 1:\n            {ended}")
    run_alone(tmp_path, "import os, signal, time\n" + script)
    left = Recording.load(tmp_path / "own.json").ranks[0].info
    assert (left.steps, left.logical_bytes, left.peaks) == (whole.steps, whole.logical_bytes, whole.peaks)
    assert whole.operations[0] - left.operations[0] == 2  # the next batch is made before the forward that ends a step


def test_a_rank_that_is_ended_within_the_steps_says_that_it_leaves_no_fingerprints(tmp_path):
    ended = "os.kill(os.getpid(), signal.SIGTERM)\n            time.sleep(9)\n        loss_of"
    script = LOOP.replace("        loss_of", f"        if step == 2:\n            {ended}").replace(
        "(1, 2)", "(1, 3), fingerprints=True"
    )
    done = run_alone(tmp_path, "import os, signal, time\n" + script)
    assert "zerolab: no fingerprints came from rank 0: it was ended" in done.stderr
    assert Recording.load(tmp_path / "own.json").info.steps == 2


def test_a_rank_that_is_ended_while_it_leaves_what_it_has_still_leaves_it(tmp_path):
    """As one is whose neighbour has failed: its own collective fails, and torchrun ends it a moment later."""
    ended = (
        "import os, signal, time\n"
        "from zerolab.recording.recorder import Recorder\n"
        "def finish(recorder, whole=Recorder.finish):\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n    time.sleep(0.5)\n    return whole(recorder)\n"
        "Recorder.finish = finish\n"
    )
    script = LOOP.replace("loss_of(model, step, 0)", "loss_of(model, step, 0 // (1 - step))")
    done = run_alone(tmp_path, ended + script.replace("(1, 2)", "(1, 2), fingerprints=True"))
    assert done.returncode != 0
    assert Recording.load(tmp_path / "own.json").info.steps == 1
    assert (tmp_path / "own.json.fingerprints" / "rank-0.json").exists()


def test_a_script_may_end_its_group_right_after_the_last_recorded_step(tmp_path):
    script, out = tmp_path / "short.py", tmp_path / "run.json"
    script.write_text(
        f"import sys; sys.path.insert(0, {str(SCRIPTS)!r})\n"
        "import torch, torch.distributed as dist\nfrom torch.distributed.fsdp import fully_shard\n"
        "from net import Net, loss_of\n"
        "dist.init_process_group('gloo'); torch.manual_seed(0)\n"
        "model = fully_shard(Net()); optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "for step in range(2):\n"
        "    loss_of(model, step, dist.get_rank()).backward(); optimizer.step(); optimizer.zero_grad()\n"
        "dist.destroy_process_group()\n"
    )
    done = launch("-m", "zerolab.trace", "--out", out, "--steps", "1:2", "--fingerprints", script)
    assert "zerolab: 2 steps of 2 ranks, from step 1 on" in done.stderr, done.stderr
    recording = Recording.load(out)
    assert ([rank.rank for rank in recording.ranks], recording.info.backend) == ([0, 1], "gloo")
    prints = [json.loads(path.read_text()) for path in sorted(tmp_path.glob("*.fingerprints/*"))]
    assert [(each["rank"], each["world_size"]) for each in prints] == [(0, 2), (1, 2)]
    assert all("end" in each["steps"][-1] for each in prints)


def test_a_block_beside_somebody_else_who_reads_signals_leaves_no_file_open():
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer)
    before = sorted(Path("/dev/fd").iterdir())
    with leaving(print):
        pass
    assert sorted(Path("/dev/fd").iterdir()) == before
    assert signal.set_wakeup_fd(-1) == writer
    os.close(reader)
    os.close(writer)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--steps", "4:2"], "'4:2' has no steps: the first is 1, and the last not before the first"),
        (["--steps", "two"], "'two' is no pair of steps: write 2:4, the first and the last"),
        (["--out", "/nowhere/run.json"], "cannot write '/nowhere/run.json': its folder does not exist"),
    ],
)
def test_what_cannot_be_done_is_refused_before_anything_runs(options, said, tmp_path):
    done = traced(tmp_path / "run.json", "plain.py", ranks=0, options=options)
    assert said in done.stderr
    assert done.returncode == 2
    assert done.stdout == ""


def test_a_script_that_is_not_there_is_named(tmp_path):
    done = traced(tmp_path / "run.json", "nothing.py", ranks=0)
    assert "for a module write -m before its name" in done.stderr


@pytest.mark.parametrize("name", ["nothing.train", "json", "zerolab.nothing"])
def test_a_module_that_cannot_be_run_is_named(name, tmp_path):
    done = launch("-m", "zerolab.trace", "--out", tmp_path / "run.json", "-m", name, ranks=0)
    assert done.returncode == 1
    assert f"there is no module '{name}' that could be run: check the name" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_the_parts_of_an_earlier_run_are_not_taken_for_those_of_this_one(tmp_path):
    out = tmp_path / "run.json"
    traced(out, "wrapped.py", "ddp", "kill", 1, ranks=3)
    left = out.with_name("run.json.parts")
    assert sorted(path.name.split("-")[1] for path in left.glob("rank-*")) == ["0", "2"]
    done = traced(out, "wrapped.py", "ddp", ranks=2)  # fewer than before
    assert done.returncode == 0, done.stderr
    assert len(Recording.load(out).ranks) == 2
    assert json.loads(out.read_text())["meta"]["steps"] == 3
