"""Rows are compared however a batch is given and however many there are; of rows that nobody saw nothing is said."""

import json
from functools import partial

import pytest
import small
import torch
from torch import nn

from zerolab import Cluster
from zerolab.difference.compare import compare
from zerolab.difference.prints import MOST_ROWS
from zerolab.difference.runs import Run
from zerolab.difference.watch import Fingerprints

CALLS = {
    "by place": lambda model, x: model(x),
    "by name": lambda model, x: model(x=x),
    "beside a single row": lambda model, x: model(x=x, places=torch.ones(1, 8)),
    "in an object": lambda model, x: model(bag=small.Bag(x)),
}


def run(folder, how, seed=0):
    def loss(model, step):
        return CALLS[how](model, small.data(step, seed=seed)).square().mean()

    small.train(folder, small.seeded(small.Named), loss)
    return folder


@pytest.fixture(scope="module", name="folder")
def record_all(tmp_path_factory):
    folder = tmp_path_factory.mktemp("batches")
    with Cluster(1) as cluster:
        cluster.run(small.with_engine, folder / "16 on 1", 16)
        cluster.run(small.with_engine, folder / "6000 on 1", 6000)
        cluster.run(small.two_models, folder / "two models on 1")
        cluster.run(small.in_tensor_parallel, folder / "alone", alone=True)
    with Cluster(2) as cluster:
        cluster.run(small.with_engine, folder / "16 by name on 2", 16, named=True)
        cluster.run(small.with_engine, folder / "6000 on 2", 6000)
        cluster.run(small.with_engine, folder / "6000, one other row", 6000, "one other row")
        cluster.run(small.with_engine, folder / "10000", 10000)
        cluster.run(small.with_engine, folder / "10000, same rows", 10000, "same rows")
        cluster.run(small.two_models, folder / "two models on 2")
        cluster.run(small.two_models, folder / "two models, detached", detached=True)
        cluster.run(small.in_tensor_parallel, folder / "tensor parallel")
        cluster.run(small.in_tensor_parallel, folder / "tensor parallel, more rows", 16)
        cluster.run(small.in_tensor_parallel, folder / "tensor parallel, rows of its own", own_rows=True)
        cluster.run(small.in_pipeline, folder / "pipeline")
    return folder


@pytest.mark.parametrize("how", ["by place", "by name", "beside a single row"])
def test_other_data_are_named_however_the_batch_is_given(tmp_path, how):
    found = compare(run(tmp_path / "good", how), run(tmp_path / "bad", how, seed=1)).parting
    assert (found.step, found.phase) == (1, "batches")
    assert found.measured == "GOOD's ranks have 8 rows together, BAD's 8; 0 are the same"
    assert found.meaning.startswith("none of the rows is the same: other data")


LOOKS = {  # at another batch
    "trained in evaluation mode": lambda model, x, _: model.eval()(x),
    "evaluated with gradients": lambda model, x, other: (model.eval()(other), model.train()(x))[1],
    "evaluated afterwards": lambda model, x, other: (model(x), model.eval()(other), model.train())[0],
}


@pytest.mark.parametrize("how", LOOKS)
def test_rows_are_those_that_a_backward_is_about_whatever_mode_the_model_is_in(tmp_path, how):
    def loss(model, step):
        return LOOKS[how](model, small.data(step), small.data(9)).square().mean()

    small.train(tmp_path / "run", small.seeded(small.Named), loss)
    plain = run(tmp_path / "plain", "by place")
    assert str(compare(plain, tmp_path / "run")) == "no difference in step 1, 2"
    assert [step.all_rows.count for step in Run(tmp_path / "run").steps.values()] == [8, 8]


def test_that_no_fingerprints_were_taken_is_said(tmp_path, capsys):
    small.train(tmp_path / "run", small.seeded(small.Named), lambda model, _: model.layer.weight.square().mean())
    assert capsys.readouterr().err == (
        "zerolab: no fingerprints were taken, for no forward of a module with parameters was seen: call the model "
        "itself where it is trained\n"
    )


def test_the_same_model_beneath_another_outermost_module_is_not_called_another_one(tmp_path):
    def wrapped():
        outer = nn.Sequential()
        outer.m = small.Named()
        return outer

    small.train(tmp_path / "good", small.seeded(small.Named), lambda model, step: model(small.data(step)).sum())
    small.train(tmp_path / "bad", small.seeded(wrapped), lambda model, step: model(small.data(step)).sum())
    for pair, whose in ((("good", "bad"), "BAD"), (("bad", "good"), "GOOD")):
        with pytest.raises(ValueError, match=f"may be runs of one model, but {whose} has 'm.' before the names"):
            compare(*(tmp_path / each for each in pair))


def test_a_batch_by_name_has_the_rows_of_one_by_place(tmp_path):
    assert (
        str(compare(run(tmp_path / "one", "by place"), run(tmp_path / "two", "by name")))
        == "no difference in step 1, 2"
    )


def test_a_mapping_for_an_engine_on_two_ranks_has_the_rows_of_one_ranks_batch(folder):
    assert [rows.count for rows in Run(folder / "16 by name on 2").steps[1].rows] == [8, 8]
    assert str(compare(folder / "16 on 1", folder / "16 by name on 2")) == "no difference in step 1, 2"


def test_of_rows_that_were_not_seen_a_verdict_on_the_loss_says_nothing(tmp_path):
    result = compare(run(tmp_path / "good", "in an object"), run(tmp_path / "bad", "in an object", seed=1))
    assert (result.parting.step, result.parting.phase) == (1, "loss")
    assert result.parting.meaning.startswith("the same weights give another loss: other data, another forward")
    assert result.notes == tuple(
        f"not seen in {whose}, and not compared: rows of the batches" for whose in ("GOOD", "BAD")
    )


def test_a_run_whose_rows_were_not_seen_has_no_other_batch_for_that(tmp_path):
    result = compare(run(tmp_path / "good", "by name"), run(tmp_path / "bad", "in an object"))
    assert result.parting is None
    assert result.notes == ("not seen in BAD, and not compared: rows of the batches",)


def test_a_call_keeps_no_batch_and_the_end_leaves_modules_as_they_were(tmp_path):
    called = nn.Module.__call__
    with Fingerprints(tmp_path) as fingerprints:
        small.Named().eval()(x=small.data(0))
        assert fingerprints._keywords == {}
    assert nn.Module.__call__ is called


def test_more_rows_than_are_listed_are_the_same_on_one_rank_and_on_two(folder):
    assert len(Run(folder / "6000 on 1").steps[1].all_rows.hashes) == MOST_ROWS < 6000
    assert str(compare(folder / "6000 on 1", folder / "6000 on 2")) == "no difference in step 1, 2"


@pytest.mark.parametrize(("good", "said"), [("6000 on 1", "not all are the same"), ("6000 on 2", "5999 are the same")])
def test_one_other_row_is_found_though_it_comes_after_those_that_are_listed(folder, good, said):
    found = compare(folder / good, folder / "6000, one other row").parting
    assert (found.step, found.phase, found.meaning) == (1, "batches", "")
    assert found.measured == f"GOOD's ranks have 6000 rows together, BAD's 6000; {said}"


def test_a_rank_with_the_rows_of_another_is_named_though_not_all_are_listed(folder):
    found = compare(folder / "10000", folder / "10000, same rows").parting
    assert found.measured == "GOOD's ranks have 10000 rows together, BAD's 10000; not all are the same"
    assert found.meaning.startswith("rank 1 has the rows of rank 0")


def test_what_one_model_makes_for_another_is_no_batch(folder):
    assert Run(folder / "two models on 1").steps[1].all_rows.count == 512
    assert str(compare(folder / "two models on 1", folder / "two models on 2")) == "no difference in step 1, 2, 3"


def test_what_is_detached_between_two_models_is_not_taken_for_more_rows(folder):
    found = compare(folder / "two models on 1", folder / "two models, detached").parting
    assert (found.step, found.phase) == (1, "gradients that the optimizer reads")
    assert found.meaning.startswith("it gets no gradient: it was detached")


def test_ranks_under_tensor_parallelism_share_a_batch_which_counts_once(folder):
    alone = folder / "alone"
    assert str(compare(alone, folder / "tensor parallel")) == "no difference in step 1, 2"
    more, own = (compare(alone, folder / f"tensor parallel, {how}").parting for how in ("more rows", "rows of its own"))
    assert more.measured.startswith("GOOD's ranks have 8 rows together, BAD's 16;")
    assert (
        more.meaning
        == own.meaning
        == "the batch of all ranks together has 16 rows and not 8: lr and noise mean something else"
    )


def in_pairs(run, folder, batches):
    """A run of one rank as one of four, of which ranks 0 and 1 share a batch, and 2 and 3."""
    folder.mkdir()
    recorded = json.loads((run / "rank-0.json").read_text())
    for rank, batch in enumerate(batches):
        for step in recorded["steps"]:
            step |= {"rows": {"count": 1, "sum": batch, "hashes": [batch]}, "sharing": [rank ^ 1]}
        (folder / f"rank-{rank}.json").write_text(json.dumps(recorded | {"rank": rank, "world_size": 4}))
    return folder


def test_a_rank_with_the_rows_of_another_is_named_though_ranks_share_batches_in_both_runs(folder, tmp_path):
    good, bad = (in_pairs(folder / "alone", tmp_path / str(last), [1, 1, last, last]) for last in (2, 1))
    assert compare(good, bad).parting.meaning.startswith("rank 2 has the rows of rank 0")


def test_what_a_pipeline_runs_to_learn_shapes_is_no_batch(folder):
    steps = Run(folder / "pipeline").steps.values()
    assert [[rows.count for rows in step.rows] for step in steps] == [[8, 8], [8, 8]]


class Casting(nn.Module):
    """Casts within its forward and gives fp32 back, as models that Accelerate has prepared for bf16 do."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 8))
        self.casts = False

    def forward(self, x):
        with torch.autocast("cpu", torch.bfloat16, enabled=self.casts):
            return self.layers(x).float()


def test_an_autocast_that_begins_within_the_model_is_its_precision(tmp_path):
    for casts in (False, True):
        model = small.seeded(Casting)
        model.casts = casts
        small.train(tmp_path / str(casts), model, lambda model, step: model(small.data(step)).square().mean())
    assert Run(tmp_path / "True").epsilon == 2**-7
    assert compare(tmp_path / "False", tmp_path / "True").parting is None


def test_the_autocast_of_a_forward_that_no_backward_follows_excuses_no_difference(tmp_path):
    def loss(model, step, factor):
        with torch.autocast("cpu", torch.bfloat16):
            model(small.data(step))  # an evaluation whose author forgot no_grad
        return factor * model(small.data(step)).square().mean()

    for name, factor in (("good", 1.0), ("bad", 1.01)):
        small.train(tmp_path / name, small.seeded(Casting), partial(loss, factor=factor))
    found = compare(tmp_path / "good", tmp_path / "bad")
    assert found.parting is not None
    assert found.parting.phase == "loss"


def test_a_gradient_that_ranks_have_yet_to_add_up_is_not_compared_and_a_note_says_so(tmp_path):
    with Cluster(1) as cluster:
        cluster.run(small.in_sequence_parallel, tmp_path / "alone", alone=True)
    with Cluster(2) as cluster:
        cluster.run(small.in_sequence_parallel, tmp_path / "divided")
    found = compare(tmp_path / "alone", tmp_path / "divided")
    assert found.parting is None, str(found)
    assert "gradient of 2.weight (a sum that ranks have yet to add up)" in str(found)
