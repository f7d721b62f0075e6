"""A Work of NCCL's keeps the tensors that it has filled, and the counter, which asks it, keeps none of them alive."""

import time
import weakref

import pytest
import torch
import torch.distributed as dist

from zerolab import models
from zerolab.engines import ENGINES
from zerolab.theory import STAGES

pytestmark = pytest.mark.slow


def left(references, within=2.0):
    """How many stay alive: gloo, which does the contract's work, lets go in a thread of its own, after the wait."""
    deadline = time.monotonic() + within
    while any(each() is not None for each in references) and time.monotonic() < deadline:
        time.sleep(0.001)
    return sum(each() is not None for each in references)


@pytest.mark.parametrize("stage", STAGES)
def test_no_gradient_outlives_its_step(ranks, stage):
    def left_over():
        from contract import device  # a rank's own

        engine = ENGINES[stage](models.build("mlp-odd"), torch.optim.AdamW, lr=1e-3)
        ((inputs, targets),) = models.batches("mlp-odd", dist.get_world_size(), dist.get_rank(), 1)
        engine.backward(models.loss(engine.model(inputs), targets))
        held = [holding.tensor for holding in engine.holdings() if holding.category == "gradients"]
        gradients = [weakref.ref(tensor.untyped_storage()) for tensor in held]
        del held
        engine.step()
        device.synchronize()
        return len(gradients), left(gradients)

    assert all(made > 0 and alive == 0 for made, alive in ranks.run(left_over))


def test_a_tensor_of_ones_own_is_free_once_its_work_was_waited_for(ranks):
    def reduced():
        tensor = torch.ones(1000)
        dist.all_reduce(tensor, async_op=True).wait()
        alive = weakref.ref(tensor.untyped_storage())
        assert tensor.sum().item() == 1000 * dist.get_world_size()
        del tensor
        return left([alive])

    assert ranks.run(reduced) == [0, 0]
