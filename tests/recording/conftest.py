"""Ranks that the recording tests share, and what they do on them."""

import gc

import pytest
import torch

from zerolab import Cluster, models
from zerolab.engines import ENGINES
from zerolab.recording.recorder import Recorder


@pytest.fixture(scope="session")
def cluster():
    """Two CPU ranks."""
    with Cluster(world_size=2, device="cpu") as opened:
        yield opened


@pytest.fixture(scope="session")
def train():
    """A function for the ranks: trains a named model under a stage."""

    def train(stage, name="mlp-odd", steps=3, before_step=lambda _: None):
        import torch.distributed as dist

        engine = ENGINES[stage](models.build(name), torch.optim.AdamW, lr=1e-3)
        for step, (inputs, targets) in enumerate(models.batches(name, dist.get_world_size(), dist.get_rank(), steps)):
            before_step(step)
            engine.training_step(inputs, targets, models.loss)

    return train


@pytest.fixture(scope="session")
def recordings(cluster, train):
    """The recording of three steps of the odd MLP under each stage."""
    return {stage: cluster.record(train, stage) for stage in ("ddp", "zero1", "zero2", "zero3")}


@pytest.fixture
def record():
    """A function that records another in this process, without ranks.

    Each recording looks at all objects: let it be at those of its own test, not at all that pytest and torch have.
    """

    def record(function, *args):
        with Recorder() as recorder:
            function(*args)
        return recorder.finish()

    gc.collect()  # an engine of the test before would be frozen, too, and what is there counts
    gc.freeze()
    return record


@pytest.fixture(scope="module", autouse=True)
def thaw(freeze):
    """What was frozen, and dies in a ring of references, does not count in recordings of the next file."""
    yield
    gc.unfreeze()
