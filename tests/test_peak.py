"""The measured peak is the predicted one, to the byte, in fp32 on the benchmark MLP; and explain says term by term."""

import pytest
import torch

from zerolab import Cluster, models, theory
from zerolab.engines import ENGINES
from zerolab.engines.partition import partition
from zerolab.series import measure


def batch():
    return torch.ones(8, 512), torch.ones(8, 512)


def train(stage, steps=2):
    inputs, targets = batch()
    engine = ENGINES[stage](models.build("mlp-bench"), torch.optim.AdamW, lr=1e-3)
    for _ in range(steps):
        engine.training_step(inputs, targets, models.loss)


@pytest.fixture(scope="module")
def model():
    return models.build("mlp-bench")


@pytest.fixture(scope="module")
def series(model):
    return measure(model, *batch(), models.loss)


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_the_measured_peak_is_the_predicted_one_to_the_byte(model, series, world_size):
    flats = partition(model, world_size)
    with Cluster(world_size=world_size, device="cpu") as cluster:
        for stage in theory.STAGES:
            recording = cluster.record(train, stage)
            predicted = theory.peak(stage, flats, world_size, series, batch_bytes=2 * 8 * 512 * 4)
            for rank in range(world_size):
                table = recording.explain(rank, peak=predicted)
                assert [row["difference"] for row in table if "difference" in row] == [0, 0], f"{stage}\n{table}"


def test_the_series_leaves_the_model_as_it_was(model, series):
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not any(module._forward_hooks for module in model.modules())
    kinds = [mark.kind for mark in series]
    assert kinds.count("use") == kinds.count("done") == kinds.count("back") == 6
    assert (kinds.count("grad"), kinds.count("gave"), kinds[-1]) == (24, 5, "end")


def test_a_prediction_has_no_negative_term(model, series):
    for stage in theory.STAGES:
        assert min(theory.peak(stage, partition(model, 3), 3, series).values()) >= 0
