"""The calibration finds the constants of hardware whose steps it is shown."""

import pytest
from simulation import FITTED, STAGES, TARGET, _hardware, _predicted, _smallest_distance, fit


def test_steps_of_known_hardware_are_predicted():
    known, world_size = _hardware([1e-11, 2e-10, 5e-6, 1e-4, 1e-9]), 4
    places = [(stage, size) for stage in STAGES for size in FITTED]
    fitted = fit(world_size, {place: _predicted(world_size, *place, known)["seconds"] for place in places})
    expected = _predicted(world_size, "zero3", TARGET, known)["seconds"]
    assert _predicted(world_size, "zero3", TARGET, fitted)["seconds"] == pytest.approx(expected, rel=0.02)


def test_what_is_fitted_is_the_nearest_without_anything_negative():
    import numpy as np

    assert _smallest_distance(np.array([[1.0, 0.0], [0.0, 2.0]])) == pytest.approx([1.0, 0.5])
    first, second = _smallest_distance(np.array([[1.0, 1.0], [1.0, 2.0], [1.0, 3.0]]))
    assert (first, second) == pytest.approx((1.0, 0.0))
    assert _smallest_distance(np.array([[1.0, -1.0], [1.0, 1.0]]))[1] >= 0
