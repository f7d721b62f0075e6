"""A model over fully_shard is gathered only where all ranks have returned it, so that no answer hangs in the check."""

import pytest
import torch
import torch.distributed as dist
from answered import said_on_ranks
from torch import nn
from torch.distributed.fsdp import fully_shard

from zerolab import models
from zerolab.exercises import load


def trained(inputs, targets):
    model = models.build("mlp-odd")
    for layer in model.children():
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for rows, wanted in zip(inputs, targets, strict=True):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(rows), wanted).backward()
        optimizer.step()
    return model


def the_model_on_every_rank(inputs, targets):
    model = trained(inputs, targets)
    dist.barrier()
    return model


def the_model_on_rank_0(inputs, targets):
    model = trained(inputs, targets)
    return model if dist.get_rank() == 0 else None


def the_model_on_rank_0_and_its_weights_on_others(inputs, targets):
    model = trained(inputs, targets)
    weights = torch.cat([weight.full_tensor().flatten() for weight in model.parameters()])
    return model if dist.get_rank() == 0 else weights


def its_parameters(inputs, targets):
    return list(trained(inputs, targets).parameters())


def its_weights(inputs, targets):
    return torch.cat([weight.full_tensor().flatten() for weight in trained(inputs, targets).parameters()])


def its_state(inputs, targets):
    return trained(inputs, targets).state_dict()


@pytest.mark.parametrize(
    ("exercise_id", "answer", "says"),
    [
        ("ward-never-ends", the_model_on_every_rank, "rank 0 got a model where its weights end to end are asked for"),
        ("ward-never-ends", its_state, "'0.bias': <DTensor>"),
        ("ward-loss-stays", the_model_on_rank_0, "`train` returned nothing on rank 1. Is a `return` missing?"),
        (
            "ward-loss-stays",
            the_model_on_rank_0_and_its_weights_on_others,
            "rank 0 got a sharded model, which not all ranks returned; right is 343 numbers",
        ),
        ("ward-loss-stays", its_parameters, "rank 0 got a list where a model belongs; right is 343 numbers"),
        ("ward-loss-stays", its_weights, "rank 0 got a Tensor where a model belongs; right is 343 numbers"),
    ],
)
def test_what_is_returned_in_place_of_what_is_asked_for_is_told(exercise_id, answer, says, two_ranks):
    assert says in said_on_ranks(load(exercise_id), answer, two_ranks)


def test_the_model_itself_passes(two_ranks):
    assert said_on_ranks(load("ward-loss-stays"), the_model_on_every_rank, two_ranks) == ""
