"""The peaks that the benchmark reports, by the ledger: the same on every run, and no more than the budgets allow."""

from functools import cache

import peaks
import pytest

pytestmark = pytest.mark.slow
peak_of = cache(peaks._peak)  # each is asked for once, on fresh ranks


SMALLER = [name for name in peaks.MODELS if name != "gpt-10m"]  # that one is left to the benchmark, for its time


@pytest.mark.parametrize("name", SMALLER)
def test_zero2_needs_no_more_at_its_highest_than_zero1(name: str) -> None:
    assert peak_of("zero2", name) <= peak_of("zero1", name)


@pytest.mark.parametrize("name", SMALLER)
def test_zero3_needs_no_more_at_its_highest_than_fsdp2(name: str) -> None:
    assert peak_of("zero3", name) <= peak_of("fsdp2", name)


def test_a_peak_is_the_same_on_every_run() -> None:
    again = {peaks._peak("zero3", "mlp-odd") for _ in range(2)}
    assert again == {peak_of("zero3", "mlp-odd")}
