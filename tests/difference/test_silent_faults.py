"""Silent faults on real ranks: each is found where it happens, and named."""

import math

import pytest
import silent
import torch
from small import data, seeded
from torch import nn

from zerolab import Cluster
from zerolab.difference import rules
from zerolab.difference.compare import compare
from zerolab.difference.prints import print_of
from zerolab.difference.runs import Step, close, within
from zerolab.difference.watch import Fingerprints


@pytest.fixture(scope="module", name="recorded")
def record_all(tmp_path_factory):
    """All runs, in one group of ranks."""
    folder = tmp_path_factory.mktemp("silent")
    with Cluster(2) as cluster:
        for name, how in silent.GOOD.items():
            cluster.run(silent.loop, folder / f"good {name}", **how)
            cluster.run(silent.loop, folder / f"again {name}", **how)
        for fault, name, *_ in silent.FAULTS:
            cluster.run(silent.loop, folder / fault, **{**silent.GOOD[name], "fault": fault})
    return folder


@pytest.mark.parametrize("name", silent.GOOD)
def test_a_right_run_and_the_same_again_do_not_part(recorded, name):
    assert compare(recorded / f"good {name}", recorded / f"again {name}").parting is None


@pytest.mark.parametrize("case", silent.FAULTS, ids=lambda case: case[0])
def test_a_silent_fault_is_found_where_it_happens_and_named(recorded, case):
    fault, right, step, phase, meaning = case
    result = compare(recorded / f"good {right}", recorded / fault)
    assert result.parting is not None
    assert (result.parting.step, result.parting.phase.startswith(phase)) == (step, True), str(result)
    assert meaning in result.parting.meaning, str(result)


def test_of_runs_that_are_apart_before_their_first_recorded_step_nobody_says_that_they_began_so(tmp_path):
    for name, scale in (("good", 1.0), ("bad", 3.0)):
        model = seeded(lambda: nn.Linear(8, 4))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with Fingerprints(tmp_path / name, (2, 2)):
            for step in (1, 2):
                (scale * model(data(step)).square().mean()).backward()
                optimizer.step()
                optimizer.zero_grad()
    found = compare(tmp_path / "good", tmp_path / "bad").parting
    assert (found.step, found.phase, found.meaning) == (2, "parameters before it", rules.EARLIER)


def test_a_run_that_has_diverged_is_told_from_a_right_one_and_not_from_itself(recorded):
    right, diverged, again = (recorded / name for name in ("good plain", "good diverged", "again diverged"))
    for pair, whose in (((right, diverged), "BAD"), ((diverged, right), "GOOD")):
        found = compare(*pair).parting
        assert (found.step, found.phase, found.tensors) == (1, "update", ("up.bias",))
        assert found.measured.endswith(f"inf or NaN in {whose} alone")
    assert compare(diverged, again).notes == ("both have inf or NaN in step 1: no distance can be told from them",)


@pytest.mark.parametrize(("one", "two"), [(math.inf, 2.5), (2.5, math.inf), (math.nan, 2.5)])
def test_a_number_that_is_not_finite_is_close_to_no_finite_one(one, two):
    assert not within(abs(one - two), 1e-6 * max(one, two), one, two)


@pytest.mark.parametrize(("one", "two"), [(math.inf, math.nan), (math.nan, math.inf), (math.inf, -math.inf)])
def test_inf_and_nan_are_two_losses_and_each_is_as_it_is_itself(one, two):
    assert not within(abs(one - two), math.inf, one, two)
    assert within(abs(one - one), 0.0, one, one)


def test_a_gradient_that_is_inf_in_both_runs_hides_nothing_of_the_others(tmp_path):
    for name, factor in (("good", 1.0), ("bad", -1.0)):
        model = seeded(lambda: nn.Sequential(nn.Linear(8, 4), nn.Linear(4, 2)))
        optimizer = torch.optim.Adam(model.parameters())
        with Fingerprints(tmp_path / name, (1, 1)):
            model(data(1)).square().mean().backward()
            model[0].bias.grad[0] = math.inf
            model[1].weight.grad *= factor
            optimizer.step()
    found = compare(tmp_path / "good", tmp_path / "bad").parting
    assert (found.phase, found.tensors) == ("gradients that the optimizer reads", ("1.weight",))
    assert found.meaning.startswith("it is GOOD's times -1 in 1 of 4 tensors")


def test_a_mask_of_inf_is_the_same_at_a_beginning_only_to_the_bit():
    one, two = (print_of("mask", torch.tensor([-math.inf, number])) for number in (1.0, 5.0))
    assert close(one, one, 0.0, infinite=False)
    assert not close(one, two, 1.0, infinite=False)
    assert close(one, two, 0.0)  # later on, nobody can tell


@pytest.mark.parametrize(
    ("one", "two", "said"),
    [
        (6.4923354, 25.969342, "6.4923 in GOOD, 25.969 in BAD"),
        (6.4923356, 25.969342, "6.4923 in GOOD, 25.969 in BAD"),
        (6.4923354, 6.4923254, "6.4923354 in GOOD, 6.4923254 in BAD"),
        (2.5, math.nan, "2.5 in GOOD, nan in BAD"),
        (0.0, 1e-9, "0 in GOOD, 1e-09 in BAD"),
    ],
)
def test_two_losses_have_the_digits_that_tell_them_apart_and_no_more(one, two, said):
    assert rules.beside(one, two) == said


def kept(**tensors):
    """A rank's tensors as its file has them."""
    return {name: [[0, *print_of(name, tensor).as_list()]] for name, tensor in tensors.items()}


OLD, NEW, ZERO = torch.ones(4), torch.full((4,), 2.0), torch.zeros(4)
BOTH_MOVED = kept(weight=NEW, bias=NEW)


@pytest.mark.parametrize(
    ("before", "ends", "said"),
    [
        (kept(weight=OLD, bias=ZERO), (BOTH_MOVED, kept(weight=OLD, bias=NEW)), "the ranks updated otherwise"),
        (kept(weight=OLD, bias=ZERO), (BOTH_MOVED, kept(weight=OLD)), "the ranks updated otherwise"),
        (kept(weight=ZERO, bias=ZERO), (BOTH_MOVED, kept(weight=ZERO, bias=ZERO)), "nothing moved on rank 1:"),
    ],
    ids=["its bias left zero", "its bias is gone", "all is still zero"],
)
def test_a_rank_stood_still_only_if_all_that_it_had_is_there_as_it_was(before, ends, said):
    assert rules.copies(Step(1, [{"before": before, "end": end} for end in ends])).startswith(said)


def step_with(gradient):
    own = {"local": {}, "last": {}, "losses": [1.0], "settings": {}, "scale": 1.0}
    return Step(1, [{"read": kept(weight=gradient), **own}])


@pytest.mark.parametrize("slack", [0.6, 0.9])
@pytest.mark.parametrize(("times", "said"), [(1, "it is GOOD's plus that of the step before"), (2, "")])
def test_in_coarse_precision_the_gradient_of_the_step_before_is_told_from_twice_it(times, said, slack):
    old, new = torch.randn(2, 4096, generator=torch.Generator().manual_seed(0))
    good, bad, before = map(step_with, (new, new + times * old, old))
    assert rules.gradient(good, bad, before, ["weight"], slack).partition(":")[0] == said


def test_in_precision_in_which_nobody_can_tell_no_gradient_is_called_left_over():
    good, bad, before = map(step_with, torch.randn(3, 4096, generator=torch.Generator().manual_seed(0)))
    assert rules.gradient(good, bad, before, ["weight"], 1.25) == ""
