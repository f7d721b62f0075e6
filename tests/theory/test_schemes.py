"""Schemes of mixed precision keep 20, 18 or 16 bytes a parameter."""

import pytest

from zerolab import theory
from zerolab.theory.schemes import STAGES, scheme_bytes


@pytest.mark.parametrize(("scheme", "whole"), [("zerolab", 20), ("deepspeed", 20), ("megatron", 18), ("fsdp2", 16)])
def test_on_one_rank_a_scheme_keeps_all_of_its_bytes(scheme, whole):
    for stage in STAGES[scheme]:
        assert sum(scheme_bytes(scheme, stage, 1e9, 1).values()) == whole * 10**9


def test_they_are_divided_as_each_of_them_divides():
    """Megatron's distributed optimizer is 6 + 12/N (its documentation); FSDP2's shards are of everything, 16/N."""
    bytes_a_parameter = {
        (scheme, stage): sum(scheme_bytes(scheme, stage, 8e9, 8).values()) / 8e9
        for scheme, stages in STAGES.items()
        for stage in stages
    }
    assert bytes_a_parameter == {
        ("zerolab", "ddp"): 20,
        ("zerolab", "zero1"): 4 + 16 / 8,
        ("zerolab", "zero2"): 2 + 18 / 8,
        ("zerolab", "zero3"): 20 / 8,
        ("deepspeed", "ddp"): 20,
        ("deepspeed", "zero1"): 4 + 16 / 8,
        ("deepspeed", "zero2"): 2 + 18 / 8,
        ("deepspeed", "zero3"): 20 / 8,
        ("megatron", "ddp"): 18,
        ("megatron", "zero1"): 6 + 12 / 8,
        ("fsdp2", "zero2"): 16 / 8,
        ("fsdp2", "zero3"): 16 / 8,
    }


def test_deepspeed_copies_the_gradients_of_a_thousand_million_parameters_at_a_time_under_zero3():
    for stage, copied in {"ddp": 16e9, "zero1": 4e9, "zero2": 4e9, "zero3": 1e9}.items():
        ours, its = (scheme_bytes(scheme, stage, 16e9, 4) for scheme in ("zerolab", "deepspeed"))
        left = 4 * (16e9 if stage == "ddp" else 4e9) - 4 * copied
        assert ours["gradients"] - its["gradients"] == left
        assert {**its, "gradients": 0} == {**ours, "gradients": 0}


def test_megatron_keeps_gradients_in_fp16_and_copies_them_for_the_update():
    """Its documentation: "float16 param, float16 grads" take 20 bytes, or 4 + 16/d with the distributed optimizer."""
    for stage, expected in {"ddp": 20, "zero1": 4 + 16 / 8}.items():
        assert sum(scheme_bytes("megatron", stage, 8e9, 8, "fp16").values()) / 8e9 == expected
    assert scheme_bytes("megatron", "zero1", 8e9, 8, "fp16")["gradients"] == 8e9 * (2 + 4 / 8)


@pytest.mark.parametrize(("precision", "times"), [("bf16", [2, 1.5]), ("fp16", [1, 1]), ("fp32", [1, 1])])
def test_megatron_sends_gradients_in_fp32_where_it_adds_them_up_so(precision, times):
    """A link of the caller's has no latency, so seconds are in the ratio of bytes; zero1 gathers parameters as is."""
    seconds = [
        [theory.plan("7b", 64, 80e9, 25e9, precision, scheme=scheme)[at]["communication_seconds"] for at in (0, 1)]
        for scheme in ("megatron", "zerolab")
    ]
    assert [one / other for one, other in zip(*seconds, strict=True)] == pytest.approx(times)


def test_thirteen_billion_parameters_take_fsdp2_25_7_gb_on_eight_gpus():
    """MosaicML's 13b; the engines here take 32.1 GB."""
    taken = {scheme: sum(scheme_bytes(scheme, "zero3", 12_853_954_560, 8).values()) for scheme in ("fsdp2", "zerolab")}
    assert {scheme: round(nbytes / 1e9, 1) for scheme, nbytes in taken.items()} == {"fsdp2": 25.7, "zerolab": 32.1}


def test_in_fp32_there_is_one_scheme():
    for stage in ("ddp", "zero1"):
        expected = theory.state_bytes(stage, 7e9, 8)
        assert (
            scheme_bytes("zerolab", stage, 7e9, 8, "fp32")
            == scheme_bytes("megatron", stage, 7e9, 8, "fp32")
            == expected
        )


def test_bad_input_gets_a_sentence():
    with pytest.raises(ValueError, match="unknown scheme 'fsdp': choose one of zerolab, deepspeed, megatron, fsdp2"):
        scheme_bytes("fsdp", "zero3", 1e9, 8)
    with pytest.raises(ValueError, match="megatron has no zero3: it has ddp, zero1"):
        scheme_bytes("megatron", "zero3", 1e9, 8)
    with pytest.raises(ValueError, match="unknown stage 'zero4'"):
        scheme_bytes("zerolab", "zero4", 1e9, 8)
