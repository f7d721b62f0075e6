"""The peaks that the benchmark reports, by the ledger: the same on every run, and no more than the budgets allow."""

import peaks
import pytest

pytestmark = pytest.mark.slow


SMALLER = [name for name in peaks.MODELS if name != "gpt-10m"]  # that one is left to the benchmark, for its time


@pytest.mark.parametrize("name", SMALLER)
def test_zero2_needs_no_more_at_its_highest_than_zero1(name: str) -> None:
    assert peaks._peak("zero2", name) <= peaks._peak("zero1", name)


@pytest.mark.parametrize("name", SMALLER)
def test_zero3_needs_no_more_at_its_highest_than_fsdp2(name: str) -> None:
    assert peaks._peak("zero3", name) <= peaks._peak("fsdp2", name)


def test_a_peak_is_the_same_on_every_run() -> None:
    assert len({peaks._peak("zero3", "mlp-odd") for _ in range(3)}) == 1
