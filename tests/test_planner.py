"""The planner says which stages fit, and no with the number that is missing."""

import pytest

from zerolab import theory
from zerolab.planner import settings


def test_seven_billion_parameters_fit_eight_gpus_only_when_sharded():
    rows = {row["stage"]: row for row in theory.plan("7b", 8, 80e9)}
    assert not rows["ddp"]["fits"]
    assert rows["ddp"]["missing GB"] == pytest.approx(rows["ddp"]["needs GB"] - 80)
    assert rows["zero3"]["fits"]
    assert rows["zero3"]["missing GB"] is None
    assert [round(row["state GB"], 2) for row in rows.values()] == [112, 38.5, 26.25, 14]


def test_stage_3_sends_half_as_much_again():
    seconds = [row["communication_seconds"] for row in theory.plan("7b", 8)]
    assert seconds[3] == pytest.approx(1.5 * seconds[0])


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"gpus": 0}, "world size is 0"),
        ({"gpus": 8, "bandwidth": 0}, "bandwidth is 0"),
        ({"gpus": 8, "memory": -1}, "memory is -1"),
        ({"gpus": 8, "batch": 0}, "batch is 0"),
        ({"gpus": 8, "precision": "fp8"}, "fp8"),
        ({"gpus": 8, "gpu": "h10"}, "nearest: h100"),
    ],
)
def test_bad_input_gets_a_sentence(arguments, says):
    with pytest.raises(ValueError, match=says):
        theory.plan("7b", **arguments)


def test_the_same_stage_in_other_systems():
    assert settings("zero3")["fsdp2"]["reshard_after_forward"] is True
    assert settings("zero1")["fsdp2"] is None
    assert settings("zero2", "fp32") == {
        "fsdp2": {"reshard_after_forward": False},
        "deepspeed": {"zero_optimization": {"stage": 2}},
    }
