"""What DDP does on the same batches, computed in one process: the gradients and weights of a right answer."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from zerolab.engines.partition import FlatLayout
from zerolab.exercises.harness.testbed import LEARNING_RATE, MOMENTUM, STEPS, Array, Setup, end_to_end


@dataclass(frozen=True, slots=True)
class Reference:
    """DDP's run under SGD with momentum. All arrays are the flats end to end, shape [padded].

    `local[step][rank]` is that rank's own gradient, of `rows[step][rank]` rows; `weights[step]` those after that
    update, and `forgetful[step]` what they would be if the optimizer had lost its momentum just before it.
    `outputs[step][rank]` is what the model gives for that rank's batch, of shape [rows, last width].
    """

    layouts: list[FlatLayout]
    initial: Array
    local: list[list[Array]]
    rows: list[list[int]]
    weights: list[Array]
    forgetful: list[Array]
    outputs: list[list[Array]]

    def mean(self, step: int) -> Array:
        """The mean gradient of one step over all rows of all ranks, shape [padded]."""
        mean: Array = np.average(np.stack(self.local[step]), axis=0, weights=self.rows[step]).astype(np.float32)
        return mean


def run_reference(setup: Setup, world_size: int) -> Reference:
    """Trains the setup's model on all ranks' batches, one after the other, and updates with the mean."""
    model = setup.build()
    layouts, parameters = setup.layouts(model, world_size), dict(model.named_parameters())

    def laid_out(tensors: Mapping[str, torch.Tensor]) -> Array:
        return np.concatenate(end_to_end(layouts, tensors))

    def gradient(step: int, rank: int) -> Array:
        outputs, loss = setup.run(model, step, rank)
        reference.outputs[step].append(outputs.detach().numpy())
        gradients = torch.autograd.grad(loss, list(parameters.values()), materialize_grads=True)
        return laid_out(dict(zip(parameters, gradients, strict=True)))

    weights = laid_out(parameters)
    velocity = np.zeros_like(weights)
    reference = Reference(layouts, weights, [], [], [], [], [])
    for step in range(STEPS):
        reference.outputs.append([])
        reference.local.append([gradient(step, rank) for rank in range(world_size)])
        reference.rows.append([setup.rows_of(step, rank) for rank in range(world_size)])
        mean = reference.mean(step)
        # SGD, because Adam divides by the size of the gradient, and a sum in place of a mean would not show. Not
        # torch's, because the first optimizer of a kernel imports for seconds.
        velocity = MOMENTUM * velocity + mean
        # The first step of a fresh optimizer has no momentum yet: that is what "made anew in each step" looks like.
        reference.forgetful.append(weights - LEARNING_RATE * mean)
        weights = weights - LEARNING_RATE * velocity
        reference.weights.append(weights)
        _write(layouts, parameters, weights)
    return reference


@torch.no_grad()
def _write(layouts: list[FlatLayout], parameters: dict[str, nn.Parameter], weights: Array) -> None:
    first = 0
    for layout in layouts:
        for slot in layout.slots:
            values = torch.from_numpy(weights[first + slot.start : first + slot.stop])
            parameters[slot.name].copy_(values.view(slot.shape))
        first += layout.padded
