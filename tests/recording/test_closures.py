"""Loops that give the optimizer a closure: the update begins after its first call, and further ones are part of it."""

import pytest
import torch
from torch import nn

import zerolab
from zerolab import Recording
from zerolab.recording.ledger import OTHER
from zerolab.recording.patches import once_computed
from zerolab.recording.recorder import Recorder

CALLS = 4  # of the closure, in each update of LBFGS
OPTIMIZERS = {
    1: lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    CALLS: lambda parameters: torch.optim.LBFGS(parameters, lr=0.1, max_iter=CALLS),
}


class Loop:
    """A model, its optimizer, and the closure that it is given at each update; `calls` counts the closure's."""

    def __init__(self, optimizer):
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
        self.inputs = torch.randn(16, 4)
        self.optimizer, self.calls = optimizer(self.model.parameters()), 0

    def closure(self):
        self.calls += 1
        self.optimizer.zero_grad()
        loss = nn.functional.mse_loss(self.model(self.inputs), self.inputs.sum(1, keepdim=True))
        loss.backward()
        return loss

    def train(self, steps):
        for _ in range(steps):
            self.optimizer.step(self.closure)
        return self.model[0].weight.tolist()


def of_kind(recording, kind):
    return [event for event in recording.events if event.kind == kind]


@pytest.mark.parametrize("calls", OPTIMIZERS)
def test_an_update_is_one_step_however_often_it_calls_its_closure(record, calls):
    loop = Loop(OPTIMIZERS[calls])
    recording = record(loop.train, 3)
    assert loop.calls == 3 * calls
    assert recording.info.steps == 3
    passes = [(event.op, event.step) for event in of_kind(recording, "module") if event.unit == "root"]
    assert passes == [(op, step) for step in (1, 2, 3) for op in ("forward", "backward") * calls]
    assert recording.info.state["gradients"] == 4 * 49


def test_an_update_lasts_until_its_last_closure_is_done_and_computes_what_is_within_it(record):
    recording = record(Loop(OPTIMIZERS[CALLS]).train, 2)
    updates = of_kind(recording, "optimizer")
    assert [event.step for event in updates] == [1, 2]
    for update in updates:
        within = [event for event in of_kind(recording, "module") if event.step == update.step]
        first, *again = [event for event in within if event.unit == "root"][::2]
        assert first.t_end < update.t_start
        assert all(update.t_start < event.t_start < event.t_end < update.t_end for event in again)
        assert {event.phase for event in within} == {"forward", "backward"}
        assert update.phase == "step"


class Twice(torch.optim.SGD):
    """Asks for the gradients, and then for the loss alone."""

    def step(self, closure):
        closure()
        with torch.no_grad():
            for parameter in self.param_groups[0]["params"]:
                parameter.sub_(parameter.grad, alpha=0.1)
            return closure()


def test_a_further_closure_without_gradients_ends_no_step(record):
    model = nn.Linear(4, 1)
    optimizer = Twice(model.parameters(), lr=0.1)

    def closure():
        loss = model(torch.ones(2, 4)).sum()
        if torch.is_grad_enabled():
            loss.backward()
        return loss

    recording = record(lambda: [optimizer.step(closure) for _ in range(2)])
    assert recording.info.steps == 2
    assert [event.step for event in of_kind(recording, "optimizer")] == [1, 2]
    assert [event.step for event in of_kind(recording, "module") if event.op == "forward"] == [1, 1, 2, 2]


def test_after_a_further_closure_it_is_the_update_that_allocates():
    loop, seen = Loop(OPTIMIZERS[1]), []

    class Looking(torch.optim.SGD):
        def step(self, closure):
            for _ in range(2):
                closure()
                seen.append((recorder._log.phase, recorder.ledger.category))

    with Recorder() as recorder:
        Looking(loop.model.parameters(), lr=0.1).step(loop.closure)
    assert seen == [("step", OTHER)] * 2


def test_a_further_closure_that_raises_leaves_the_next_step_in_order(record):
    loop = Loop(OPTIMIZERS[CALLS])
    closure = loop.closure

    def failing():
        if loop.calls == 1:
            raise ValueError("no")
        return closure()

    def train():
        with pytest.raises(ValueError, match="no"):
            loop.optimizer.step(failing)
        loop.optimizer = OPTIMIZERS[CALLS](loop.model.parameters())
        loop.train(1)

    recording = record(train)
    assert recording.info.steps == 2  # the first had begun its update
    assert [event.step for event in of_kind(recording, "optimizer")] == [1, 2]
    # What was under way when it raised does not last until the recording ends.
    assert of_kind(recording, "optimizer")[0].t_end <= of_kind(recording, "optimizer")[1].t_start


@pytest.mark.parametrize("calls", OPTIMIZERS)
@pytest.mark.parametrize("first", [1, 2])
def test_a_recording_of_chosen_steps_that_begins_within_a_closure_has_all_of_them(calls, first, tmp_path):
    plain = Loop(OPTIMIZERS[calls]).train(4)
    with zerolab.recording(tmp_path / "run.json", steps=(first, first + 1)):
        assert Loop(OPTIMIZERS[calls]).train(4) == plain
    recording = Recording.load(tmp_path / "run.json").rank(0)
    assert (recording.info.steps, recording.info.first_step) == (2, first)
    assert [event.step for event in of_kind(recording, "optimizer")] == [1, 2]
    forwards = [event.step for event in of_kind(recording, "module") if (event.op, event.unit) == ("forward", "root")]
    assert forwards == [1] * calls + [2] * calls


def test_an_update_that_outlasts_the_recording_writes_nothing_into_it():
    loop, recorder, seen = Loop(OPTIMIZERS[CALLS]), Recorder(), []

    def leaving():
        loss = loop.closure()
        if loop.calls == 1:
            recorder.__exit__(None, None, None)
            seen.append(len(recorder._log.drafts))
        return loss

    recorder.__enter__()
    loop.optimizer.step(leaving)
    assert loop.calls == CALLS
    assert seen == [len(recorder._log.drafts)]
    assert not recorder.ledger._entries


def test_an_update_begins_once_and_what_its_optimizer_computes_again_is_told():
    told = []

    class Again:
        def __enter__(self):
            told.append("again")

        def __exit__(self, *error):
            told.append("done")

    given = "optimizer", lambda: told.append("closure")
    (_, closure), keywords = once_computed(given, {}, lambda: told.append("begins"), Again)
    closure()
    closure()
    assert keywords == {}
    assert told == ["closure", "begins", "again", "closure", "done"]
