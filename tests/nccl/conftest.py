"""Ranks of the contract, and the helpers of the engines' tests."""

import sys
from pathlib import Path

import pytest
from contract import TIMEOUT, Ranks

from zerolab import Cluster

sys.path.insert(0, str(Path(__file__).parents[1] / "engines"))


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """Two ranks of the contract."""
    with Cluster(2, device="cpu", timeout=3) as cluster:
        yield Ranks(cluster, tmp_path_factory.mktemp("contract"))


@pytest.fixture(scope="module")
def three(tmp_path_factory):
    """Three ranks of the contract, which wait for a short time."""
    with Cluster(3, device="cpu", timeout=TIMEOUT) as cluster:
        yield Ranks(cluster, tmp_path_factory.mktemp("contract"))
