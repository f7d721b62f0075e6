"""What all stages share: parity with one process, state dicts, and refusals; each on real ranks."""

import pytest
import torch
from awkward import batch, distance, loss_fn, make, shard_of, train_alone, train_sharded
from torch import nn

from zerolab import RankError
from zerolab.engines import ENGINES, Engine
from zerolab.theory import STAGES

SIZES = [1, 2, 3, 4]
FROZEN = ("blocks.1", "blocks.2.0")  # a whole unit, and a part of one


@pytest.mark.parametrize("world_size", SIZES)
@pytest.mark.parametrize("stage", STAGES)
def test_sgd_reaches_the_weights_of_one_process_on_the_whole_batch(clusters, stage, world_size):
    reference = train_alone(torch.optim.SGD, steps=4, lr=0.1)
    for state in clusters(world_size).run(train_sharded, stage, torch.optim.SGD, steps=4, lr=0.1):
        assert distance(state, reference) <= 1e-6


@pytest.mark.parametrize("world_size", SIZES)
@pytest.mark.parametrize("stage", STAGES)
def test_adamw_with_weight_decay_and_frozen_parameters_reaches_them_within_1e_5(clusters, stage, world_size):
    options = {"lr": 0.01, "weight_decay": 0.1, "frozen": FROZEN}
    reference = train_alone(torch.optim.AdamW, steps=4, **options)
    for state in clusters(world_size).run(train_sharded, stage, torch.optim.AdamW, steps=4, **options):
        assert distance(state, reference) <= 1e-5  # Adam divides by its second moment, which magnifies rounding


@pytest.mark.parametrize("stage", STAGES)
def test_frozen_parameters_do_not_move_under_weight_decay(clusters, stage):
    start = make(FROZEN).state_dict()
    for state in clusters(2).run(train_sharded, stage, torch.optim.AdamW, 2, FROZEN, lr=0.1, weight_decay=0.5):
        moved = {name for name in start if not torch.equal(state[name], start[name])}
        assert moved
        assert not any(part in name for name in moved for part in FROZEN)


@pytest.mark.parametrize(
    "optimizer_cls", [torch.optim.Adam, torch.optim.RMSprop, torch.optim.Adagrad, torch.optim.NAdam]
)
def test_any_element_wise_optimizer_will_do(clusters, optimizer_cls):
    reference = train_alone(optimizer_cls, steps=3, lr=0.01)
    for state in clusters(2).run(train_sharded, "zero3", optimizer_cls, steps=3, lr=0.01):
        assert distance(state, reference) <= 1e-5


@pytest.mark.parametrize("stage", STAGES)
def test_a_loop_of_your_own_does_what_training_step_does(clusters, stage):
    def own_loop():
        import torch.distributed as dist

        engine = ENGINES[stage](make(), torch.optim.SGD, lr=0.1)
        for step in range(3):
            tokens, targets = (shard_of(tensor, dist.get_rank(), 2) for tensor in batch(step))
            loss = loss_fn(engine.model(tokens), targets)
            engine.backward(loss)
            engine.step()
        return engine.state_dict()

    for by_step, by_hand in zip(
        clusters(2).run(train_sharded, stage, torch.optim.SGD, steps=3, lr=0.1), clusters(2).run(own_loop), strict=True
    ):
        assert distance(by_step, by_hand) == 0


@pytest.mark.parametrize("stage", STAGES)
def test_all_ranks_start_from_rank_0s_parameters(clusters, stage):
    def differently_seeded():
        import torch.distributed as dist

        torch.manual_seed(dist.get_rank())
        return ENGINES[stage](nn.Linear(5, 3), torch.optim.SGD, lr=0.1).state_dict()

    first, second = clusters(2).run(differently_seeded)
    assert distance(first, second) == 0


@pytest.mark.parametrize("stage", STAGES)
def test_a_state_dict_loads_into_another_engine_and_keeps_the_modules_own_keys(clusters, stage):
    def save_and_load():
        engine = ENGINES[stage](make(), torch.optim.SGD, lr=0.1)
        engine.training_step(*batch(0), loss_fn)
        state = engine.state_dict()
        other = ENGINES[stage](make(), torch.optim.SGD, lr=0.1)
        other.load_state_dict(state)
        return state, other.state_dict()

    for saved, loaded in clusters(2).run(save_and_load):
        assert saved.keys() == make().state_dict().keys()
        assert distance(saved, loaded) == 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda state: state.pop("norm.bias"), "'norm.bias' is only in the model"),
        (lambda state: state.update(extra=torch.ones(1)), "'extra' is only in the state"),
        (lambda state: state.update({"norm.bias": torch.ones(2)}), r"'norm.bias' is \(2,\) in the state and \(7,\)"),
    ],
)
def test_a_state_of_another_model_is_refused(clusters, change, message):
    def load_changed():
        engine = ENGINES["zero3"](make(), torch.optim.SGD, lr=0.1)
        state = engine.state_dict()
        change(state)
        engine.load_state_dict(state)

    with pytest.raises(RankError, match=message):
        clusters(1).run(load_changed)


def test_evaluation_between_steps_leaves_training_as_it_was(clusters):
    def with_evaluation():
        import torch.distributed as dist

        engine = ENGINES["zero3"](make(), torch.optim.SGD, lr=0.1)
        for step in range(3):
            tokens, targets = (shard_of(tensor, dist.get_rank(), 2) for tensor in batch(step))
            with torch.no_grad():
                engine.model.eval()(tokens)
            engine.model.train()
            engine.model(tokens)  # a forward whose loss is never used
            engine.training_step(tokens, targets, loss_fn)
        return engine.state_dict()

    reference = train_alone(torch.optim.SGD, steps=3, lr=0.1)
    assert all(distance(state, reference) <= 1e-6 for state in clusters(2).run(with_evaluation))


@pytest.mark.parametrize("stage", STAGES)
def test_after_a_step_no_gradient_is_left(clusters, stage):
    def gradients_left():
        engine = ENGINES[stage](make(), torch.optim.SGD, lr=0.1)
        engine.training_step(*batch(0), loss_fn)
        return [holding.unit for holding in engine.holdings() if holding.category == "gradients"]

    assert clusters(2).run(gradients_left) == [[], []]


def _refused(clusters, make_engine, world_size=1):
    with pytest.raises(RankError) as caught:
        clusters(world_size).run(make_engine)
    return str(caught.value)


@pytest.mark.parametrize(
    ("optimizer", "sentence"),
    [
        ("adamw", "optimizer_cls is 'adamw': pass an optimizer's class"),
        (
            torch.optim.SGD([torch.ones(2)]),
            "made already (SGD), and an engine makes its own: pass the class",
        ),
        (torch.optim.LBFGS, "LBFGS cannot run on shards"),
        (torch.optim.Adafactor, "Adafactor cannot run on shards"),
        (torch.optim.SparseAdam, "SparseAdam cannot run on shards"),
    ],
)
def test_an_optimizer_that_cannot_update_a_shard_is_refused(clusters, optimizer, sentence):
    assert sentence in _refused(clusters, lambda: ENGINES["zero1"](nn.Linear(2, 2), optimizer))


def test_a_keyword_that_the_optimizer_does_not_take_is_refused(clusters):
    message = _refused(clusters, lambda: ENGINES["zero1"](nn.Linear(2, 2), torch.optim.SGD, learning_rate=1))
    assert "SGD does not take ['learning_rate']" in message


def test_a_model_with_nothing_to_train_is_refused(clusters):
    message = _refused(clusters, lambda: ENGINES["ddp"](nn.Linear(2, 2).requires_grad_(False), torch.optim.SGD))
    assert "all 2 parameters of Linear are frozen" in message


def test_ranks_with_different_models_are_refused(clusters):
    def different_models():
        import torch.distributed as dist

        ENGINES["ddp"](nn.Linear(2, 2 + dist.get_rank()), torch.optim.SGD)

    assert "differ between ranks (rank 0: 6, rank 1: 9)" in _refused(clusters, different_models, 2)


def test_a_first_batch_with_uneven_rows_is_refused(clusters):
    def uneven():
        import torch.distributed as dist

        engine = ENGINES["ddp"](make(), torch.optim.SGD)
        tokens, targets = (tensor[: 4 + dist.get_rank()] for tensor in batch(0))
        engine.training_step(tokens, targets, loss_fn)

    message = _refused(clusters, uneven, 2)
    assert "rows in the first batch differ between ranks (rank 0: 4, rank 1: 5)" in message


def test_an_engine_is_known_by_its_stage():
    assert tuple(ENGINES)[:4] == STAGES
    assert tuple(ENGINES[stage].stage for stage in STAGES) == STAGES
    assert all(issubclass(ENGINES[stage], Engine) for stage in STAGES)
