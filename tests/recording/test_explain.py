"""What a run holds beside the closed form: its terms, a loop of one's own, and the reason where there is no number."""

from importlib.util import find_spec

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from zerolab import models, theory
from zerolab.engines import ENGINES


def frozen_first():
    """The odd MLP with its first layer frozen: 91 of 343 parameters."""
    model = models.build("mlp-odd")
    model[0].requires_grad_(False)
    return model


def fully_sharded():
    """A model that two ranks can divide by rows, under torch's FSDP2."""
    from torch.distributed.fsdp import fully_shard

    return fully_shard(models.build("gpt-tiny"))


def redundancy_free(parameters, lr):
    """torch's ZeroRedundancyOptimizer around AdamW."""
    from torch.distributed.optim import ZeroRedundancyOptimizer

    return ZeroRedundancyOptimizer(parameters, torch.optim.AdamW, lr=lr)


def train(build, optimizer_cls=torch.optim.AdamW, name="mlp-odd", steps=3):
    """A loop of somebody's own."""
    model = build()
    optimizer = optimizer_cls([p for p in model.parameters() if p.requires_grad], lr=0.1)
    for inputs, targets in models.batches(name, 2, dist.get_rank(), steps):
        models.loss(model(inputs), targets).backward()
        optimizer.step()
        optimizer.zero_grad()


def as_dictionary(table):
    return {row["term"]: row for row in table}


def test_a_loop_of_ones_own_is_set_beside_the_form_that_it_comes_nearest_to(cluster):
    recording = cluster.record(train, lambda: DistributedDataParallel(frozen_first()))
    rows = as_dictionary(recording.explain(rank=1))
    assert "nearest to ddp: bytes of rank 1" in recording.explain(rank=1).title
    assert {term: row["measured"] for term, row in rows.items()} == {
        "parameters": 4 * 343,
        "gradients": 4 * 252,
        "optimizer_state": 8 * 252,
        "step_counters": 4 * 4,
        "state": 4 * 343 + 12 * 252 + 16,
    }
    assert {row["difference"] for row in rows.values()} == {0}
    assert rows["gradients"]["formula"] == "4 Ψ of what is trained"


def test_a_loop_can_be_set_beside_the_stage_that_it_is_meant_to_be(cluster):
    recording = cluster.record(train, lambda: models.build("mlp-odd"))
    rows = as_dictionary(recording.explain(stage="zero1"))
    assert rows["optimizer_state"]["formula"] == "2 x 4 Ψ / N"
    assert rows["optimizer_state"]["difference"] == rows["state"]["difference"] == 8 * 343 // 2
    assert rows["gradients"]["difference"] == 0
    with pytest.raises(ValueError, match="unknown stage 'zero7': choose one of ddp, zero1, zero2, zero3"):
        recording.explain(stage="zero7")
    assert "no formula: nothing says which stage this loop is; explain()" in str(recording.table())


def test_torchs_own_sharding_in_a_raw_loop_is_explained_to_the_byte(cluster):
    sharded = cluster.record(train, fully_sharded, name="gpt-tiny")
    assert "nearest to zero3" in sharded.explain().title
    assert {row["difference"] for row in sharded.explain()} == {0}
    owned = cluster.record(train, lambda: models.build("mlp-odd"), redundancy_free)
    assert "nearest to zero1" in owned.explain().title
    by_rank = [as_dictionary(owned.explain(rank))["optimizer_state"] for rank in (0, 1)]
    assert sum(row["measured"] for row in by_rank) == 8 * 343, "whole parameters: one rank has more, one less"


def test_an_optimizer_with_another_number_of_moments_is_read_off(cluster):
    recording = cluster.record(train, lambda: models.build("mlp-odd"), torch.optim.SGD)
    assert as_dictionary(recording.explain())["optimizer_state"]["formula"] == "none"
    assert {row["difference"] for row in recording.explain()} == {0}


@pytest.mark.parametrize(
    ("optimizer", "two"),
    [(torch.optim.SGD, False), (torch.optim.RMSprop, False), (torch.optim.NAdam, False), (torch.optim.RAdam, True)],
)
def test_a_stage_has_a_formula_only_with_an_optimizer_of_two_moments(cluster, optimizer, two):
    def with_engine():
        engine = ENGINES["zero2"](models.build("mlp-odd"), optimizer, lr=1e-3)
        for inputs, targets in models.batches("mlp-odd", 2, dist.get_rank(), 3):
            engine.training_step(inputs, targets, models.loss)

    recording = cluster.record(with_engine)
    assert (recording.info.formula is not None) == two
    assert {row["state"] for row in recording.table()} == {sum(recording.state.values())}
    if two:
        assert recording.explain().rows[-1]["difference"] == 0
        return
    assert f"no formula: no closed form covers zero2 in fp32 with {optimizer.__name__}" in str(recording.table())
    with pytest.raises(ValueError, match=f"no closed form for {optimizer.__name__}: the formulas count two moments"):
        recording.explain()


def test_a_stage_has_its_formula_also_where_a_rank_has_had_nothing_to_update(cluster):
    def first_unused():
        model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 7))
        engine = ENGINES["zero2"](model, torch.optim.AdamW, lr=1e-3, units=[])
        for _ in range(3):
            engine.backward(model[1](torch.ones(2, 8)).square().mean())
            engine.step()

    recording = cluster.record(first_unused)
    assert recording.info.formula == theory.state_bytes("zero2", 72 + 63, 2)
    assert [recording.explain(rank=rank).rows[-1]["difference"] for rank in range(2)] == [0, 0]


def test_what_is_frozen_is_in_no_formula_that_stands_beside_a_measurement(cluster):
    def with_engine():
        engine = ENGINES["zero2"](frozen_first(), torch.optim.AdamW, lr=1e-3)
        for inputs, targets in models.batches("mlp-odd", 2, dist.get_rank(), 3):
            engine.training_step(inputs, targets, models.loss)

    recording = cluster.record(with_engine)
    needed = {"parameters": 4 * 343, "gradients": 4 * 252 // 2, "optimizer_state": 8 * 252 // 2}
    assert recording.info.formula == needed
    padding, counters = 4, 2 * 4
    for row in recording.table():
        assert row["state"] == row["formula"] + padding + counters
    assert {row["category"]: row["formula"] for row in recording.memory()}["gradients"] == needed["gradients"]
    rows = as_dictionary(recording.explain())
    assert rows["gradients"]["bytes"] == theory.state_bytes("zero2", 343, 2)["gradients"], "Ψ counts them"
    assert rows["frozen"]["bytes"] == -(4 * 91 // 2 + 8 * 91 // 2)
    assert rows["state"]["difference"] == 0
    with pytest.raises(ValueError, match="this run is zero2, not 'zero3'"):
        recording.explain(stage="zero3")


def test_a_run_of_one_step_says_why_it_has_no_state(cluster):
    recording = cluster.record(train, lambda: models.build("mlp-odd"), steps=1)
    for table in (recording.table(), recording.memory(1)):
        assert table.title.endswith(
            "\nno state after 1 step: Adam makes its moments in the first, so record two or more"
        )
    with pytest.raises(ValueError, match="no state after 1 step: Adam makes"):
        recording.explain()


def test_a_loop_whose_parameters_no_module_showed_has_no_form_to_stand_beside(cluster):
    def by_functions():
        model = torch.nn.Linear(4, 4)
        named = dict(model.named_parameters())
        optimizer = torch.optim.Adam(named.values())

        def loss(parameters):
            return torch.func.functional_call(model, parameters, torch.ones(2, 4)).square().sum()

        for _ in range(3):
            gradients = torch.func.grad(loss)(named)
            for name, parameter in named.items():
                parameter.grad = gradients[name]
            optimizer.step()

    recording = cluster.record(by_functions)
    assert recording.state["parameters"] == 4 * 20
    with pytest.raises(ValueError, match="no module was called with its own parameters, so that Ψ is not known"):
        recording.explain()
    assert "no module was called with its own parameters" in str(recording.memory())
    assert "explain()" not in str(recording.memory())


def test_every_place_counts_the_same_collectives(cluster, recordings, require):
    require(find_spec("anywidget"), "anywidget", "pip install 'zerolab[lab]'")  # the player's

    def without_training():
        for _ in range(7):
            dist.all_reduce(torch.ones(1))

    alone = cluster.record(without_training)
    assert "0 steps, 7 collectives>" in repr(alone)
    assert "0 training steps, 7 collectives, 0 units" in repr(alone.play())
    for recording in recordings.values():
        every = [event for event in recording.events if event.number is not None]
        each, inside = [{(e.group, e.number) for e in events} for events in (every, [e for e in every if e.step])]
        counted = f"{len(each)} collectives ({len(inside)} in steps)"
        assert recording.counted == counted
        assert counted in repr(recording)
        assert counted in repr(recording.play())
