"""The calibration finds the constants of hardware whose steps it is shown."""

import pytest
import simulation
from simulation import STAGES, Size, _hardware, _predicted, _smallest_distance, fit

# Of few blocks, for speed: how many there are of them changes nothing about the arithmetic.
SMALL = (Size(64, 2, 2, 16), Size(128, 1, 4, 32), Size(192, 1, 1, 64), Size(64, 3, 8, 32))
OTHER = Size(128, 2, 4, 64)


def test_steps_of_known_hardware_are_predicted(monkeypatch):
    monkeypatch.setattr(simulation, "FITTED", SMALL)
    known, world_size = _hardware([1e-11, 2e-10, 5e-6, 1e-4, 1e-9]), 4
    places = [(stage, size) for stage in STAGES for size in SMALL]
    fitted = fit(world_size, {place: _predicted(world_size, *place, known)["seconds"] for place in places})
    expected = _predicted(world_size, "zero3", OTHER, known)["seconds"]
    assert _predicted(world_size, "zero3", OTHER, fitted)["seconds"] == pytest.approx(expected, rel=0.02)


def test_what_is_fitted_is_the_nearest_without_anything_negative():
    import numpy as np

    assert _smallest_distance(np.array([[1.0, 0.0], [0.0, 2.0]])) == pytest.approx([1.0, 0.5])
    first, second = _smallest_distance(np.array([[1.0, 1.0], [1.0, 2.0], [1.0, 3.0]]))
    assert (first, second) == pytest.approx((1.0, 0.0))
    assert _smallest_distance(np.array([[1.0, -1.0], [1.0, 1.0]]))[1] >= 0
