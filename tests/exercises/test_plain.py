"""A miss is told so that its two sides differ: by kind, shape or place, where the values alone read the same."""

import math
from decimal import Decimal

import numpy as np
import pytest
import torch
from torch import nn

from zerolab.exercises.harness.plain import describe, displaced, first_difference, in_common, likeness, plain, same

MORE = "24 more than the right one"


@pytest.mark.parametrize("value", [torch.tensor([24.0]), torch.tensor(24.0), np.array([[24]]), 24])
def test_a_tensor_of_one_element_is_its_number_and_the_other_way_round(value):
    assert same(plain(value), plain(24.0), 1e-9)
    assert same(plain(24), plain(torch.tensor([24.0])), 1e-9)
    assert not same(plain(value), 25, 1e-9)
    assert not same(plain(torch.tensor([1.0, 1.0])), 1.0, 1e-9)
    assert not same(plain(torch.tensor([True])), 1, 1e-9)


@pytest.mark.parametrize(
    "value", [(2, 1), range(2, 0, -1), np.array([2, 1]), torch.tensor([2.0, 1.0]), [Decimal(2), 1]]
)
def test_where_a_list_of_numbers_belongs_its_kind_is_free(value):
    assert same(plain(value), [2, 1], 1e-9)
    assert not same(plain(value), [2, 2], 1e-9)


def test_a_stack_of_tensors_is_a_list_of_them():
    assert same(plain(torch.eye(2)), plain([torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0])]), 1e-9)
    assert same(plain(torch.eye(2)), [[1, 0], [0, 1]], 1e-9)
    assert not same([[1, 0], [0, 1]], plain(torch.eye(2)), 1e-9)


def test_nan_is_nan_so_that_a_mistake_which_gives_it_can_be_named():
    assert same(float("nan"), plain(torch.tensor(float("nan"))), 1e-9)
    assert not same(float("nan"), 1.0, 1e-9)
    assert not same(1.0, float("nan"), 1e-9)


def test_tensors_of_one_element_still_differ_in_shape():
    assert not same(plain(torch.zeros(1)), plain(torch.zeros(1, 1)), 1e-9)


@pytest.mark.parametrize(
    ("given", "right", "said"),
    [
        ([24.0], torch.tensor([24.0]), "it is a list where a tensor belongs"),
        ([], torch.zeros(0), "it is a list where a tensor belongs"),
        ("24", 24, "it is text where a number belongs"),
        (True, 1, "it is a bool where a number belongs"),
        (torch.zeros(2), None, "it is a tensor where None belongs"),
        (torch.zeros(2, 3), torch.zeros(6), "its shape is [2, 3] where [6] belongs"),
        (torch.zeros(0, 4), torch.zeros(0), "its shape is [0, 4] where [0] belongs"),
        (torch.zeros(9), torch.eye(3).flatten(), "at place 0 stands 0, and 1 belongs there"),
        (torch.zeros(3, 3), torch.eye(3), "at place [0, 0] stands 0, and 1 belongs there"),
        (torch.ones(2), torch.tensor([1.0, 1.00001]).double(), "at place 1 stands 1, and 1.00001 belongs there"),
        ([1.0, 2.0], [1.0, 2.00000001], "at place 1 stands 2.0, and 2.00000001 belongs there"),
        ([torch.zeros(9)], [torch.eye(3)], "at place 0, its shape is [9] where [3, 3] belongs"),
        ([[torch.zeros(9)]], [[torch.zeros(3, 3)]], "at place 0, at place 0, its shape is [9] where [3, 3] belongs"),
        (torch.zeros(2), torch.ones(2), ""),  # `describe` shows both
        (3, 4, ""),
        (1.5, 4, "it is a fraction where a whole number belongs"),
        (float("inf"), 4, ""),
        (1.5, 4.0, ""),
        (torch.tensor(0.1), 0.1, "it is 0.10000000149011612, not 0.1"),
        (None, 4, ""),
        (nn.Linear(2, 2), 4, ""),
    ],
)
def test_what_two_values_differ_in_is_told(given, right, said):
    assert first_difference(plain(given), plain(right), 1e-9) == said


@pytest.mark.parametrize(
    ("given", "right", "said"),
    [
        ([8 * number for number in range(9)], list(range(9)), "Each number is 8 times the right one."),
        ([number / 1e9 for number in range(9)], list(range(9)), "Each number is 1e-09 times the right one."),
        (
            [number // 4 for number in range(4000, 4009)],
            list(range(4000, 4009)),
            "Each number is 0.25 times the right one.",
        ),
        (torch.arange(9.0).view(3, 3) * -2, torch.arange(9.0).view(3, 3), "Each number is -2 times the right one."),
        (torch.arange(9.0).flip(0), torch.arange(9.0), "These are the right numbers, in another order."),
        (torch.arange(9.0) + 1, torch.arange(9.0), ""),
        (torch.arange(9.0) * 1.0001, torch.arange(9.0), ""),  # a rounding, and no factor
        (torch.zeros(9), torch.arange(9.0), ""),
        (torch.full((9,), torch.nan), torch.arange(9.0), ""),
        ([2, 4], [1, 2], ""),  # of two numbers, any are a multiple
        (["zero1"] * 9, ["ddp"] * 9, ""),
        ([2] * 8, [1] * 9, ""),
        (None, list(range(9)), ""),
    ],
)
def test_what_relates_wrong_numbers_to_the_right_ones_is_told(given, right, said):
    assert likeness(plain(given), plain(right), 1e-9) == said


@pytest.mark.parametrize(
    ("given", "right", "said"),
    [
        (
            torch.tensor([*range(4), *range(5, 12), 0]),
            torch.arange(12),
            "At places 4 to 10 stand the numbers that belong 1 place further on.",
        ),
        (
            torch.cat([torch.arange(9), torch.arange(2, 9)]),
            torch.arange(16),
            "At places 9 to 15 stand the numbers that belong 7 places further to the front.",
        ),
        (
            torch.arange(32).view(8, 4).roll(-2, 0),
            torch.arange(32).view(8, 4),
            "At places 0 to 5 stand the rows that belong 2 places further on.",
        ),
        (torch.tensor([1, 2, 3]), torch.arange(3), ""),  # three numbers may be anywhere
        (torch.ones(9), torch.arange(9) % 2, ""),  # as may one that there is several times
        (torch.arange(9), torch.arange(9), ""),
        (torch.arange(8), torch.arange(9), ""),
        (torch.arange(0), torch.arange(9), ""),
        (torch.arange(9).view(3, 3), torch.arange(9), ""),
        (None, torch.arange(9), ""),
    ],
)
def test_where_numbers_belong_that_stand_elsewhere_is_told(given, right, said):
    assert displaced(plain(given), plain(right), 1e-9) == said


@pytest.mark.parametrize(
    ("given", "right", "said"),
    [
        ([8 * number for number in range(1, 9)], list(range(1, 9)), "8 times the right one"),
        ([number + 24 for number in range(8)], list(range(8)), MORE),
        ([number / 10 - 0.5 for number in range(8)], [n / 10 for n in range(8)], "0.5 less than the right one"),
        ([10**12 + number + 2 for number in range(8)], [10**12 + 2 * n for n in range(8)], ""),  # by another each time
        ([number + 2_000_000 + number % 2 for number in range(8)], list(range(8)), ""),
        ([n + 2_000_000 + n % 2 / 10 for n in range(8)], list(range(8)), ""),
        ([10**40 + 24 + number for number in range(8)], [10**40 + number for number in range(8)], MORE),
        ([10**99] * 8, list(range(8)), ""),  # of a constant, nothing is added to what is right
        ([1e99] * 8, list(range(8)), ""),
        ([20_000] * 8, list(range(10_000, 10_008)), ""),  # nor is it multiplied
        ([1, 2, 3, 4, 5, 6, 7, 0], list(range(8)), ""),  # of several inputs, nobody puts the values in another order
        ([2, 3, 2, 3, 2, 3], [1, 2, 1, 2, 1, 2], ""),  # of two values, any are one more
        ([3, 4], [1, 2], ""),
        ([[2, 1], ["b", "a"]], [[1, 2], ["a", "b"]], "the right items, in another order"),
        ([[2, 1], ["b", "a"]], [[1, 2], ["a", "c"]], ""),
        ([None] * 8, list(range(8)), ""),
        ([math.inf] * 8, list(range(8)), ""),
    ],
)
def test_what_all_wrong_values_of_a_function_have_in_common_is_told(given, right, said):
    assert in_common(plain(given), plain(right), 1e-9) == said


def test_text_is_quoted_and_an_array_is_never_printed_raw():
    assert describe(plain("ddp")) == "'ddp'"
    assert describe(plain(["ddp", torch.zeros(9), nn.Linear(2, 2)])) == (
        "['ddp', 9 numbers, the first 0, the last 0, <Linear>]"
    )
    assert describe(plain({"a": torch.ones(2)})) == "{'a': [1.0, 1.0]}"
    assert describe(plain(nn.Linear(2, 2))) == "<Linear>"


def test_what_has_no_numbers_in_it_or_one_of_a_thousand_digits_is_told_in_words():
    assert describe(plain(np.array(["ddp", None], dtype=object))) == "['ddp', None]"
    assert describe(plain(np.array([nn.Linear(2, 2)] * 2))) == "[<Linear>, <Linear>]"
    assert describe(plain([2**81_559])) == "[<a number of 24,552 digits>]"


def test_a_whole_number_is_shown_to_the_last_digit():
    assert describe(plain(torch.tensor([14960, 7]))) == "[14960, 7]"
    assert describe(9_013_292_032.0) == "9,013,292,032"
    assert describe(float("nan")) == "nan"
