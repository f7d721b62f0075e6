"""The recordings of DeepSpeed that the package brings along are what its stages do."""

import json
from importlib.util import find_spec

import pytest

from zerolab.lessons import deepspeed_runs


@pytest.fixture(scope="module")
def as_shipped():
    return deepspeed_runs.load_all()


def test_each_stage_is_there_with_version_and_date(as_shipped, monkeypatch):
    stages = ["deepspeed-0", "deepspeed-1", "deepspeed-2", "deepspeed-3"]
    assert list(as_shipped) == [*stages, "deepspeed-2-to-owners"]
    assert [recording.info.stage for recording in as_shipped.values()] == [*stages, "deepspeed-2"]
    about = json.loads(deepspeed_runs.FOLDER.joinpath("about.json").read_text())
    monkeypatch.setattr(deepspeed_runs, "find_spec", lambda _: None)
    runs = deepspeed_runs.deepspeed_runs()
    assert about["date"] in runs.origin
    assert f"DeepSpeed {about['deepspeed']}, torch {about['torch']}" in runs.origin
    with pytest.raises(ValueError, match="unknown recording 'deepspeed-4': choose one of deepspeed-0"):
        runs["deepspeed-4"]


@pytest.mark.deepspeed
@pytest.mark.slow
def test_recorded_again_each_stage_holds_and_sends_the_same(as_shipped, require):
    require(found=find_spec("deepspeed"), what="DeepSpeed", remedy='pip install -c constraints.txt -e ".[deepspeed]"')
    for stage, now in deepspeed_runs.record_all().items():
        then = as_shipped[stage]
        assert str(now) == str(then)  # with the collectives before the steps
        assert now.traffic().rows == then.traffic().rows, stage
        assert [rank.state for rank in now.ranks] == [rank.state for rank in then.ranks], stage
        assert now.units == then.units


def test_with_the_switch_off_stage_2_sends_two_passes_and_a_flag(as_shipped):
    three, two = (as_shipped[name] for name in ("deepspeed-2", "deepspeed-2-to-owners"))
    one_pass = 3 * three.num_params  # (N-1)/N of 4 bytes a parameter, on four ranks
    assert (three.sent - 3 * one_pass, two.sent - 2 * one_pass) == (6, 6)
    assert {row["op"]: row["count"] for row in two.traffic()}["reduce"] == 8
