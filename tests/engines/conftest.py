"""Ranks that the engine tests share: one cluster for each world size, opened when first asked for."""

import pytest

from zerolab import Cluster


@pytest.fixture(scope="session")
def clusters():
    """A function from a world size to an open cluster of that many CPU ranks."""
    opened = {}

    def cluster(world_size):
        if world_size not in opened:
            opened[world_size] = Cluster(world_size=world_size, device="cpu")
        return opened[world_size]

    yield cluster
    for each in opened.values():
        each.close()
