"""Options of real training: accumulation, clipping, groups, schedules, overlap, prefetch, bf16; each on real ranks."""

import copy

import pytest
import torch
from awkward import batch, distance, loss_fn, make, my_rows, train_sharded
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from zerolab import RankError
from zerolab.engines import ENGINES
from zerolab.engines.residency import Order
from zerolab.theory import STAGES

NO_DECAY = (lambda _name, parameter: parameter.ndim < 2, {"weight_decay": 0.0})


class NumbersStayOnTheDevice(TorchDispatchMode):
    """Within it, reading a number of a tensor is an error: on a GPU the host would wait there for all that it asked."""

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        assert operation is not torch.ops.aten._local_scalar_dense.default, "a number was read"
        return operation(*args, **(kwargs or {}))


@pytest.mark.parametrize("stage", STAGES)
def test_accumulated_micro_batches_give_the_weights_of_one_process_that_adds_them_up(clusters, stage):
    def accumulate():
        engine = ENGINES[stage](make(), torch.optim.SGD, lr=0.1)
        for step in range(2):
            with engine.accumulate():
                for micro in range(2):
                    engine.training_step(*my_rows(10 * step + micro), loss_fn)
            engine.training_step(*my_rows(10 * step + 2), loss_fn)
        return engine.state_dict()

    reference = make()
    optimizer = torch.optim.SGD(reference.parameters(), lr=0.1)
    for step in range(2):
        for micro in range(3):
            tokens, targets = batch(10 * step + micro)
            loss_fn(reference(tokens), targets).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert all(distance(state, reference.state_dict()) <= 1e-6 for state in clusters(3).run(accumulate))


@pytest.mark.parametrize("stage", STAGES)
def test_clipping_uses_the_norm_over_all_shards(clusters, stage):
    def clip():
        engine = ENGINES[stage](make(), torch.optim.SGD, lr=0.5)
        tokens, targets = my_rows(0)
        engine.backward(loss_fn(engine.model(tokens), targets))
        with NumbersStayOnTheDevice():
            norm = engine.clip_grad_norm_(0.05)
        engine.step()
        return norm, engine.state_dict()

    reference = make()
    tokens, targets = batch(0)
    loss_fn(reference(tokens), targets).backward()
    norm = nn.utils.clip_grad_norm_(reference.parameters(), 0.05)
    torch.optim.SGD(reference.parameters(), lr=0.5).step()
    for measured, state in clusters(3).run(clip):
        assert measured.item() == pytest.approx(norm.item(), rel=1e-5)
        assert distance(state, reference.state_dict()) <= 1e-6


@pytest.mark.parametrize("stage", STAGES)
def test_parameter_groups_and_a_schedule_act_as_in_one_process(clusters, stage):
    def grouped():
        engine = ENGINES[stage](make(), torch.optim.SGD, param_groups=[NO_DECAY], lr=0.1, weight_decay=0.3)
        schedule = torch.optim.lr_scheduler.StepLR(engine.optimizer, step_size=1, gamma=0.5)
        for step in range(3):
            engine.training_step(*my_rows(step), loss_fn)
            schedule.step()
        return engine.state_dict()

    reference = make()
    thin = [p for p in reference.parameters() if p.ndim < 2 and p is not reference.unused]
    thick = [p for p in reference.parameters() if p.ndim >= 2]
    optimizer = torch.optim.SGD([{"params": thin, "weight_decay": 0.0}, {"params": thick}], lr=0.1, weight_decay=0.3)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
    for step in range(3):
        tokens, targets = batch(step)
        loss_fn(reference(tokens), targets).backward()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
    assert all(distance(state, reference.state_dict()) <= 1e-6 for state in clusters(2).run(grouped))


@pytest.mark.parametrize(
    "options", [{"overlap": False}, {"prefetch": 0}, {"prefetch": 3}, {"release_after_forward": False}]
)
def test_an_option_of_speed_or_memory_does_not_change_what_is_learned(clusters, options):
    plain = clusters(2).run(train_sharded, "zero3", torch.optim.SGD, 3, lr=0.1)
    for state, reference in zip(
        clusters(2).run(train_sharded, "zero3", torch.optim.SGD, 3, lr=0.1, **options), plain, strict=True
    ):
        assert distance(state, reference) == 0


def test_the_order_of_the_last_pass_tells_what_comes_next():
    order = Order(ahead=2)
    assert [order.use(unit) for unit in "abc"] == [[], [], []]
    order.begin()
    assert [order.use(unit) for unit in "abc"] == [["b", "c"], ["c"], []]
    order.begin()
    assert [order.use(unit) for unit in "axc"] == [["b", "c"], [], []]


@pytest.mark.parametrize("stage", STAGES)
def test_bf16_keeps_fp32_masters_and_agrees_with_the_same_training_unsharded(clusters, stage):
    def in_bf16():
        engine = ENGINES[stage](make(), torch.optim.SGD, precision="bf16", lr=0.1)
        dtypes = {parameter.dtype for parameter in engine.model.parameters()}
        for step in range(3):
            engine.training_step(*my_rows(step), loss_fn)
        return dtypes, engine.state_dict()

    (_, alone), *_ = clusters(1).run(in_bf16)
    for dtypes, state in clusters(2).run(in_bf16):
        assert dtypes == {torch.bfloat16}
        assert {value.dtype for value in state.values()} == {torch.float32}
        assert distance(state, alone) <= 2e-2  # a bf16 gradient has 8 bits, and half the batch rounds differently
    assert distance(alone, make().state_dict()) > 0


@pytest.mark.parametrize("stage", STAGES)
def test_a_small_update_is_not_lost_in_bf16_because_the_master_takes_it(clusters, stage):
    def tiny_updates():
        engine = ENGINES[stage](nn.Linear(4, 4, bias=False), torch.optim.SGD, precision="bf16", lr=1e-5)
        with torch.no_grad():
            before = engine.state_dict()
        for _ in range(10):
            engine.training_step(torch.ones(2, 4), None, lambda outputs, _: outputs.sum())
        return before, engine.state_dict()

    for before, after in clusters(2).run(tiny_updates):
        assert torch.allclose(before["weight"] - after["weight"], torch.full((4, 4), 2e-4), rtol=1e-2)


def test_a_second_backward_outside_accumulate_is_refused(clusters):
    def twice():
        engine = ENGINES["zero1"](make(), torch.optim.SGD, lr=0.1)
        for _ in range(2):
            tokens, targets = batch(0)
            engine.backward(loss_fn(engine.model(tokens), targets))

    with pytest.raises(RankError, match=r"wrap all but the last one in engine\.accumulate\(\)"):
        clusters(1).run(twice)


def test_an_unknown_precision_is_refused(clusters):
    with pytest.raises(RankError, match="precision is 'fp8': choose one of fp32, bf16"):
        clusters(1).run(lambda: ENGINES["ddp"](nn.Linear(2, 2), torch.optim.SGD, precision="fp8"))


@pytest.mark.parametrize("blocks_in_one", [1, 2])
def test_activation_checkpointing_changes_no_weight_in_zero3(clusters, blocks_in_one):
    def checkpointed():
        from torch.utils.checkpoint import checkpoint

        model = nn.Sequential(*(nn.Sequential(nn.Linear(6, 6), nn.GELU()) for _ in range(4)))

        def forward(x):
            for start in range(0, 4, blocks_in_one):
                x = checkpoint(nn.Module.__call__, model[start : start + blocks_in_one], x, use_reentrant=False)
            return x

        torch.manual_seed(0)
        for parameter in model.parameters():
            nn.init.normal_(parameter)
        plain = ENGINES["zero3"](copy.deepcopy(model), torch.optim.SGD, lr=0.1)
        engine = ENGINES["zero3"](model, torch.optim.SGD, lr=0.1)
        for seed in range(3):
            x = torch.randn(2, 6, generator=torch.Generator().manual_seed(seed))
            plain.training_step(x, x, nn.functional.mse_loss)
            engine.backward(nn.functional.mse_loss(forward(x), x))
            engine.step()
        return plain.state_dict(), engine.state_dict()

    for plain, state in clusters(2).run(checkpointed):
        assert distance(state, plain) <= 1e-6
