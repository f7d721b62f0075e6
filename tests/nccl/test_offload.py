"""Mean gradients leave for main memory on a stream of their own, while the backward goes on."""

import contract
import pytest
import torch
import torch.distributed as dist
from awkward import distance, train_alone, train_sharded
from contract import OFFLOADING, device, offloading_elsewhere
from torch import nn

from zerolab import RankError, models
from zerolab.engines import ENGINES
from zerolab.engines.offload import Departure, Way
from zerolab.theory import STAGES

pytestmark = pytest.mark.slow
UNITS = 3


def made(stage, **options):
    """An engine over three units, whose optimizer is elsewhere."""
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8)) for _ in range(UNITS)))
    return ENGINES[stage](model, torch.optim.SGD, lr=0.1, offload=True, **options)


def backward(engine):
    """One on this rank's batch."""
    inputs = torch.full((2, 8), 1.0 + dist.get_rank())
    engine.backward(nn.functional.mse_loss(engine.model(inputs), inputs))


def copies():
    """The copies that are under way and that nobody has waited for."""
    return sum(kernel.group == OFFLOADING and not kernel.is_awaited for kernel in device.under_way)


@pytest.mark.parametrize("stage", STAGES)
def test_offloaded_training_ends_where_one_process_ends(ranks, stage):
    def train(**options):
        with offloading_elsewhere(), contract.autograd_in_a_thread_of_its_own():
            return train_sharded(stage, torch.optim.SGD, 3, lr=0.1, offload=True, **options)

    reference = train_alone(torch.optim.SGD, steps=3, lr=0.1)
    assert all(distance(state, reference) <= 1e-5 for state in ranks.run(train))
    assert all(distance(state, reference) <= 0.1 for state in ranks.run(train, precision="bf16"))


@pytest.mark.parametrize("by_itself", [True, False])
def test_in_fp16_the_scale_has_arrived_in_main_memory_before_gradients_are_divided_by_it(ranks, by_itself):
    def train():
        with offloading_elsewhere():
            engine, inputs = made("zero2", precision="fp16"), torch.full((2, 8), 1.0 + dist.get_rank())
            for _ in range(3):
                if by_itself:
                    engine.training_step(inputs, inputs, models.loss)
                    continue
                engine.backward(engine.scaler.scale(models.loss(engine.model(inputs), inputs)))
                engine.scaler.unscale_(engine.optimizer)
                engine.scaler.step(engine.optimizer)
                engine.scaler.update()
            return engine.state_dict()["0.0.weight"]

    alone = ranks.run(lambda: made("zero2").state_dict()["0.0.weight"])[0]
    assert all(torch.isfinite(weight).all() and distance({"": weight}, {"": alone}) > 0 for weight in ranks.run(train))


@pytest.mark.parametrize("stage", STAGES)
def test_each_units_mean_leaves_under_the_backward_of_the_units_behind_it_and_no_host_waits(ranks, stage):
    def look_while_it_runs():
        with offloading_elsewhere():
            engine, seen = made(stage), []
            for unit in engine.model:
                unit[0].weight.register_post_accumulate_grad_hook(lambda _: seen.append(copies()))
            backward(engine)
            seen.append(copies())
            engine.step()
            return seen, copies()

    # The last unit's reduction is waited for when the next unit is complete; by then it is that one's turn.
    assert ranks.run(look_while_it_runs) == [([0, 0, 1, UNITS], 0)] * 2


def test_micro_batches_leave_together_with_the_last_one_and_what_was_clipped_leaves_again(ranks):
    def count(clips):
        with offloading_elsewhere():
            engine, started = made("zero2"), []
            original, contract.offload.start = (
                contract.offload.start,
                lambda *call: started.append(1) or original(*call),
            )
            with engine.accumulate():
                backward(engine)
            before = len(started)
            backward(engine)
            if clips:
                engine.clip_grad_norm_(1e-3)
            engine.step()
            contract.offload.start = original
            state = engine.state_dict()
            return before, len(started), sum(value.abs().sum().item() for value in state.values())

    (*plain, moved), (*clipped, hardly) = ranks.run(count, False)[0], ranks.run(count, True)[0]
    assert (plain, clipped) == ([0, UNITS], [0, 2 * UNITS])
    assert moved != pytest.approx(hardly, rel=1e-6)


def test_gradients_that_are_dropped_are_let_go_when_their_copies_are_done(ranks):
    def drop():
        with offloading_elsewhere():
            engine = made("zero3")
            backward(engine)
            engine.zero_grad()
            backward(engine)
            engine.step()
            return copies()

    assert ranks.run(drop) == [0, 0]


def without_a_wait_for_the_copy(patch):
    """The optimizer reads what is arriving."""
    patch.setattr(Departure, "arrived", lambda departure: departure.copy)


def without_a_wait_before_it_is_clipped(patch):
    patch.setattr(Way, "wait", lambda _: None)


def without_a_wait_when_it_goes(patch):
    patch.setattr(Departure, "__del__", lambda _: None)


FAULTS = {
    without_a_wait_for_the_copy: "reads what offload is still bringing: the host has not waited for it",
    without_a_wait_before_it_is_clipped: "writes what offload is still sending or receiving: nobody has waited for it",
    without_a_wait_when_it_goes: "nobody has waited for offload",
}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_wait_that_is_left_out_is_caught(ranks, fault):
    def train():
        with offloading_elsewhere(), pytest.MonkeyPatch.context() as patch:
            fault(patch)
            engine = made("zero2")
            backward(engine)
            if fault is without_a_wait_when_it_goes:
                engine.zero_grad()
                return
            engine.clip_grad_norm_(1.0) if fault is without_a_wait_before_it_is_clipped else None
            engine.step()

    with pytest.raises(RankError, match=f"raised Fault: .*{FAULTS[fault]}"):
        ranks.run(train)
