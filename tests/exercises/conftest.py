"""Ranks that the tests of answers share."""

import pytest

from zerolab import Cluster


@pytest.fixture(scope="module")
def two_ranks():
    with Cluster(world_size=2, device="cpu", timeout=5) as cluster:
        yield cluster
