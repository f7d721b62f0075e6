"""A miss is told so that its two sides differ: by kind, shape or place, where the values alone read the same."""

import numpy as np
import pytest
import torch
from torch import nn

from zerolab.exercises.harness.plain import describe, first_difference, plain, same


@pytest.mark.parametrize("value", [torch.tensor([24.0]), torch.tensor(24.0), np.array([[24]]), 24])
def test_a_tensor_of_one_element_is_its_number_and_the_other_way_round(value):
    assert same(plain(value), plain(24.0), 1e-9)
    assert same(plain(24), plain(torch.tensor([24.0])), 1e-9)
    assert not same(plain(value), 25, 1e-9)
    assert not same(plain(torch.tensor([1.0, 1.0])), 1.0, 1e-9)
    assert not same(plain(torch.tensor([True])), 1, 1e-9)


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
        (None, 4, ""),
        (nn.Linear(2, 2), 4, ""),
    ],
)
def test_what_two_values_differ_in_is_told(given, right, said):
    assert first_difference(plain(given), plain(right), 1e-9) == said


def test_text_is_quoted_and_an_array_is_never_printed_raw():
    assert describe(plain("ddp")) == "'ddp'"
    assert describe(plain(["ddp", torch.zeros(9), nn.Linear(2, 2)])) == (
        "['ddp', 9 numbers, the first 0, the last 0, <Linear>]"
    )
    assert describe(plain({"a": torch.ones(2)})) == "{'a': [1.0, 1.0]}"
    assert describe(plain(nn.Linear(2, 2))) == "<Linear>"
