"""Ranks that the engine tests share: one cluster for each world size, opened when first asked for."""

from contextlib import ExitStack
from functools import cache

import pytest

from zerolab import Cluster


@pytest.fixture(scope="session")
def clusters():
    """A function from a world size to an open cluster of that many CPU ranks."""
    with ExitStack() as opened:
        yield cache(lambda world_size: opened.enter_context(Cluster(world_size=world_size, device="cpu")))
