"""What DDP does on the same ground, computed in one process: the gradients and weights of a right answer."""

from dataclasses import dataclass

import numpy as np

from zerolab.exercises.harness.ground import LEARNING_RATE, MOMENTUM, STEPS, Array, Ground, Plan


@dataclass(frozen=True, slots=True)
class Reference:
    """DDP's run under SGD with momentum.

    `local[step][rank]` is that rank's own gradient; `weights[step]` those after that update, and `forgetful[step]` what
    they would be if the optimizer had lost its momentum just before it.
    """

    initial: Array
    local: list[list[Array]]
    weights: list[Array]
    forgetful: list[Array]

    def mean(self, step: int) -> Array:
        """The mean gradient of one step over all ranks, shape [padded]."""
        mean: Array = np.stack(self.local[step]).mean(axis=0)
        return mean


def run_reference(plan: Plan, world_size: int) -> Reference:
    """Trains the plan's model on all ranks' batches, one after the other, and updates with the mean."""
    ground = Ground(plan, world_size, rank=0)
    reference = Reference(ground.parameters.numpy().copy(), [], [], [])
    velocity: Array = np.zeros_like(reference.initial)
    for step in range(STEPS):
        reference.local.append([_gradient(ground, step, rank) for rank in range(world_size)])
        velocity = MOMENTUM * velocity + reference.mean(step)
        reference.forgetful.append(ground.parameters.numpy() - LEARNING_RATE * reference.mean(step))
        ground.parameters.numpy()[:] -= LEARNING_RATE * velocity
        reference.weights.append(ground.parameters.numpy().copy())
    return reference


def _gradient(ground: Ground, step: int, rank: int) -> Array:
    ground.compute_gradient(step, rank)
    return ground.gradient.numpy().copy()
