"""ZeRO-1 and 2 over NCCL: updated parameters arrive one unit after the other, and whoever uses one waits for it."""

import copy

import pytest
import torch
import torch.distributed as dist
from torch import nn

from zerolab import models
from zerolab.engines import ENGINES
from zerolab.engines.flat import Presence

pytestmark = pytest.mark.slow
STAGES = ["zero1", "zero2"]
UNITS = 3


def made(stage, **options):
    """An engine over three units of two layers."""
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8)) for _ in range(UNITS)))
    return ENGINES[stage](model, torch.optim.SGD, lr=0.1, **options)


def step(engine, number=0):
    """One step on this rank's batch."""
    inputs = torch.full((2, 8), 1.0 + dist.get_rank() + number)
    return engine.training_step(inputs, inputs, models.loss)


def arriving(engine):
    """The names of the flats that nobody has waited for."""
    return [flat.layout.name for flat in engine.flats if flat.presence is Presence.ARRIVING]


@pytest.mark.parametrize("stage", STAGES)
def test_each_unit_of_the_next_forward_waits_for_its_own_parameters_alone(ranks, stage):
    def look_while_it_runs():
        engine, seen = made(stage), []
        for unit in engine.model:
            unit.register_forward_hook(lambda *_: seen.append(len(arriving(engine))))
        step(engine)
        del seen[:]
        after_step = len(arriving(engine))
        engine.model(torch.ones(2, 8))
        return after_step, seen

    assert ranks.run(look_while_it_runs) == [(3, [2, 1, 0])] * 2


USES = {
    "a sum": lambda p: p.sum().item(),
    "data": lambda p: p.data.sum().item(),
    "a detached view": lambda p: p.detach().sum().item(),
    "a list": lambda p: sum(map(sum, p.tolist())),
    "numpy": lambda p: p.detach().numpy().sum(),
    "a copy of it": lambda p: copy.deepcopy(p).sum().item(),
    "one in a list": lambda p: torch._foreach_mul([p], 1.0)[0].sum().item(),
    "a flattened list": lambda p: nn.utils.parameters_to_vector([p]).sum().item(),
    "a keyword": lambda p: torch.sum(input=p).item(),
    "what it prints": lambda p: bool(repr(p)) and p.sum().item(),
    "its address": lambda p: p.data_ptr() and p.sum().item(),
}


@pytest.mark.parametrize("stage", STAGES)
def test_whatever_reads_a_parameter_between_steps_reads_the_updated_one(ranks, stage):
    def read():
        found = {}
        for use, look in USES.items():
            engine = made(stage)
            step(engine)
            before = arriving(engine)
            value = look(engine.model[1][2].weight)
            after = arriving(engine)
            found[use] = before, after, value, engine.state_dict()["1.2.weight"].sum().item()
        return found

    for found in ranks.run(read):
        for use, (before, after, value, right) in found.items():
            assert len(before) == UNITS, use
            assert after == ["0", "2"], use
            assert value == pytest.approx(right, rel=1e-6), use


def test_one_rank_alone_may_read(ranks):
    def read_on_rank_0():
        engine = made("zero2")
        step(engine)
        if dist.get_rank() == 0:
            engine.model[0][0].bias.sum().item()
        step(engine)
        return engine.state_dict()["0.0.bias"].tolist()

    first, second = ranks.run(read_on_rank_0)
    assert first == second


def test_what_can_be_told_without_numbers_waits_for_nothing(ranks):
    def ask():
        engine = made("zero1")
        step(engine)
        for parameter in engine.model.parameters():
            parameter.shape, parameter.dtype, parameter.numel(), parameter.requires_grad, parameter.grad
        left = len(arriving(engine))
        engine.state_dict()
        return left, len(arriving(engine)), {type(parameter) for parameter in engine.model.parameters()}

    assert ranks.run(ask) == [(UNITS, 0, {nn.Parameter})] * 2


@pytest.mark.parametrize("way", ["copy_", "data"])
def test_what_is_written_while_it_arrives_is_taken_over_by_the_masters(ranks, way):
    def write():
        engine = made("zero2", precision="bf16")
        step(engine)
        weight = engine.model[2][0].weight
        with torch.no_grad():
            (weight if way == "copy_" else weight.data).copy_(torch.full((8, 8), 2.0))
        return engine.state_dict()["2.0.weight"].unique().tolist()

    assert ranks.run(write) == [[2.0]] * 2


def test_parameters_that_no_forward_has_used_are_updated_and_sent_again_in_order(ranks):
    def leave_a_unit_out():
        engine = made("zero1")
        step(engine)
        whole, engine.model[1].forward = engine.model[1].forward, lambda x: x
        step(engine)  # whose update finds the unit's parameters on their way still
        engine.model[1].forward = whole
        step(engine)
        return {key: value.tolist() for key, value in engine.state_dict().items()}

    first, second = ranks.run(leave_a_unit_out)
    assert first == second


def test_without_overlap_the_step_waits(ranks):
    def count():
        engine = made("zero2", overlap=False)
        step(engine)
        return arriving(engine)

    assert ranks.run(count) == [[], []]


def test_an_engine_that_goes_first_has_its_memory_wait_for_what_arrives(ranks):
    def leave():
        import gc

        step(made("zero2"))
        gc.collect()

    assert ranks.run(leave) == [None, None]


def test_a_recording_tells_each_wait_where_the_next_forward_has_it(ranks):
    def train():
        engine = made("zero2")
        for number in range(2):
            step(engine, number)
        engine.state_dict()

    for rank in ranks.record(train).ranks:
        step_of = {event.seq: event.step for event in rank.events if event.op == "all_gather"}
        waits = [event for event in rank.events if event.kind == "wait" and step_of.get(event.parent) == 1]
        forwards = [event for event in rank.events if (event.kind, event.op, event.step) == ("module", "forward", 2)]
        told = [(event.kind, event.unit) for event in sorted([*waits, *forwards], key=lambda event: event.seq)]
        assert told == [("module", "root")] + [(kind, unit) for unit in "012" for kind in ("module", "wait")]
