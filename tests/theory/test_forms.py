"""The closed forms give the published numbers, and the named terms are what flats really add."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from zero_paper import CELLS, off_by

from zerolab import theory
from zerolab.engines.partition import FlatLayout, Slot


def gigabytes(stage: str, num_params: float, world_size: int, precision: str) -> float:
    return sum(theory.state_bytes(stage, num_params, world_size, precision).values()) / 1e9


@pytest.mark.parametrize(("stage", "num_params", "degree", "cell"), CELLS)
def test_every_cell_of_the_papers_table_1_comes_out(stage: str, num_params: float, degree: int, cell: str) -> None:
    assert off_by(sum(theory.state_bytes(stage, num_params, degree, "bf16").values()), cell) < 1


def test_all_54_cells_are_compared() -> None:
    assert len(CELLS) == 54


@pytest.mark.parametrize(
    ("precision", "expected"),
    [("fp32", (112, 63, 38.5, 14)), ("bf16", (112, 38.5, 26.25, 14)), ("fp16", (112, 38.5, 26.25, 14))],
)
def test_seven_billion_parameters_on_eight_ranks(precision: str, expected: tuple[float, ...]) -> None:
    assert tuple(gigabytes(stage, 7e9, 8, precision) for stage in theory.STAGES) == expected


@pytest.mark.parametrize(("stage", "passes"), [("ddp", 2), ("zero1", 2), ("zero2", 2), ("zero3", 3)])
def test_traffic_is_two_or_three_passes_of_all_but_the_own_part(stage: str, passes: int) -> None:
    assert theory.traffic_elements(stage, 1000, 4) == passes * 750
    assert theory.traffic_elements(stage, 1000, 1) == 0
    assert theory.traffic_elements(stage, 10**9, 10**6) == passes * (10**9 - 1000)
    assert theory.traffic_bytes(stage, 1000, 4) == 4 * passes * 750
    assert theory.traffic_bytes(stage, 1000, 4, "bf16") == 2 * passes * 750


def test_llm_c_prints_the_mebibytes_of_gpt2_and_how_zero1_divides_its_moments() -> None:
    """karpathy/llm.c, pull request 309: 124,475,904 parameters, cut to whole MiB; its m and v are fp32."""
    bf16 = theory.state_bytes("zero1", 124_475_904, 1, "bf16")
    assert [bf16[name] // 2**20 for name in ("parameters", "gradients")] == [237, 237]
    moments = {size: theory.state_bytes("zero1", 124_475_904, size)["optimizer_state"] for size in (1, 2, 8)}
    assert moments[1] // 2 // 2**20 == 474
    assert moments[1] == 2 * moments[2] == 8 * moments[8]


def test_each_category_is_rounded_down_to_bytes() -> None:
    assert theory.state_bytes("zero3", 7, 3) == {"parameters": 9, "gradients": 9, "optimizer_state": 18}


def layout(numel: int, frozen: bool = False) -> FlatLayout:
    """A flat of one parameter of `numel` elements on three ranks."""
    return FlatLayout("unit", "unit", torch.float32, frozen, (Slot("weight", torch.Size([numel]), 0),), 3)


@pytest.mark.parametrize(
    ("stage", "padding"),
    [
        # flats of 10 and 9 elements become 12 and 9: 21 against 19, 7 against 19 / 3 on a rank
        ("ddp", (21 - 19) * 16),
        ("zero1", (21 - 19) * 8 + 7 * 8 - 8 * 19 // 3),
        ("zero2", (21 - 19) * 4 + 7 * 4 - 4 * 19 // 3 + 7 * 8 - 8 * 19 // 3),
        ("zero3", 2 * (7 * 4 - 4 * 19 // 3) + 7 * 8 - 8 * 19 // 3),
    ],
)
def test_padding_and_step_counters_are_named(stage: str, padding: int) -> None:
    named = theory.terms(stage, [layout(10), layout(9)], 3)
    assert named == {"padding": padding, "step_counters": 8, "fp32_gradient_shard": 0, "frozen": 0}


@pytest.mark.parametrize("stage", theory.STAGES)
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_formula_plus_terms_is_what_flats_hold(stage: str, precision: str) -> None:
    flats = [layout(10), layout(4, frozen=True), layout(9)]
    formula, named = theory.state_bytes(stage, 23, 3, precision), theory.terms(stage, flats, 3, precision)
    assert sum(formula.values()) + sum(named.values()) == held_by_hand(stage, flats, precision)


def held_by_hand(stage: str, flats: Sequence[FlatLayout], precision: str) -> int:
    """The same bytes counted flat by flat, as an engine would allocate them."""
    total = 0
    for flat in flats:
        whole, shard = flat.padded, flat.shard_numel
        parameters = shard if stage == "zero3" else whole
        gradients = shard if stage in ("zero2", "zero3") else whole
        updated = whole if stage == "ddp" else shard
        size, moments, copy = (4, 8, 0) if precision == "fp32" else (2, 12, 4)
        total += size * parameters
        if not flat.frozen:
            total += size * gradients + (moments + copy) * updated + 4
    return total


def test_moments_in_8_bits_take_a_byte_each_and_a_scale_of_four_bytes_for_each_block_of_256() -> None:
    assert float(theory.MOMENTS["8-bit"]) == 2 + 8 / 256
    for precision, others in (("fp32", 8), ("bf16", 8)):  # parameters, gradients and masters
        held = theory.state_bytes("ddp", 2560, 1, precision, moments="8-bit")
        assert sum(held.values()) == 2560 * others + 2 * (2560 + 4 * 10)
    assert theory.state_bytes("zero1", 7e9, 8, moments="8-bit")["optimizer_state"] == 7_000_000_000 * 65 // 32 // 8
    with pytest.raises(ValueError, match="unknown kind of moments 'int8': choose one of fp32, 8-bit"):
        theory.state_bytes("ddp", 10, 2, moments="int8")


def test_no_fewer_parameters_are_trained_than_none_and_no_more_than_all() -> None:
    assert theory.state_bytes("zero3", 10, 2, trained=0)["gradients"] == 0
    assert theory.state_bytes("zero3", 1e9, 2, trained=1e9) == theory.state_bytes("zero3", 1e9, 2)
    for trained in (-5, 50, 0.5, float("nan")):
        with pytest.raises(ValueError, match=f"{trained} of 10 parameters are trained: .*whole number from 0 to 10"):
            theory.state_bytes("zero3", 10, 2, trained=trained)


@pytest.mark.parametrize("stage", theory.STAGES)
def test_a_last_block_that_is_not_full_has_a_scale_too(stage: str) -> None:
    flats = [layout(1000), layout(40, frozen=True), layout(300)]  # shards of 334 and 100 elements
    formula = theory.state_bytes(stage, 1340, 3, moments="8-bit")
    terms = theory.terms(stage, flats, 3, moments="8-bit")
    updated = [1002, 300] if stage == "ddp" else [334, 100]
    narrower = sum(8 * numel - (2 * numel + 8 * -(-numel // 256)) for numel in updated)
    assert sum(formula.values()) + sum(terms.values()) == held_by_hand(stage, flats, "fp32") - narrower


def test_moments_in_8_bits_do_not_depend_on_a_parameters_dtype() -> None:
    double = FlatLayout("unit", "unit", torch.float64, False, (Slot("weight", torch.Size([512]), 0),), 1)
    for moments, wider in (("fp32", 16), ("8-bit", 8)):
        assert theory.terms("ddp", [double], 1, moments=moments)["other_dtypes"] == wider * 512


def test_counts_may_be_written_as_floats_or_come_from_numpy_and_bytes_are_whole_numbers() -> None:
    """A float holds every whole number only up to 2**53; 16 bytes for each of a trillion on 1,023 ranks are more."""
    whole = theory.state_bytes("zero1", 10**12, 1023), theory.traffic_bytes("zero1", 10**12, 1023)
    for num_params, world_size in ((1e12, 1023.0), (np.int64(10**12), np.int64(1023))):
        found = (
            theory.state_bytes("zero1", num_params, world_size),
            theory.traffic_bytes("zero1", num_params, world_size),
        )
        assert found == whole
        assert {type(size) for size in (*found[0].values(), found[1])} == {int}


def test_frozen_parameters_are_a_negative_term() -> None:
    named = theory.terms("ddp", [layout(9), layout(3, frozen=True)], 3)
    assert named["frozen"] == -(4 + 8) * 3


def test_bf16_adds_the_fp32_copy_of_the_gradients_a_rank_owns() -> None:
    assert theory.terms("zero1", [layout(9)], 3, "bf16")["fp32_gradient_shard"] == 4 * 3
    assert theory.terms("ddp", [layout(9)], 3, "bf16")["fp32_gradient_shard"] == 4 * 9


def test_gradients_in_another_dtype_and_the_largest_moments_of_amsgrad_are_named() -> None:
    flats = [layout(9), layout(10)]
    named = theory.terms("zero2", flats, 3, "bf16", reduce_dtype="float32", amsgrad=[flats[0].name])
    assert (named["reduce_dtype"], named["fp32_gradient_shard"]) == ((4 - 2) * (3 + 4), 0)
    assert named["amsgrad"] == 4 * (3 + 4)  # both have one name
    named = theory.terms("zero2", flats, 3, reduce_dtype="bfloat16")
    assert (named["reduce_dtype"], named["fp32_gradient_shard"]) == ((2 - 4) * (3 + 4), 4 * (3 + 4))
    assert "reduce_dtype" not in theory.terms("zero2", flats, 3)


def test_a_wholly_frozen_model_holds_only_its_parameters() -> None:
    named = theory.terms("ddp", [layout(9, frozen=True)], 3)
    assert sum(theory.state_bytes("ddp", 9, 3).values()) + sum(named.values()) == 36


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("zero4", 10, 2), "unknown stage 'zero4': choose one of ddp, zero1, zero2, zero3"),
        (("ddp", 10, 0), "world size is 0"),
        (("ddp", 10, -2), "world size is -2"),
        (("ddp", 10, 1.5), "world size is 1.5"),
        (("ddp", 0, 2), "number of parameters is 0"),
        (("ddp", 0.5, 2), "number of parameters is 0.5"),
        (("ddp", float("nan"), 2), "number of parameters is nan"),
        (("ddp", float("inf"), 2), "number of parameters is inf"),
        (("ddp", 10, 2, "fp8"), "unknown precision 'fp8': choose one of fp32, bf16"),
    ],
)
def test_bad_arguments_get_a_sentence(arguments: tuple[str, float, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        theory.state_bytes(*arguments)
