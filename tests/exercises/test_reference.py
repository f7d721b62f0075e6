"""What a training answer is compared with is what torch's own SGD gives on the mean of all ranks' gradients."""

import numpy as np
import pytest
import torch

from zerolab.exercises.harness.reference import run_reference
from zerolab.exercises.harness.testbed import OPTIMIZERS, STEPS, draw, end_to_end


@pytest.mark.parametrize("batches", ["even", "uneven", "skipping"])
def test_the_reference_trains_as_torchs_sgd_does_and_knows_the_weights_without_its_momentum(batches):
    setup, world_size = draw(3, 2, units=True, batches=batches), 2
    reference = run_reference(setup, world_size)
    model = setup.build()
    layouts = setup.layouts(model, world_size)

    def weights():
        return np.concatenate(end_to_end(layouts, dict(model.named_parameters())))

    kind, keywords = OPTIMIZERS["sgd"]
    optimizer = kind(model.parameters(), **keywords)
    for step in range(STEPS):
        rows = [setup.rows_of(step, rank) for rank in range(world_size)]
        loss = sum(setup.run(model, step, rank)[1] * rows[rank] for rank in range(world_size)) / sum(rows)
        optimizer.zero_grad()
        loss.backward()
        for parameter in model.parameters():  # a unit that no rank's batch passed through has a gradient of zeros
            parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        fresh = kind(model.parameters(), **keywords)
        before = weights()
        fresh.step()
        assert np.allclose(weights(), reference.forgetful[step], atol=1e-6)
        _write(model, layouts, before)
        optimizer.step()
        assert np.allclose(weights(), reference.weights[step], atol=1e-6)


def _write(model, layouts, values):
    first = 0
    with torch.no_grad():
        for layout in layouts:
            for slot in layout.slots:
                part = torch.from_numpy(values[first + slot.start : first + slot.stop])
                model.get_parameter(slot.name).copy_(part.view(slot.shape))
            first += layout.padded
