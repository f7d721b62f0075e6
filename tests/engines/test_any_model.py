"""Any model trains: on every stage it ends where one process ends that takes the whole batch; real ranks."""

import pytest
import torch
from zoo import BY_RANK, MODELS, STAGES, distance, train_alone, train_on_ranks

from zerolab import RankError


def far_from(reference, ends, bound):
    """The stages that end further than `bound` from the reference, and how far."""
    return {stage: far for stage, state in ends.items() if not (far := distance(state, reference)) <= bound}


@pytest.mark.parametrize("name", MODELS)
def test_sgd_reaches_the_weights_of_one_process_on_the_whole_batch(clusters, name):
    (reference,) = train_alone(name, torch.optim.SGD, 3, parts=1, lr=0.1)
    for ends in clusters(2).run(train_on_ranks, name, torch.optim.SGD, 3, lr=0.1):
        assert far_from(reference, ends, 1e-6) == {}


@pytest.mark.parametrize("name", BY_RANK)
@pytest.mark.parametrize("world_size", [2, 3])
def test_sgd_reaches_the_weights_and_buffers_of_a_process_that_takes_each_ranks_rows_alone(clusters, name, world_size):
    references = train_alone(name, torch.optim.SGD, 4, parts=world_size, lr=0.1)
    stages = STAGES[:3] if name.startswith("whole units unused") else STAGES
    everyone = clusters(world_size).run(train_on_ranks, name, torch.optim.SGD, 4, stages, lr=0.1)
    for reference, ends in zip(references, everyone, strict=True):
        assert far_from(reference, ends, 1e-6) == {}


@pytest.mark.parametrize(
    "name",
    [
        "tied weights within a unit and across units",
        "low-rank additions to frozen weights",
        "keyword inputs of blocks with frozen weights",
        "scalar and empty parameters",
    ],
)
def test_adamw_with_weight_decay_reaches_them_within_1e_5(clusters, name):
    options = {"lr": 0.01, "weight_decay": 0.3}
    (reference,) = train_alone(name, torch.optim.AdamW, 3, parts=1, **options)
    for ends in clusters(3).run(train_on_ranks, name, torch.optim.AdamW, 3, **options):
        assert far_from(reference, ends, 1e-5) == {}


def test_zero3_refuses_ranks_that_run_different_units(clusters):
    with pytest.raises(RankError, match="the units that a forward uses next differ between ranks"):
        clusters(2).run(
            train_on_ranks, "whole units unused, another one on each rank", torch.optim.SGD, 2, ["zero3"], lr=0.1
        )
