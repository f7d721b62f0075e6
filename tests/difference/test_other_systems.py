"""FSDP2 on two levels and DeepSpeed's own engine: right runs do not part, and what is wrong in one is named."""

import importlib.util

import others
import pytest

from zerolab import Cluster
from zerolab.difference.compare import compare


@pytest.fixture(scope="module", name="hsdp")
def record_hsdp(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hsdp")
    with Cluster(4) as cluster:
        for fault in ("", "replicas alone", "norm of the whole", "norm of a shard"):
            cluster.run(others.two_levels, folder / (fault or "right"), fault)
    return folder


def test_replicas_that_nobody_averages_are_named(hsdp):
    found = compare(hsdp / "right", hsdp / "replicas alone").parting
    assert found.phase == "gradients that the optimizer reads"
    assert "the all-reduce over the replicas is missing" in found.meaning


def test_the_norm_of_a_shard_taken_for_that_of_the_whole_is_named(hsdp):
    found = compare(hsdp / "norm of the whole", hsdp / "norm of a shard").parting
    assert "norm" in found.meaning, str(found)


@pytest.mark.deepspeed
def test_deepspeeds_own_engine_is_compared_with_a_loop_of_ones_own(tmp_path, require):
    require(importlib.util.find_spec("deepspeed"), "DeepSpeed", 'pip install -c constraints.txt -e ".[deepspeed]"')
    with Cluster(2) as cluster:
        cluster.run(others.alone, tmp_path / "alone")
        for stage in (1, 2, 3):
            cluster.run(others.with_deepspeed, tmp_path / f"stage {stage}", stage)
        for fault in ("divided twice", "clipped by itself"):
            cluster.run(others.with_deepspeed, tmp_path / fault, 2, fault)
    for stage in (1, 2, 3):
        assert compare(tmp_path / "alone", tmp_path / f"stage {stage}").parting is None
    meanings = [
        compare(tmp_path / "alone", tmp_path / fault).parting.meaning
        for fault in ("divided twice", "clipped by itself")
    ]
    assert meanings[0] == "it is divided once more by 2, the number of micro-batches"
    assert "its norm is 1, and GOOD's 1.818: clipped in BAD" in meanings[1]
