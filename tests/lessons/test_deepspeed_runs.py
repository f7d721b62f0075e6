"""The recordings of DeepSpeed that the package brings along are what its stages do."""

import json
from importlib.util import find_spec

import pytest

from zerolab.lessons import deepspeed_runs


@pytest.fixture(scope="module")
def as_shipped():
    return deepspeed_runs.load_all()


def test_each_stage_is_there_with_version_and_date(as_shipped, monkeypatch):
    assert list(as_shipped) == ["deepspeed-0", "deepspeed-1", "deepspeed-2", "deepspeed-3"]
    assert {recording.info.stage for recording in as_shipped.values()} == set(as_shipped)
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
        assert now.traffic().rows == then.traffic().rows, stage
        assert [rank.state for rank in now.ranks] == [rank.state for rank in then.ranks], stage
        assert now.units == then.units
