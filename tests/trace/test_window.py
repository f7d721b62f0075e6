"""Where the steps that are recorded begin and end: in a compiled call, beneath a mode, in evaluation mode."""

import json
import subprocess
import sys
import threading
from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch.autograd import backward, grad  # bound before anything is recorded, as in many a script
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack
from torch.utils.flop_counter import FlopCounterMode

import zerolab
from zerolab.trace import _Told
from zerolab.trace.parts import Parts
from zerolab.trace.window import Window


def trained(first, last, *, steps=5, around=nullcontext, evaluate=False, mode=True):
    """What is recorded of a small training, each of whose steps has something around it."""
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)).train(mode)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    found = []
    with Window(first, last, found.append):
        for step in range(1, steps + 1):
            with around(step):
                model(torch.ones(2, 8)).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
            if evaluate:
                model.eval()(torch.ones(4, 8))  # with gradients
                model.train(mode)
    return found


def passes(recording):
    return [(e.step, e.op) for e in recording.events if e.kind in ("module", "optimizer") and e.unit in (None, "root")]


STEPS = [(step, op) for step in (1, 2) for op in ("forward", "backward", "step")]


@pytest.mark.parametrize("counted", [{2}, {3}, {4}, {1, 2, 3, 4, 5}])
def test_a_mode_of_the_script_that_is_active_where_a_recording_begins_or_ends_counts_what_it_counts_without(counted):
    counters = [FlopCounterMode(display=False) for _ in range(6)]
    [recording] = trained(2, 3, around=lambda step: counters[step] if step in counted else nullcontext())
    assert {counters[step].get_total_flops() for step in counted} == {1280}
    assert passes(recording) == STEPS
    assert recording.info.peak["activations"] == trained(2, 3)[0].info.peak["activations"] > 0
    assert _get_current_dispatch_mode_stack() == []


def test_a_mode_around_all_of_the_training_is_still_the_only_one_when_the_recording_is_over():
    with FlopCounterMode(display=False) as counter:
        before = _get_current_dispatch_mode_stack()
        [recording] = trained(2, 3)
        assert _get_current_dispatch_mode_stack() == before
    assert (counter.get_total_flops(), passes(recording)) == (5 * 1280, STEPS)


@pytest.mark.parametrize(("mode", "evaluate"), [(False, False), (True, True)])
def test_evaluation_mode_is_trained_or_not_and_as_many_steps_are_recorded_as_asked(mode, evaluate):
    [recording] = trained(2, 3, mode=mode, evaluate=evaluate)
    assert [each for each in passes(recording) if each[0]] == STEPS


def test_a_loop_that_calls_no_module_is_recorded_for_as_many_steps_as_asked():
    weight, found = torch.ones(3, requires_grad=True), []
    optimizer = torch.optim.SGD([weight], lr=0.1)
    with Window(2, 3, found.append):
        for _ in range(5):
            weight.square().sum().backward()
            optimizer.step()
    assert passes(found[0]) == [(1, "step"), (2, "step")]


def by_backward(loss, weight):
    backward(loss)


def by_grad(loss, weight):
    (weight.grad,) = grad(loss, weight)


@pytest.mark.parametrize("times_only", [False, True])
@pytest.mark.parametrize("differentiate", [by_backward, by_grad])
def test_a_backward_that_was_imported_by_name_before_is_one_of_a_step(differentiate, times_only):
    model, found = nn.Linear(3, 3, bias=False), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Window(2, 3, found.append, times_only=times_only):
        for _ in range(5):
            differentiate(model(torch.ones(2, 3)).sum(), model.weight)
            optimizer.step()
            optimizer.zero_grad()
    steps = [(event.step, event.op, event.phase) for event in found[0].events if event.kind in ("module", "optimizer")]
    assert steps == [(s, op, op) for s in (1, 2) for op in ("forward", "backward", "step")]


def test_a_loop_that_updates_by_hand_is_told_what_a_step_is_and_leaves_no_file(tmp_path, capsys):
    model = nn.Linear(3, 3)
    with zerolab.recording(tmp_path / "run.json", steps=(1, 2)):
        for _ in range(3):
            model(torch.ones(2, 3)).sum().backward()
            with torch.no_grad():
                model.weight -= 0.1 * model.weight.grad
    assert capsys.readouterr().err == (
        "zerolab: nothing was recorded: 0 steps ran, and none of steps 1 to 2: a step is a backward and the update of "
        "an optimizer from torch.optim; in processes that the script starts by itself, as with mp.spawn, nothing is "
        "recorded: start such ranks with torchrun\n"
    )
    assert list(tmp_path.iterdir()) == []


def test_an_update_that_a_scaler_leaves_out_ends_a_step_of_the_recording_and_of_the_fingerprints(tmp_path):
    model, out = nn.Linear(4, 4), tmp_path / "run.json"
    optimizers = [torch.optim.SGD([each], lr=0.1) for each in model.parameters()]
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127)
    with zerolab.recording(out, steps=(2, 4), fingerprints=True) as window:
        for step in range(8):
            factor = 1e30 if step in (1, 2) else 1e-30  # the first overflows
            scaler.scale(model(torch.ones(2, 4)).sum() * factor).backward()
            for optimizer in optimizers:
                scaler.step(optimizer)
            scaler.update(2.0**127)
            for optimizer in optimizers:
                optimizer.zero_grad()
    recording = zerolab.Recording.load(out)
    updates = [sum(e.op == "step" for e in recording.events if e.step == step) for step in (1, 2, 3)]
    assert (window.steps, recording.info.steps, updates) == (4, 3, [0, 0, 2])
    prints = json.loads((tmp_path / "run.json.fingerprints" / "rank-0.json").read_text())["steps"]
    assert [(each["step"], each["skipped"]) for each in prints] == [(2, True), (3, True), (4, False)]


def test_a_long_recording_is_written_while_the_training_goes_on(tmp_path, monkeypatch):
    [mine] = trained(1, 2)
    monkeypatch.setattr("zerolab.trace.MANY", len(mine.events) - 1)
    may_write, write = threading.Event(), Parts.write
    monkeypatch.setattr(Parts, "write", lambda *arguments: may_write.wait(60) and write(*arguments))
    told = _Told(Parts(tmp_path / "run.json"), 1, 2)
    told.finished(mine)
    assert list(tmp_path.iterdir()) == []
    may_write.set()
    told.ended(0, 2)
    assert zerolab.Recording.load(tmp_path / "run.json").info.steps == 2


COMPILED = """
import sys, torch, zerolab
from torch import nn
form, times_only, first = sys.argv[1], sys.argv[2] == "True", int(sys.argv[3])
model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with zerolab.recording("run.json", steps=(first, 3), times_only=times_only):
    call = model
    if form == "in place":
        model.compile(backend="eager")
    elif form == "a function":
        call = torch.compile(lambda x: model(x).square(), backend="eager")
    for _ in range(5):
        call(torch.ones(2, 4)).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
print(torch.empty(3).shape, len(torch.utils._python_dispatch._get_current_dispatch_mode_stack()))
recording = zerolab.Recording.load("run.json")
print([sum(e.op == "step" for e in recording.events if e.step == step) for step in range(1, recording.info.steps + 1)])
print(*{e.step for e in recording.events if e.op == "forward"})
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("form", "times_only", "first", "forwards"),
    [
        ("in place", False, 2, "1 2"),
        ("in place", True, 1, "1 2 3"),
        ("a function", False, 1, "1 2 3"),
        ("a function", False, 2, "2"),  # it was compiled before anything had to be seen in it
        ("a function", True, 2, ""),
    ],
)
def test_a_recording_begins_and_ends_within_a_compiled_call(form, times_only, first, forwards, tmp_path):
    command = [sys.executable, "-c", COMPILED, form, str(times_only), str(first)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["torch.Size([3]) 0", str([1] * (4 - first)), forwards]
